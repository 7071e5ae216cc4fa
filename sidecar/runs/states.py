"""Native states in the state bucket: `<session>/state/<harness>/<turn>.tar.gz`, the newest named by
`latest.json` beside them. Kept apart from the workspace: an agent must not rewrite its own past."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
from dataclasses import asdict, dataclass, replace
from uuid import UUID

from contracts.bodies import RunRequest
from contracts.errors import StaleEpoch, StoreUnavailable
from contracts.events import dumps
from sidecar.harnesses.state import StateBroken
from sidecar.workspace.store import Store

# The newest, and what to look at when it turns out to be torn.
KEPT = 3
TRIES = 5


@dataclass(frozen=True)
class Native:
    """A conversation in a harness's own state: its ACP session, and the last turn that it knows."""

    session: str
    epoch: int


@dataclass(frozen=True)
class StoredState:
    """What `latest.json` says."""

    native: Native
    turn_id: str
    sha256: str
    bytes: int
    older: tuple[str, ...] = ()


class States:
    """Raises, in every call: StoreUnavailable."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def latest(self, session_id: UUID, harness: str) -> StoredState | None:
        found = await self._store.get(_key(session_id, harness, "latest.json"))
        return None if found is None else _decode(found[0])

    async def fetch(self, session_id: UUID, harness: str, state: StoredState) -> bytes:
        """The tar. Raises: StateBroken, when it is not what was stored."""
        found = await self._store.get(_key(session_id, harness, f"{state.turn_id}.tar.gz"))
        if found is None or hashlib.sha256(found[0]).hexdigest() != state.sha256:
            raise StateBroken(f"its state after turn {state.turn_id} is not what was stored")
        return await asyncio.to_thread(gzip.decompress, found[0])

    async def put(self, request: RunRequest, native: Native, tar: bytes) -> StoredState:
        """Store a turn's state and make it the latest.

        Raises: StaleEpoch, when a later turn has stored one; then ours is not the latest.
        """
        packed = await asyncio.to_thread(gzip.compress, tar, 1, mtime=0)
        turn_id = str(request.turn_id)
        state = StoredState(native, turn_id, hashlib.sha256(packed).hexdigest(), len(packed))
        place = request.session_id, request.harness
        await self._store.put(_key(*place, f"{turn_id}.tar.gz"), packed)
        pointer = _key(*place, "latest.json")
        for _ in range(TRIES):  # somebody else may be quicker between the read and the write
            found = await self._store.get(pointer)
            before = None if found is None else _decode(found[0])
            if before is not None and before.native.epoch > native.epoch:
                raise StaleEpoch(f"a later turn has stored the state of {request.harness}")
            older: tuple[str, ...] = ()
            if before is not None:
                older = tuple(t for t in (before.turn_id, *before.older) if t != turn_id)
            state = replace(state, older=older[: KEPT - 1])
            replaces = None if found is None else found[1]
            if await self._store.put(pointer, dumps(asdict(state)), replaces=replaces):
                gone = [_key(*place, f"{turn}.tar.gz") for turn in older[KEPT - 1 :]]
                await self._store.delete(gone)
                return state
        raise StoreUnavailable(f"the latest state of {request.harness} is being rewritten")


def _key(session_id: UUID, harness: str, name: str) -> str:
    return f"{session_id}/state/{harness}/{name}"


def _decode(data: bytes) -> StoredState:
    found = json.loads(data)
    return StoredState(
        native=Native(**found["native"]),
        turn_id=found["turn_id"],
        sha256=found["sha256"],
        bytes=found["bytes"],
        older=tuple(found["older"]),
    )
