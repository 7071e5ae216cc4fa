"""Native states in the state bucket: `<session>/state/<harness>/<turn>-<hash>.tar.gz`, the newest
named by `latest.json` beside them. No object is ever overwritten, so that the pointer is right
whenever a writer dies. Kept apart from the workspace: an agent must not rewrite its own past."""

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
SUFFIX = ".tar.gz"


@dataclass(frozen=True)
class Native:
    """A conversation in a harness's own state: its ACP session, and the last turn that it knows."""

    session: str
    epoch: int


@dataclass(frozen=True)
class StoredState:
    """What `latest.json` says. `epoch` is the turn's that stored it, `older` are the names of
    objects."""

    native: Native
    turn_id: str
    sha256: str
    bytes: int
    epoch: int
    name: str
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
        found = await self._store.get(_key(session_id, harness, state.name))
        if found is None or hashlib.sha256(found[0]).hexdigest() != state.sha256:
            raise StateBroken(f"its state after turn {state.turn_id} is not what was stored")
        return await asyncio.to_thread(gzip.decompress, found[0])

    async def put(self, request: RunRequest, native: Native, tar: bytes) -> StoredState:
        """Store a turn's state and make it the latest.

        Raises: StaleEpoch, when a later turn has stored one; then ours is not the latest.
        """
        packed = await asyncio.to_thread(gzip.compress, tar, 1, mtime=0)
        turn_id = str(request.turn_id)
        sha256 = hashlib.sha256(packed).hexdigest()
        name = f"{turn_id}-{sha256[:16]}{SUFFIX}"
        state = StoredState(native, turn_id, sha256, len(packed), request.epoch, name)
        place = request.session_id, request.harness
        await self._store.put(_key(*place, name), packed)
        pointer = _key(*place, "latest.json")
        for _ in range(TRIES):  # somebody else may be quicker between the read and the write
            found = await self._store.get(pointer)
            before = None if found is None else _decode(found[0])
            if before is not None and before.epoch > request.epoch:
                raise StaleEpoch(f"a later turn has stored the state of {request.harness}")
            others = () if before is None else (before.name, *before.older)
            # What this turn stored before is worth nothing beside what it stores now.
            older = [other for other in others if not other.startswith(turn_id)]
            state = replace(state, older=tuple(older[: KEPT - 1]))
            replaces = None if found is None else found[1]
            if await self._store.put(pointer, dumps(asdict(state)), replaces=replaces):
                gone = {*others} - {name, *state.older}
                await self._store.delete([_key(*place, each) for each in sorted(gone)])
                return state
        raise StoreUnavailable(f"the latest state of {request.harness} is being rewritten")


def _key(session_id: UUID, harness: str, name: str) -> str:
    return f"{session_id}/state/{harness}/{name}"


def _decode(data: bytes) -> StoredState:
    found = json.loads(data)
    native, turn_id = Native(**found["native"]), found["turn_id"]
    return StoredState(
        native=native,
        turn_id=turn_id,
        sha256=found["sha256"],
        bytes=found["bytes"],
        # Earlier releases named an object by its turn alone.
        epoch=found.get("epoch", native.epoch),
        name=found.get("name", f"{turn_id}{SUFFIX}"),
        older=tuple(f"{each.removesuffix(SUFFIX)}{SUFFIX}" for each in found["older"]),
    )
