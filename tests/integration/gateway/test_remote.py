"""The gateway's port for sandboxes in a cloud, of a gateway process: where it listens."""

from __future__ import annotations

import contextlib
from pathlib import Path
from uuid import uuid4

from tests.support.gateway import (
    PORT_SECRET,
    gateway_process,
    port_settings,
    status_by_port,
    token_of,
)
from tests.support.services import free_port

LISTENING = "0A"
LOOPBACK = "0100007F"


def opened_by(pid: int) -> set[str]:
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.add(str(link.readlink()))
    return found


async def test_it_listens_on_loopback_and_nowhere_else() -> None:
    port = free_port()
    async with gateway_process(**port_settings(port)) as running:
        assert running.process is not None
        inodes = opened_by(running.process.pid)
        found = []
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                row = line.split()
                if row[3] == LISTENING and f"socket:[{row[9]}]" in inodes:
                    found.append((table, row[1]))
    assert found == [("tcp", f"{LOOPBACK}:{port:04X}")]


async def test_without_a_port_it_listens_on_none_and_a_port_needs_a_secret() -> None:
    async with gateway_process(HOLDFAST_GATEWAY_SECRET=PORT_SECRET) as running:
        assert running.process is not None
        listening = Path(f"/proc/{running.process.pid}/net/tcp").read_text()
        inodes = opened_by(running.process.pid)
        rows = [line.split() for line in listening.splitlines()[1:]]
        assert [r for r in rows if r[3] == LISTENING and f"socket:[{r[9]}]" in inodes] == []
        await running.end()
        running.env = {"HOLDFAST_GATEWAY_PORT": str(free_port())}
        process = await running.spawn()
        assert await process.wait() != 0
        assert "HOLDFAST_GATEWAY_SECRET" in running.log


async def test_a_restarted_gateway_serves_the_same_tokens() -> None:
    port, opened = free_port(), uuid4()
    async with gateway_process(**port_settings(port)) as running:
        await running.open(opened)
        await running.end()
        await running.start()
        assert await status_by_port(port, authorization=f"Bearer {token_of(opened)}") == 200
