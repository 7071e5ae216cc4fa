"""The box-host as a service: the calls of `wire.py` on this host, for a sidecar without privilege.

Its callers say which session, box or mount; every path, program and command line is its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from aiohttp import web
from pydantic import ValidationError

from sidecar.boxhost import wire
from sidecar.boxhost.boxes import Box, BoxFailed, BoxGone, BoxSpec
from sidecar.boxhost.contract import BoxCommand, MountKey, MountSick, Ran
from sidecar.boxhost.host_files import HostFiles
from sidecar.boxhost.in_process import MOST_PACKED_BYTES, OwnHost
from sidecar.boxhost.mounts import Mount
from sidecar.boxhost.processes import ProcessId

log = logging.getLogger(__name__)

Answer = tuple[Any, bytes]
Work = Callable[[Any, bytes], Awaitable[Answer]]

MOST_BODY_BYTES = MOST_PACKED_BYTES + (1 << 20)


class Commands:
    """What runs in boxes for a caller, each ended at most once: a second cancellation would stop
    the clearing up after the first."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Task[Ran]] = {}

    async def run(self, exec_id: str, work: Coroutine[Any, Any, Ran]) -> Ran:
        task = asyncio.create_task(work)
        self._running[exec_id] = task
        task.add_done_callback(lambda _: self._running.pop(exec_id, None))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await self.end(exec_id)
            raise

    async def end(self, exec_id: str) -> bool:
        """When this returns, no process of it is left; False if it had ended before."""
        task = self._running.get(exec_id)
        if task is None:
            return False
        if not task.cancelling():
            task.cancel()
        await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("a command could not be ended: %s", error)
        return True


class BoxCalls:
    def __init__(self, host: OwnHost, gateway_dir: Path) -> None:
        self._host = host
        self._boxes = host.boxes
        self._gateway_dir = gateway_dir
        self._commands = Commands()
        self._walkers: dict[str, HostFiles] = {}

    async def start(self, asked: wire.StartBox, _: bytes) -> Answer:
        spec = BoxSpec(
            id=asked.box_id,
            session_id=asked.session_id,
            labels=asked.labels,
            session_dir=None if asked.own_disk else self._host.served.parent(asked.session_id),
            gateway_socket=self._gateway_socket(asked),
        )
        return wire.BOX.dump_python(await self._boxes.start(spec), mode="json"), b""

    def _gateway_socket(self, asked: wire.StartBox) -> Path:
        """Raises: BoxFailed, for anything but the session's own socket of the gateway."""
        own = self._gateway_dir / asked.session_id / "sock"
        if asked.gateway_socket != str(own):
            raise BoxFailed(f"{asked.gateway_socket} is not the session's socket")
        return own

    async def living(self, asked: wire.OfBox, _: bytes) -> Answer:
        box = await self._boxes.living(asked.box_id)
        return None if box is None else wire.BOX.dump_python(box, mode="json"), b""

    async def all_living(self, _asked: wire.Ask, _: bytes) -> Answer:
        return wire.BOXES.dump_python(await self._boxes.all_living(), mode="json"), b""

    async def kill(self, asked: wire.OfBox, _: bytes) -> Answer:
        await self.close(asked, b"")
        return await self._boxes.kill(asked.box_id), b""

    async def exec(self, asked: wire.InBox, stdin: bytes) -> Answer:
        command = BoxCommand(asked.argv, asked.cwd, asked.env, stdin, asked.timeout)
        work = self._boxes.exec(self._box(asked), command)
        ran = await self._commands.run(asked.exec_id, work)
        plain = {"exit_code": ran.exit_code, "stdout": len(ran.stdout)}
        return plain, ran.stdout + ran.stderr

    async def end(self, asked: wire.EndExec, _: bytes) -> Answer:
        return await self._commands.end(asked.exec_id), b""

    async def spawn(self, asked: wire.InBox, _: bytes) -> Answer:
        command = BoxCommand(asked.argv, asked.cwd, asked.env)
        await self._boxes.spawn(self._box(asked), command)
        return None, b""

    async def pack(self, asked: wire.Pack, _: bytes) -> Answer:
        return None, await self._boxes.pack(asked.box_id, asked.kept, asked.left)

    async def processes(self, asked: wire.OfBox, _: bytes) -> Answer:
        box = self._host.kept.get(asked.box_id)
        found = [] if box is None else await self._boxes.processes(box)
        return wire.PROCESSES.dump_python(found, mode="json"), b""

    async def kill_processes(self, asked: wire.KillProcesses, _: bytes) -> Answer:
        identities = [ProcessId(*pair) for pair in asked.processes]
        box = self._host.kept.get(asked.box_id)
        if box is not None:
            await self._boxes.kill_processes(box, identities)
        return None, b""

    async def freeze(self, asked: wire.OfBox, _: bytes) -> Answer:
        await self._boxes.freeze(self._box(asked))
        return None, b""

    async def thaw(self, asked: wire.OfBox, _: bytes) -> Answer:
        await self._boxes.thaw(asked.box_id)
        return None, b""

    async def thaw_all(self, _asked: wire.Ask, _: bytes) -> Answer:
        return await self._boxes.thaw_all(), b""

    async def walk(self, asked: wire.WalkInBox, _: bytes) -> Answer:
        return await self._files(asked).call(asked.op, bound=asked.bound, **asked.arguments), b""

    async def mend(self, asked: wire.MendInBox, _: bytes) -> Answer:
        return await self._files(asked).mend(asked.op, bound=asked.bound, **asked.arguments), b""

    async def edit(self, asked: wire.EditInBox, _: bytes) -> Answer:
        return await self._files(asked).edit(asked.op, bound=asked.bound, **asked.arguments), b""

    async def held(self, asked: wire.OfBox, _: bytes) -> Answer:
        return sorted(await self._files(asked).held()), b""

    async def close(self, asked: wire.OfBox, _: bytes) -> Answer:
        files = self._walkers.pop(asked.box_id, None)
        if files is not None:
            await files.close()
        return None, b""

    async def end_walkers(self) -> None:
        for files in self._walkers.values():
            await files.close()

    def _files(self, asked: wire.OfBox) -> HostFiles:
        """Raises: BoxGone."""
        if asked.box_id not in self._walkers:
            self._walkers[asked.box_id] = self._boxes.files(self._box(asked))
        return self._walkers[asked.box_id]

    def _box(self, asked: wire.OfBox) -> Box:
        """Raises: BoxGone."""
        box = self._host.kept.get(asked.box_id)
        if box is None:
            raise BoxGone(f"box {asked.box_id} is gone")
        return box


