"""Connections that boxd takes send what is written at once."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
from pathlib import Path
from types import ModuleType

import pytest

BOXD = Path(__file__).parents[3] / "sandbox-image" / "boxd"


@pytest.fixture(scope="module")
def ports() -> ModuleType:
    spec = importlib.util.spec_from_file_location("boxd_ports", BOXD / "ports.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_a_connection_to_a_port_of_boxd_has_no_delay(ports: ModuleType) -> None:
    delays = asyncio.Queue[int]()

    async def look(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken = writer.get_extra_info("socket")
        await delays.put(taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listener = ports.listening_on("127.0.0.1", 0)
    async with await asyncio.start_server(look, sock=listener):
        _, writer = await asyncio.open_connection(*listener.getsockname())
        async with asyncio.timeout(10):
            assert await delays.get()
        writer.close()
        await writer.wait_closed()


def test_a_port_that_is_taken_is_refused(ports: ModuleType) -> None:
    with ports.listening_on("127.0.0.1", 0) as first, pytest.raises(OSError, match="in use"):
        ports.listening_on("127.0.0.1", first.getsockname()[1])
