"""The proxy as a process: who may open its socket, and what it does not start with."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import ValidationError

from sidecar.sockets import is_served
from tests.conftest import missing
from tests.engine_proxy.running import (
    NAME,
    STACK,
    Proxy,
    RecordingEngine,
    create_body,
    proxy_settings,
    running_proxy,
)
from tests.services import until

ENDS_WITHIN = 20


def environment(directory: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOLDFAST_ENGINE_SOCKET": str(directory / "engine.sock"),
        "HOLDFAST_ENGINE_PROXY_LISTEN": str(directory / "own" / "proxy.sock"),
        "HOLDFAST_ENGINE_PROXY_BOXES": str(directory),
        "HOLDFAST_DOCKER_STACK": STACK,
        "HOLDFAST_DOCKER_MOUNTS_ROOT": "/m",
        "HOLDFAST_DOCKER_RUN_ROOT": "/r",
    }


@asynccontextmanager
async def proxy_process(directory: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sidecar.engine_proxy",
        env=environment(directory),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await asyncio.wait_for(process.communicate(), ENDS_WITHIN)


async def test_it_serves_its_user_alone_until_it_is_told_to_stop(
    short_dir: Path, engine: RecordingEngine
) -> None:
    socket = short_dir / "own" / "proxy.sock"
    async with proxy_process(short_dir) as process:
        await until(lambda: is_served(socket), "the proxy listens", within=20)
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
        assert (await Proxy(socket).create(create_body())).status == 201
        process.terminate()
        _, log = await asyncio.wait_for(process.communicate(), ENDS_WITHIN)
        assert process.returncode == 0
    assert log.decode().strip().endswith(f"create {NAME}: 201")


async def test_a_second_one_leaves_the_socket_to_the_first(
    short_dir: Path, engine: RecordingEngine
) -> None:
    socket = short_dir / "own" / "proxy.sock"
    async with proxy_process(short_dir):
        await until(lambda: is_served(socket), "the proxy listens", within=20)
        async with proxy_process(short_dir) as second:
            _, log = await asyncio.wait_for(second.communicate(), ENDS_WITHIN)
            assert (second.returncode, b"Another engine proxy" in log) == (1, True)
        assert (await Proxy(socket).call("GET", "/version")).status == 200


async def test_a_group_that_is_named_may_open_the_socket_too(
    short_dir: Path, engine: RecordingEngine
) -> None:
    others = [group for group in os.getgroups() if group != os.getegid()]
    if os.geteuid() != 0 and not others:
        missing("root", "only root, or a user with a second group, can give a file to a group")
    group = 1000 if os.geteuid() == 0 else others[0]
    settings = proxy_settings(short_dir, engine_proxy_group=group)
    async with running_proxy(settings) as proxy:
        status = proxy.socket.stat()
        assert (status.st_gid, stat.S_IMODE(status.st_mode)) == (group, 0o660)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("docker_stack", "0A1B2C3D"),
        ("docker_stack", "0a1b2c3d4"),
        ("docker_stack", "0a1b2c3d\n"),
        ("docker_mounts_root", "relative"),
        ("docker_mounts_root", "/"),
        ("docker_run_root", "/a/../b"),
        ("sandbox_image", "a/../../containers/json?x"),
        ("sandbox_image", "a%2fb"),
        ("sandbox_image", ""),
        ("docker_memory", 0),
        ("docker_cpus", 0),
        ("docker_pids", -1),
    ],
)
def test_a_setting_that_would_weaken_a_rule_is_refused(
    short_dir: Path, name: str, value: object
) -> None:
    with pytest.raises(ValidationError, match=name):
        proxy_settings(short_dir, **{name: value})


@pytest.mark.parametrize(
    "image", ["holdfast-sandbox:latest", "registry.example:5000/a/b_c:1.2", f"a@sha256:{'0' * 64}"]
)
def test_an_image_may_have_any_proper_reference(short_dir: Path, image: str) -> None:
    assert proxy_settings(short_dir, sandbox_image=image).policy().image == image
