"""What is known of a session's sandbox between turns; on disk, so that it outlives a restart."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from contracts.bodies import Durability
from sidecar.harnesses import agent_server
from sidecar.harnesses.base import Choice, Harness, program
from sidecar.providers.base import SandboxProcess
from sidecar.record_files import BROKEN, read_record, sweep_records, write_record
from sidecar.runs.states import Native

VERSION = 3
SERVER = "sandbox-agent"


def tokens_by_program(
    harness: Harness, running: Iterable[SandboxProcess]
) -> dict[str, tuple[str, ...]]:
    """The processes of the harness and of its server, by the program that each one runs. Others
    from the harness's tree, such as its search tool, come and go and are left out."""
    found: dict[str, tuple[str, ...]] = {}
    for process in running:
        name = SERVER if agent_server.is_server(process) else program(harness, process)
        if name:
            found[name] = (*found.get(name, ()), process.token)
    return found


@dataclass(frozen=True)
class Adapter:
    """A harness process that waits for the next prompt.

    `epoch` is the last turn it knows of. `tokens` has, for each program of the harness, the tokens
    of all processes that ran it when the turn ended. All and not one: claude's adapter starts a
    short `claude auth status` next to the `claude` that stays, and nothing tells them apart.
    """

    server_id: str
    session: str
    last_event_id: int
    choice: Choice
    epoch: int
    tokens: Mapping[str, tuple[str, ...]]

    def is_among(self, running: Iterable[SandboxProcess]) -> bool:
        """Whether each of its programs still has one of its processes. Never without programs."""
        alive = {process.token for process in running}
        return bool(self.tokens) and all(
            not alive.isdisjoint(tokens) for tokens in self.tokens.values()
        )


@dataclass(frozen=True)
class Live:
    session_id: UUID
    provider: str
    sandbox_id: str
    durability: Durability = "mount"
    adapters: dict[str, Adapter] = field(default_factory=dict)
    natives: dict[str, Native] = field(default_factory=dict)  # what is in its HOME
    warm_until: datetime | None = None
    proxied: bool = False  # whether its processes know of the gateway's proxy

    def with_adapter(self, harness: str, adapter: Adapter | None) -> Live:
        others = {name: known for name, known in self.adapters.items() if name != harness}
        return replace(self, adapters=others if adapter is None else {**others, harness: adapter})

    def with_native(self, harness: str, native: Native) -> Live:
        return replace(self, natives={**self.natives, harness: native})

    def without_processes(self) -> Live:
        """After the workspace was mounted anew: processes still stand in the old one."""
        stale = {name: replace(known, tokens={}) for name, known in self.adapters.items()}
        return replace(self, adapters=stale)

    def warm_for(self, seconds: float | None) -> Live:
        until = None if seconds is None else datetime.now(UTC) + timedelta(seconds=seconds)
        return replace(self, warm_until=until)


class LiveSandboxes:
    """One file per session that has a sandbox."""

    def __init__(self, data_dir: Path) -> None:
        self._dir = data_dir / "live"
        self._dir.mkdir(parents=True, exist_ok=True)
        sweep_records(self._dir)

    def get(self, session_id: UUID) -> Live | None:
        """None also when the record cannot be read: its sandbox is found by its label."""
        return read_record(self._path(session_id), _parse)

    def all(self) -> list[Live]:
        found = (read_record(path, _parse) for path in sorted(self._dir.glob("*.json")))
        return [live for live in found if live is not None]

    def list_lost(self) -> set[UUID]:
        """Sessions whose record was set aside and that have no new one: a sandbox of theirs may
        live, and nothing here says until when."""
        found = (path.name.partition(".")[0] for path in self._dir.glob(f"*.json{BROKEN}"))
        lost = {UUID(name) for name in found}
        return {session_id for session_id in lost if not self._path(session_id).exists()}

    def put(self, live: Live) -> None:
        record = {"v": VERSION, **asdict(live)}
        record["session_id"] = str(live.session_id)
        record["warm_until"] = None if live.warm_until is None else live.warm_until.isoformat()
        write_record(self._path(live.session_id), json.dumps(record))

    def drop(self, session_id: UUID) -> None:
        self._path(session_id).unlink(missing_ok=True)

    def _path(self, session_id: UUID) -> Path:
        return self._dir / f"{session_id}.json"


def _parse(record: dict[str, Any]) -> Live:
    if record["v"] != VERSION:
        raise ValueError(f"it is of version {record['v']}, this release reads {VERSION}")
    until = record["warm_until"]
    return Live(
        session_id=UUID(record["session_id"]),
        provider=record["provider"],
        sandbox_id=record["sandbox_id"],
        durability=record.get("durability", "mount"),
        adapters={
            harness: Adapter(
                **{
                    **known,
                    "choice": Choice(**known["choice"]),
                    "tokens": {name: tuple(tokens) for name, tokens in known["tokens"].items()},
                }
            )
            for harness, known in record["adapters"].items()
        },
        natives={name: Native(**known) for name, known in record["natives"].items()},
        warm_until=None if until is None else datetime.fromisoformat(until),
        proxied=record.get("proxied", False),
    )
