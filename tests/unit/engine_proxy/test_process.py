"""The proxy as a process: who may open its socket, and what it does not start with."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.support.engine_proxy import (
    RecordingEngine,
    proxy_settings,
    running_proxy,
)
from tests.support.requirements import missing


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
