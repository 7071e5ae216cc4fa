"""A box-host that is a service of its own, asked over its unix socket.

A service that is away is waited for: a call that never reached it is made again, and one that is
the same when made twice also after a broken connection. Then `BoxHostUnavailable`: nothing is known
of the boxes and mounts, which may well live.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from contracts.errors import BoxHostUnavailable
from sidecar.boxhost import wire
from sidecar.boxhost.boxes import Box, BoxSpec
from sidecar.boxhost.contract import BoxCommand, MountKey, Ran
from sidecar.boxhost.mounts import Mount
from sidecar.boxhost.processes import ProcessId, ProcessInfo
from sidecar.tasks import finish

# Above the host's own bounds (kill 5 s, start 30 s, mount 20 s, freeze 60 s): those say more.
CALL_SECONDS = 90.0
# For what only looks.
LOOK_SECONDS = 20.0
SPARE_SECONDS = 30.0
END_SECONDS = 15.0
PIECE = 256 * 1024
# Walks that are the same when made twice; `settle` tells only once what changed.
REPEATABLE = frozenset({"remove", "listing", "read", "scan"})


@dataclass(frozen=True)
class Patience:
    """How long a service that is away is waited for, and the pauses between two tries, in
    seconds."""

    away: float = 20.0
    first_pause: float = 0.05
    longest_pause: float = 1.0


class Wire:
    """Calls to the service. Raises, in every call: BoxHostUnavailable, and what the call says."""

    def __init__(self, http: aiohttp.ClientSession, patience: Patience) -> None:
        self._http = http
        self._patience = patience

    async def ask(
        self,
        call: str,
        plain: Mapping[str, Any],
        data: bytes = b"",
        *,
        again: bool = True,
        bound: float | None = CALL_SECONDS,
    ) -> tuple[Any, bytes]:
        """`again`: whether it may be made twice, when nobody knows if it was made once."""
        body = wire.pack(plain, data)
        deadline = time.monotonic() + self._patience.away
        pause = self._patience.first_pause
        while True:
            try:
                async with asyncio.timeout(bound):
                    return await self._post(call, body)
            except aiohttp.ClientConnectorError as error:
                reason, made = f"it cannot be reached ({error.strerror})", False
            except aiohttp.ClientError as error:
                reason, made = f"it went away meanwhile ({error})", True
            except TimeoutError:
                raise _unavailable(call, f"no answer within {bound} s") from None
            if (made and not again) or time.monotonic() > deadline:
                raise _unavailable(call, reason)
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._patience.longest_pause)

    async def _post(self, call: str, body: bytes) -> tuple[Any, bytes]:
        async with self._http.post(
            f"http://box-host/{call}", data=_pieces(body), allow_redirects=False
        ) as answer:
            line, data = wire.unpack(await answer.read())
        if answer.status == 200:
            return json.loads(line), data
        if answer.content_type != "application/json":
            raise _unavailable(call, f"HTTP {answer.status}")
        error = json.loads(line)["error"]
        raise wire.heard(error) or _unavailable(call, error["message"])


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    """Piece by piece: a large body written at once would hold up everything else."""
    for start in range(0, len(body), PIECE):
        yield body[start : start + PIECE]


def _unavailable(call: str, reason: str) -> BoxHostUnavailable:
    return BoxHostUnavailable(
        f"the box-host did not do {call}: {reason}",
        hint="Boxes and mounts may live on; look whether the box-host runs, and try again.",
    )


class RemoteBoxes:
    """A BoxHost."""

    def __init__(self, wire_: Wire) -> None:
        self._wire = wire_

    async def start(self, spec: BoxSpec) -> Box:
        """The host has the session's directory and what boxes share itself."""
        plain, _ = await self._wire.ask(
            "boxes/start",
            {
                "box_id": spec.id,
                "session_id": spec.session_id,
                "labels": dict(spec.labels),
                "gateway_socket": str(spec.gateway_socket),
                "own_disk": spec.session_dir is None,
            },
        )
        return wire.BOX.validate_python(plain)

    async def living(self, box_id: str) -> Box | None:
        if not wire.is_box_id(box_id):
            return None  # nobody's, as the service would not even look
        plain, _ = await self._wire.ask("boxes/living", {"box_id": box_id}, bound=LOOK_SECONDS)
        return None if plain is None else wire.BOX.validate_python(plain)

    async def all_living(self) -> list[Box]:
        plain, _ = await self._wire.ask("boxes/all_living", {}, bound=LOOK_SECONDS)
        return wire.BOXES.validate_python(plain)

    async def kill(self, box_id: str) -> bool:
        if not wire.is_box_id(box_id):
            return False
        lived, _ = await self._wire.ask("boxes/kill", {"box_id": box_id})
        return bool(lived)

    async def exec(self, box: Box, command: BoxCommand) -> Ran:
        asked = _command(box, command)
        bound = None if command.timeout is None else command.timeout + CALL_SECONDS
        try:
            plain, output = await self._wire.ask(
                "boxes/exec", asked, command.stdin, again=False, bound=bound
            )
        except asyncio.CancelledError:
            # The closed connection ends it too, but does not wait until it is gone.
            with contextlib.suppress(BoxHostUnavailable, TimeoutError):
                await finish(self._end(box.id, asked["exec_id"]), END_SECONDS)
            raise
        size = plain["stdout"]
        return Ran(plain["exit_code"], output[:size], output[size:])

    async def _end(self, box_id: str, exec_id: str) -> None:
        await self._wire.ask("boxes/end", {"box_id": box_id, "exec_id": exec_id})

    async def spawn(self, box: Box, command: BoxCommand) -> None:
        await self._wire.ask("boxes/spawn", _command(box, command), again=False)

    async def pack(self, box_id: str, kept: Sequence[str], left: Sequence[str]) -> bytes:
        asked = {"box_id": box_id, "kept": list(kept), "left": list(left)}
        _, tar = await self._wire.ask("boxes/pack", asked)
        return tar

    async def processes(self, box: Box) -> list[ProcessInfo]:
        plain, _ = await self._wire.ask("boxes/processes", {"box_id": box.id}, bound=LOOK_SECONDS)
        return wire.PROCESSES.validate_python(plain)

    async def kill_processes(self, box: Box, found: Sequence[ProcessId]) -> None:
        pairs = [(process.pid, process.started) for process in found]
        await self._wire.ask("boxes/kill_processes", {"box_id": box.id, "processes": pairs})

    async def freeze(self, box: Box) -> None:
        await self._wire.ask("boxes/freeze", {"box_id": box.id})

    async def thaw(self, box_id: str) -> None:
        await self._wire.ask("boxes/thaw", {"box_id": box_id})

    async def thaw_all(self) -> int:
        count, _ = await self._wire.ask("boxes/thaw_all", {})
        return int(count)

    def files(self, box: Box) -> RemoteFiles:
        return RemoteFiles(self._wire, "boxes", {"box_id": box.id})