class MountCalls:
    def __init__(self, host: OwnHost) -> None:
        self._mounts = host.mounts
        self._walkers: dict[str, tuple[Mount, HostFiles]] = {}
        # A call that is made again must not overtake the first, which goes on to its end.
        self._changing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def mount(self, asked: wire.MountSession, _: bytes) -> Answer:
        key = None
        if asked.key is not None:
            key = MountKey(asked.key.access_key, asked.key.secret_key.get_secret_value())
        async with self._changing[asked.session_id]:
            await self._let_go(asked.session_id)
            mount = await self._mounts.mount(asked.session_id, asked.engine, asked.uid, key)
        return wire.MOUNT.dump_python(mount, mode="json"), b""

    async def get(self, asked: wire.OfSession, _: bytes) -> Answer:
        mount = await self._mounts.get(asked.session_id)
        return wire.MOUNT.dump_python(mount, mode="json"), b""

    async def alive(self, asked: wire.OfMount, _: bytes) -> Answer:
        mount = await self._known(asked)
        return mount is not None and await self._mounts.alive(mount), b""

    async def mounted(self, _asked: wire.Ask, _: bytes) -> Answer:
        return sorted(await self._mounts.mounted()), b""

    async def unmount(self, asked: wire.Unmount, _: bytes) -> Answer:
        async with self._changing[asked.session_id]:
            await self._let_go(asked.session_id)
            return await self._mounts.unmount(asked.session_id, gently=asked.gently), b""

    async def forget(self, asked: wire.OfSession, _: bytes) -> Answer:
        async with self._changing[asked.session_id]:
            await self._let_go(asked.session_id)
            return await self._mounts.forget(asked.session_id), b""

    async def fence(self, asked: wire.OfSession, _: bytes) -> Answer:
        async with self._changing[asked.session_id]:
            return await self._mounts.fence(asked.session_id), b""

    async def name(self, _asked: wire.Ask, _: bytes) -> Answer:
        return await self._mounts.name(), b""

    async def walk(self, asked: wire.Walk, _: bytes) -> Answer:
        files = await self._files(asked)
        return await files.call(asked.op, bound=asked.bound, **asked.arguments), b""

    async def mend(self, asked: wire.Mend, _: bytes) -> Answer:
        files = await self._files(asked)
        return await files.mend(asked.op, bound=asked.bound, **asked.arguments), b""

    async def edit(self, asked: wire.Edit, _: bytes) -> Answer:
        files = await self._files(asked)
        return await files.edit(asked.op, bound=asked.bound, **asked.arguments), b""

    async def held(self, asked: wire.OfMount, _: bytes) -> Answer:
        return sorted(await (await self._files(asked)).held()), b""

    async def close(self, asked: wire.OfMount, _: bytes) -> Answer:
        await self._let_go(asked.session_id)
        return None, b""

    async def end(self) -> None:
        for session_id in list(self._walkers):
            await self._let_go(session_id)

    async def _known(self, asked: wire.OfMount) -> Mount | None:
        mount = await self._mounts.get(asked.session_id)
        return mount if mount is not None and mount.daemon == ProcessId(*asked.daemon) else None

    async def _files(self, asked: wire.OfMount) -> HostFiles:
        """Raises: MountSick, when the mount is not the one that the caller knows."""
        mount = await self._known(asked)
        if mount is None:
            raise MountSick("ENOTCONN", "the workspace is not mounted any more, or mounted anew")
        known = self._walkers.get(asked.session_id)
        if known is None or known[0] != mount:
            await self._let_go(asked.session_id)
            known = self._walkers[asked.session_id] = (mount, self._mounts.files(mount))
        return known[1]

    async def _let_go(self, session_id: str) -> None:
        known = self._walkers.pop(session_id, None)
        if known is not None:
            await known[1].close()


