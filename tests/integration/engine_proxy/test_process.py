"""The proxy as a process."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

from sidecar.sockets import is_served
from tests.support.engine_proxy import (
    NAME,
    Proxy,
    RecordingEngine,
    create_body,
)
from tests.support.engine_proxy_process import ENDS_WITHIN, proxy_process
from tests.support.services import until


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
