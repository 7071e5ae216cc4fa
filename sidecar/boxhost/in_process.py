"""The host as this very process has it: what the embedded stack's sidecar works with, and what the
service does for one that is elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sidecar.boxhost import home, processes, running
from sidecar.boxhost.boxes import Box, Boxes, BoxFailed, BoxGone, BoxSpec
from sidecar.boxhost.contract import BoxCommand, MountKey, MountSick, Ran
from sidecar.boxhost.daemons import Daemons, Geesefs, Weed, serving
from sidecar.boxhost.host_files import HostFiles
from sidecar.boxhost.mounts import Mount, MountFailed, Mounts
from sidecar.boxhost.processes import ProcessId, ProcessInfo

log = logging.getLogger(__name__)

KILL_SECONDS = 10
OWN_SECONDS = 20
MOST_PACKED_BYTES = 512 << 20


class OwnBoxes:
    """A BoxHost. What every box shares with the host, read-only, is given by `read_only`."""

    def __init__(self, boxes: Boxes, read_only: Mapping[str, Path]) -> None:
        self._boxes = boxes
        self._read_only = read_only

    async def start(self, spec: BoxSpec) -> Box:
        return await self._boxes.start(replace(spec, read_only=self._read_only))

    async def living(self, box_id: str) -> Box | None:
        box = self._boxes.get(box_id)
        return box if box is not None and box.alive() else None

    async def all_living(self) -> list[Box]:
        return [box for box in self._boxes.all() if box.alive()]

    async def kill(self, box_id: str) -> bool:
        return await self._boxes.kill(box_id)

    async def exec(self, box: Box, command: BoxCommand) -> Ran:
        return await running.run(self._boxes, box, command)

    async def spawn(self, box: Box, command: BoxCommand) -> None:
        await running.spawn(self._boxes, box, command)

    async def pack(self, box_id: str, kept: Sequence[str], left: Sequence[str]) -> bytes:
        place = self._boxes.home(box_id)
        try:
            return await asyncio.to_thread(home.pack, place, kept, left, MOST_PACKED_BYTES)
        except OSError as error:
            raise BoxFailed(f"HOME cannot be read: {error}") from error

    async def processes(self, box: Box) -> list[ProcessInfo]:
        return await asyncio.to_thread(self._boxes.processes, box)

    async def kill_processes(self, box: Box, found: Sequence[ProcessId]) -> None:
        inside = [process for process in found if processes.is_in(process, box.pid_namespace)]
        for process in inside:
            processes.kill(process)
        for process in inside:
            await processes.wait_gone(process, KILL_SECONDS)

    async def freeze(self, box: Box) -> None:
        if not box.alive():
            raise BoxGone(f"box {box.id} is gone")
        try:
            await self._boxes.freeze(box)
        except BoxFailed as error:
            if not box.alive():
                raise BoxGone(f"box {box.id} is gone") from error
            raise

    async def thaw(self, box_id: str) -> None:
        self._boxes.thaw(box_id)

    async def thaw_all(self) -> int:
        return self._boxes.thaw_all()

    def files(self, box: Box) -> HostFiles:
        return HostFiles(self._boxes.disk(box.id) / "workspace")


class OwnMounts:
    """A MountHost. `daemons` are the engines that can serve here, by name."""

    def __init__(self, mounts: Mounts, daemons: Mapping[str, Daemons], bucket: str) -> None:
        self._mounts = mounts
        self._daemons = daemons
        self._bucket = bucket

    async def mount(
        self, session_id: str, engine: str, uid: int | None, key: MountKey | None
    ) -> Mount:
        daemons = self._daemons.get(engine)
        if daemons is None:
            raise MountFailed(f"this host has no {engine}")
        owner = self._mounts.uid(session_id) if uid is None else uid
        mountpoint = self._mounts.parent(session_id) / "workspace"
        daemon = daemons.daemon(session_id, mountpoint, owner, key)
        mount = await self._mounts.mount(session_id, engine, daemon.argv, daemon.env, uid=uid)
        if daemons.gives_root:
            await self._give(mount, owner)
        return mount

    async def _give(self, mount: Mount, owner: int) -> None:
        files = self.files(mount)
        try:
            await files.call("own", bound=OWN_SECONDS, uid=owner)
        except MountSick as sick:
            await self._mounts.unmount(mount.session_id, gently=False)
            raise MountFailed(f"its top directory cannot be given away: {sick}") from sick
        finally:
            await files.close()

    async def get(self, session_id: str) -> Mount | None:
        return self._mounts.get(session_id)

    async def alive(self, mount: Mount) -> bool:
        return mount.alive()

    async def mounted(self) -> set[str]:
        return {mount.session_id for mount in self._mounts.all() if mount.alive()}

    async def unmount(self, session_id: str, *, gently: bool = True) -> bool:
        return await self._mounts.unmount(session_id, gently=gently)

    async def forget(self, session_id: str) -> bool:
        return await self._mounts.forget(session_id)

    async def fence(self, session_id: str) -> int:
        return await self._mounts.end_strays(serving(self._bucket, session_id))

    async def name(self) -> str:
        return self._mounts.host()

    def files(self, mount: Mount) -> HostFiles:
        return HostFiles(mount.path)


@dataclass(frozen=True)
class HostParts:
    """All that a host is made of."""

    data_dir: Path
    run_dir: Path
    bwrap: Path
    harness_dir: Path
    node: Path
    weed: Path
    geesefs: Path | None
    filer: str
    s3_endpoint: str
    bucket: str
    client_uid: int | None = None


class OwnHost:
    """A Host. `kept` and `served` are what its boxes and mounts are kept in."""

    def __init__(self, parts: HostParts) -> None:
        data, bucket = parts.data_dir, parts.bucket
        cache, sockets = data / "cache", parts.run_dir / "weed"
        daemons: dict[str, Daemons] = {
            "weed": Weed(parts.weed, parts.filer, bucket, cache, sockets)
        }
        if parts.geesefs is not None:
            daemons["geesefs"] = Geesefs(parts.geesefs, parts.s3_endpoint, bucket)
        shared = {"/opt/harness": parts.harness_dir, "/opt/node/bin/node": parts.node.resolve()}
        self.kept = Boxes(data, parts.run_dir, parts.bwrap, client_uid=parts.client_uid)
        self.served = Mounts(data)
        self.boxes = OwnBoxes(self.kept, shared)
        self.mounts = OwnMounts(self.served, daemons, bucket)
        self.geesefs = parts.geesefs

    async def clear_leftovers(self) -> None:
        """At start: end what is left of mounts, boxes and commands that died with whoever ran
        them. What cannot be ended is told and does not keep the rest from being served. A box that
        is frozen stays so: a barrier may be going on, and who froze it thaws it."""
        dead = [box.id for box in self.kept.all() if not box.alive()]
        try:
            # The mounts first: a process that waits for a dead one cannot die before it is gone.
            stale = await self.served.end_stale()
            for box_id in dead:
                await self.kept.kill(box_id)
            await self.kept.end_half_made()
            self.served.sweep()
            await self.kept.end_commands()
        except (BoxFailed, MountFailed, OSError) as error:
            log.warning("something is left that cannot be ended: %s", error)
        else:
            log.info("cleared %s dead boxes and %s stale mounts", len(dead), stale)

    async def clear_half_made(self) -> None:
        """At start of a sidecar that has its boxes itself: they outlive it, but for those that it
        was about to make."""
        try:
            if count := await self.kept.end_half_made():
                log.warning("ended %d boxes that have no record", count)
            self.served.sweep()
        except (BoxFailed, OSError) as error:
            log.warning("a box without a record cannot be ended: %s", error)