def _command(box: Box, command: BoxCommand) -> dict[str, Any]:
    return {
        "box_id": box.id,
        "argv": list(command.argv),
        "cwd": command.cwd,
        "env": dict(command.env),
        "timeout": command.timeout,
        "exec_id": uuid.uuid4().hex,
    }


class RemoteFiles:
    """Files of a mount (`files`) or of a box (`boxes`) on the service's host."""

    def __init__(self, wire_: Wire, kind: str, of: Mapping[str, Any]) -> None:
        self._wire = wire_
        self._kind = kind
        self._of = of

    async def call(self, op: str, *, bound: float, **arguments: Any) -> dict[str, Any]:
        return await self._ask(f"{self._kind}/walk", op, bound, arguments, again=op in REPEATABLE)

    async def mend(self, op: str, *, bound: float, **arguments: Any) -> dict[str, Any]:
        return await self._ask(f"{self._kind}/mend", op, bound, arguments, again=True)

    async def edit(self, op: str, *, bound: float, **arguments: Any) -> dict[str, Any]:
        return await self._ask(f"{self._kind}/edit", op, bound, arguments, again=op == "piece")

    async def _ask(
        self, call: str, op: str, bound: float, arguments: Mapping[str, Any], *, again: bool
    ) -> dict[str, Any]:
        asked = {**self._of, "op": op, "bound": bound, "arguments": arguments}
        plain, _ = await self._wire.ask(call, asked, again=again, bound=bound + SPARE_SECONDS)
        done: dict[str, Any] = plain
        return done

    async def held(self) -> set[int]:
        plain, _ = await self._wire.ask(f"{self._kind}/held", self._of)
        return set(plain)

    async def close(self) -> None:
        await self._wire.ask(f"{self._kind}/close", self._of)


