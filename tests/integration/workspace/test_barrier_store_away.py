"""The barrier while the store is away: it waits, and then it either proves or says what is not."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from contracts.errors import NotDurable
from sidecar.providers.base import Command, SandboxSpec
from sidecar.workspace.barrier import BarrierLimits
from sidecar.workspace.engine import WorkspaceLimits
from sidecar.workspace.host_mounted import MountedSandbox
from sidecar.workspace.iam import SessionKeys
from sidecar.workspace.manifest import Manifest, Manifests
from sidecar.workspace.store import Store, StoreAddress
from tests.integration.workspace.conftest import HostOf
from tests.support.services import STATE_BUCKET, SeaweedFS, until

CHUNK = 1 << 16


class Door:
    """A port that leads to the store, unless it is shut."""

    def __init__(self, endpoint: str) -> None:
        self._target = urlsplit(endpoint)
        self._open = True
        self._writers: set[asyncio.StreamWriter] = set()
        self.refused = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._open:
            self.refused += 1
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target.port)
        pair = {writer, far_writer}
        self._writers |= pair
        try:
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        finally:
            self._writers -= pair
            for each in pair:
                each.close()

    def shut(self) -> None:
        self._open = False
        for writer in self._writers:
            writer.transport.abort()

    def open(self) -> None:
        self._open = True


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


@pytest.fixture
async def door(store_service: SeaweedFS) -> AsyncIterator[Door]:
    opened = Door(store_service.endpoint)
    server = await asyncio.start_server(opened.serve, "127.0.0.1", 0)
    opened.port = server.sockets[0].getsockname()[1]
    yield opened
    opened.shut()
    server.close()


@pytest.fixture
def address(address: StoreAddress, door: Door) -> StoreAddress:
    """The sidecar's way to the store leads through the door, and so does geesefs's."""
    return replace(address, endpoint=f"http://127.0.0.1:{door.port}")


@pytest.fixture
async def store(address: StoreAddress) -> AsyncIterator[Store]:
    async with Store.open(address) as opened:
        yield opened


@pytest.fixture
async def keys(address: StoreAddress) -> AsyncIterator[SessionKeys]:
    async with SessionKeys.open(address) as opened:
        yield opened


@pytest.fixture
def spec(short_dir: Path) -> SandboxSpec:
    session = str(uuid.uuid4())
    return SandboxSpec(f"{session}-1", session, {"session": session}, short_dir / "gw")


async def write(sandbox: MountedSandbox, text: str) -> None:
    script = ["sh", "-c", 'printf "%s" "$1" > file', "sh", text]
    assert (await sandbox.exec(Command(script))).exit_code == 0


async def test_a_store_that_comes_back_costs_time_and_not_the_receipt(
    host_of: HostOf, engine: str, spec: SandboxSpec, store: Store, door: Door
) -> None:
    # what waits for the store must not be the two tries
    limits = WorkspaceLimits(barrier=BarrierLimits(tries=2, longest_pause=0.25))
    sandbox = await host_of(engine, limits=limits).create(spec)
    await write(sandbox, "first")
    await sandbox.workspace.barrier("turn-1", 1)
    await write(sandbox, "second")
    door.shut()
    proving = asyncio.ensure_future(sandbox.workspace.barrier("turn-2", 2))
    # the store's client tries three times by itself in each look
    await until(lambda: door.refused > 3 * 3, "it tries again and again", within=60)
    assert not proving.done(), "it was proven by a store that is away"
    door.open()
    async with asyncio.timeout(60):
        assert (await proving).files == 1
    digest = await store.sha256(f"{sandbox.workspace.mount.session_id}/file")
    assert digest == hashlib.sha256(b"second").hexdigest()


async def test_a_store_that_stays_away_is_no_receipt(
    host_of: HostOf, engine: str, spec: SandboxSpec, door: Door
) -> None:
    """geesefs does not come back from an fsync before its store does."""
    limits = WorkspaceLimits(barrier=BarrierLimits(patience=1, walk=3))
    sandbox = await host_of(engine, limits=limits).create(spec)
    await write(sandbox, "text")
    door.shut()
    with pytest.raises(NotDurable, match=r"store cannot|hung for 3 s"):
        await sandbox.workspace.barrier("turn-1", 1)
    door.open()
    patient = await host_of(engine).workspace(spec.session_id)
    assert patient is not None
    async with asyncio.timeout(60):
        assert (await patient.barrier("turn-1", 1)).files == 1


async def test_a_manifest_that_cannot_be_stored_is_waited_for_too(
    host_of: HostOf, engine: str, spec: SandboxSpec, store: Store, door: Door
) -> None:
    class Shutting(Manifests):
        """The store goes away once the files are proven."""

        async def put(self, manifest: Manifest) -> str:
            if not door.refused:
                door.shut()
            return await super().put(manifest)

    manifests = Shutting(store.in_bucket(STATE_BUCKET))
    sandbox = await host_of(engine, manifests=manifests).create(spec)
    await write(sandbox, "text")
    proving = asyncio.ensure_future(sandbox.workspace.barrier("turn-1", 1))
    await until(lambda: door.refused > 4, "it tries again and again", within=60)
    door.open()
    async with asyncio.timeout(60):
        assert (await proving).files == 1