class Service:
    """The calls by name. A caller that hangs up ends what it asked for, except what must not be
    left half-done."""

    def __init__(self, host: OwnHost, gateway_dir: Path) -> None:
        boxes = self._boxes = BoxCalls(host, gateway_dir)
        mounts = self._mounts = MountCalls(host)
        self._geesefs = host.geesefs
        self._unfinished: set[asyncio.Task[Any]] = set()
        whole = self._to_the_end
        self._calls: dict[str, tuple[type[wire.Ask], Work]] = {
            "about": (wire.Ask, self._about),
            "boxes/start": (wire.StartBox, whole(boxes.start)),
            "boxes/living": (wire.OfBox, boxes.living),
            "boxes/all_living": (wire.Ask, boxes.all_living),
            "boxes/kill": (wire.OfBox, whole(boxes.kill)),
            "boxes/exec": (wire.InBox, boxes.exec),
            "boxes/end": (wire.EndExec, boxes.end),
            "boxes/spawn": (wire.InBox, whole(boxes.spawn)),
            "boxes/pack": (wire.Pack, boxes.pack),
            "boxes/processes": (wire.OfBox, boxes.processes),
            "boxes/kill_processes": (wire.KillProcesses, whole(boxes.kill_processes)),
            "boxes/freeze": (wire.OfBox, boxes.freeze),
            "boxes/thaw": (wire.OfBox, whole(boxes.thaw)),
            "boxes/thaw_all": (wire.Ask, whole(boxes.thaw_all)),
            "boxes/walk": (wire.WalkInBox, boxes.walk),
            "boxes/mend": (wire.MendInBox, boxes.mend),
            "boxes/edit": (wire.EditInBox, whole(boxes.edit)),
            "boxes/held": (wire.OfBox, boxes.held),
            "boxes/close": (wire.OfBox, boxes.close),
            "mounts/mount": (wire.MountSession, whole(mounts.mount)),
            "mounts/get": (wire.OfSession, mounts.get),
            "mounts/alive": (wire.OfMount, mounts.alive),
            "mounts/mounted": (wire.Ask, mounts.mounted),
            "mounts/unmount": (wire.Unmount, whole(mounts.unmount)),
            "mounts/forget": (wire.OfSession, whole(mounts.forget)),
            "mounts/fence": (wire.OfSession, whole(mounts.fence)),
            "mounts/name": (wire.Ask, mounts.name),
            "files/walk": (wire.Walk, mounts.walk),
            "files/mend": (wire.Mend, mounts.mend),
            "files/edit": (wire.Edit, whole(mounts.edit)),
            "files/held": (wire.OfMount, mounts.held),
            "files/close": (wire.OfMount, mounts.close),
        }

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MOST_BODY_BYTES)
        app.router.add_get("/healthz", _healthy)
        app.router.add_post("/{call:.+}", self._answer)
        app.on_cleanup.append(self._end)
        return app

    async def _end(self, _: web.Application) -> None:
        if self._unfinished:
            await asyncio.wait(self._unfinished)
        await self._mounts.end()
        await self._boxes.end_walkers()

    async def _about(self, _asked: wire.Ask, _: bytes) -> Answer:
        return {"geesefs": None if self._geesefs is None else str(self._geesefs)}, b""

    def _to_the_end(self, work: Work) -> Work:
        async def whole(asked: Any, data: bytes) -> Answer:
            async def all_of_it() -> Answer:
                return await work(asked, data)

            task = asyncio.create_task(all_of_it())
            self._unfinished.add(task)
            task.add_done_callback(self._unfinished.discard)
            return await asyncio.shield(task)

        return whole

    async def _answer(self, request: web.Request) -> web.Response:
        call = request.match_info["call"]
        if call not in self._calls:
            return _refused(404, {"kind": "unknown", "message": "there is no such call"})
        model, work = self._calls[call]
        line, data = wire.unpack(await request.read())
        try:
            asked = model.model_validate_json(line)
        except ValidationError as error:
            # Not the input itself: there may be a key in it.
            first = error.errors(include_input=False, include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            return _refused(400, {"kind": "invalid", "message": f"{place}: {first['msg']}"})
        try:
            plain, output = await work(asked, data)
        except Exception as error:  # the boundary: whatever happened is the caller's to hear
            said = wire.told(error)
            if said is None:
                log.exception("%s failed unexpectedly", call)
                message = f"unexpected: {type(error).__name__}: {error}"
                return _refused(500, {"kind": "unexpected", "message": message})
            return _refused(409, said)
        return web.Response(body=wire.pack(plain, output))


async def _healthy(_: web.Request) -> web.Response:
    return web.Response()


def _refused(status: int, error: dict[str, str]) -> web.Response:
    return web.json_response({"error": error}, status=status)