class RemoteMounts:
    """A MountHost."""

    def __init__(self, wire_: Wire) -> None:
        self._wire = wire_

    async def mount(
        self, session_id: str, engine: str, uid: int | None, key: MountKey | None
    ) -> Mount:
        secret = None
        if key is not None:
            secret = {"access_key": key.access_key, "secret_key": key.secret_key}
        asked = {"session_id": session_id, "engine": engine, "uid": uid, "key": secret}
        plain, _ = await self._wire.ask("mounts/mount", asked)
        mount = wire.MOUNT.validate_python(plain)
        assert mount is not None
        return mount

    async def get(self, session_id: str) -> Mount | None:
        plain, _ = await self._wire.ask(
            "mounts/get", {"session_id": session_id}, bound=LOOK_SECONDS
        )
        return wire.MOUNT.validate_python(plain)

    async def alive(self, mount: Mount) -> bool:
        daemon = (mount.daemon.pid, mount.daemon.started)
        asked = {"session_id": mount.session_id, "daemon": daemon}
        alive, _ = await self._wire.ask("mounts/alive", asked, bound=LOOK_SECONDS)
        return bool(alive)

    async def mounted(self) -> set[str]:
        plain, _ = await self._wire.ask("mounts/mounted", {}, bound=LOOK_SECONDS)
        return set(plain)

    async def unmount(self, session_id: str, *, gently: bool = True) -> bool:
        asked = {"session_id": session_id, "gently": gently}
        was_mounted, _ = await self._wire.ask("mounts/unmount", asked)
        return bool(was_mounted)

    async def forget(self, session_id: str) -> bool:
        was_mounted, _ = await self._wire.ask("mounts/forget", {"session_id": session_id})
        return bool(was_mounted)

    async def fence(self, session_id: str) -> int:
        count, _ = await self._wire.ask("mounts/fence", {"session_id": session_id})
        return int(count)

    async def name(self) -> str:
        name, _ = await self._wire.ask("mounts/name", {}, bound=LOOK_SECONDS)
        return str(name)

    def files(self, mount: Mount) -> RemoteFiles:
        daemon = (mount.daemon.pid, mount.daemon.started)
        return RemoteFiles(self._wire, "files", {"session_id": mount.session_id, "daemon": daemon})


class RemoteHost:
    """A Host."""

    def __init__(self, wire_: Wire, geesefs: Path | None) -> None:
        self.wire = wire_
        self.boxes = RemoteBoxes(wire_)
        self.mounts = RemoteMounts(wire_)
        self.geesefs = geesefs


@contextlib.asynccontextmanager
async def connect(socket: Path, patience: Patience | None = None) -> AsyncIterator[RemoteHost]:
    """Raises: BoxHostUnavailable."""
    # A connection per call: one that is kept may be closed by the service at the very moment of
    # the next call, and then nobody knows whether that was made.
    connector = aiohttp.UnixConnector(str(socket), limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        line = Wire(http, patience or Patience())
        about, _ = await line.ask("about", {}, bound=LOOK_SECONDS)
        yield RemoteHost(line, None if about["geesefs"] is None else Path(about["geesefs"]))
