"""Mounts: FUSE daemons on this host that serve one session's workspace each.

`<data>/mounts/<session>/workspace` is the mountpoint; its parent is what a box gets bound.
While nothing is mounted the directories are read-only, so that a write in between fails instead
of landing beside the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sidecar.boxhost import namespaces, processes
from sidecar.boxhost.processes import ProcessId
from sidecar.boxhost.uids import Uids
from sidecar.record_files import read_record, sweep_records, write_record
from sidecar.tasks import at_a_time

STOP_AT_A_TIME = 8
# What a daemon said matters while somebody may still ask why a workspace was lost.
KEEP_LOG_SECONDS = 7 * 24 * 3600
# Longer and longer: where dozens are mounted at a time, looking must not be what takes the time.
POLL_SECONDS, LONGEST_POLL_SECONDS = 0.01, 0.25


class MountFailed(Exception):
    """The daemon did not bring the workspace up, or would not let go of it."""


@dataclass(frozen=True)
class MountLimits:
    """How long each step may take, in seconds."""

    mount: float = 20
    # What a receipt covers is stored; geesefs has been seen to stall ~28 s with nothing left to do.
    unmount: float = 8
    kill: float = 5


@dataclass(frozen=True)
class Mount:
    """A mount as it was started. `uid` is whom it was asked for; None: the session's own."""

    session_id: str
    engine: str
    daemon: ProcessId
    path: Path
    uid: int | None = None

    def alive(self) -> bool:
        """Whether the daemon runs and its mount is in place; not whether it answers."""
        return processes.alive(self.daemon) and _is_fuse(self.path)


class Mounts:
    """Starts, finds and ends mounts. Two of them on one directory see the same mounts."""

    def __init__(self, data_dir: Path, limits: MountLimits | None = None) -> None:
        self._limits = limits or MountLimits()
        self._root = data_dir / "mounts"
        self._logs = data_dir / "logs"
        self._uids = Uids(data_dir)

    def uid(self, session_id: str) -> int:
        """Whom the workspace's files belong to on this host."""
        uid = self._uids.of(session_id)
        return os.geteuid() if uid is None else uid

    def host(self) -> str:
        """A name for this data directory, made at the first call."""
        path = self._root / "host"
        if not path.exists() or not path.read_text():
            self._root.mkdir(parents=True, exist_ok=True)
            write_record(path, secrets.token_hex(4))
        return path.read_text()

    def parent(self, session_id: str) -> Path:
        """The directory to bind into a box; made if it is not there."""
        self._share()
        parent = self._root / session_id
        parent.mkdir(parents=True, exist_ok=True)
        # Step by step: whoever was here before may have died after any of them.
        with contextlib.suppress(FileExistsError):
            (parent / "workspace").mkdir(mode=0o555)
        parent.chmod(0o555)
        return parent

    def get(self, session_id: str) -> Mount | None:
        """None also when the record cannot be read: its daemon is found by its arguments."""
        return read_record(self._record(session_id), _parse)

    def all(self) -> list[Mount]:
        found = (self.get(path.stem) for path in sorted(self._root.glob("*.json")))
        return [mount for mount in found if mount is not None]

    async def mount(
        self,
        session_id: str,
        engine: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        uid: int | None = None,
    ) -> Mount:
        """Start the daemon and wait until its mount is in place.

        Whatever served this session before is ended first, and its end is proven.
        Raises: MountFailed.
        """
        await self.unmount(session_id)
        path = self.parent(session_id) / "workspace"
        self._clear_the_way(path)
        self._logs.mkdir(parents=True, exist_ok=True)
        log = self._log(session_id)
        with log.open("wb") as log_file:
            daemon = processes.start_lasting(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log_file.fileno(),
                stderr=subprocess.STDOUT,
                env=env,
            )
        identity = processes.identify(daemon.pid)
        if identity is None:
            raise MountFailed(f"{engine} ended at once: {_tail(log)}")
        mount = Mount(session_id, engine, identity, path, uid)
        # Before it is up: a daemon without a record could never be fenced.
        self._write_record(mount)
        pause = POLL_SECONDS
        try:
            async with asyncio.timeout(self._limits.mount):
                while not _is_fuse(path):
                    if not processes.alive(identity):
                        raise MountFailed(f"{engine} ended at once: {_tail(log)}")
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.25, LONGEST_POLL_SECONDS)
        except TimeoutError:
            await self.unmount(session_id, gently=False)
            raise MountFailed(
                f"{engine} did not mount within {self._limits.mount:g} s: {_tail(log)}"
            ) from None
        return mount

    async def unmount(self, session_id: str, *, gently: bool = True) -> bool:
        """End the session's mount and prove it: unmounted, daemon exited. False if none was there.

        Raises: MountFailed, when the daemon survives SIGKILL.
        """
        mount = self.get(session_id)
        path = self._root / session_id / "workspace"
        if mount is not None:
            if gently and mount.alive():
                await self._run_umount(path, lazy=False)
                await processes.wait_gone(mount.daemon, self._limits.kill)
            await self._end_daemon(mount.daemon)
        # A daemon without a record, in place or about to be: its starter died between the two.
        strays = await self.end_strays(lambda argv: self._session_of(argv) == session_id)
        if mount is None and not strays and not _is_fuse(path):
            return False
        # Only now: a lazy unmount under a living daemon would leave a writer nobody sees.
        while _is_fuse(path) and await self._run_umount(path, lazy=True):
            pass
        path.chmod(0o555)
        self._record(session_id).unlink(missing_ok=True)
        return True

    async def end_strays(self, serves: Callable[[Sequence[str]], bool]) -> int:
        """Kill every daemon on this host, of whichever data directory, whose arguments say that
        it serves what is asked for, and prove its end; how many there were.

        Raises: MountFailed, when one survives SIGKILL.
        """
        count = 0
        # An agent may start what it likes with any argument, but in a namespace of its own.
        for process in await asyncio.to_thread(processes.with_arguments, serves):
            await self._end_daemon(process)
            count += 1
        return count

    async def forget(self, session_id: str) -> bool:
        """Unmount, and remove the session's directories and uid from this host."""
        was_mounted = await self.unmount(session_id)
        parent = self._root / session_id
        if parent.exists() and not _is_fuse(parent / "workspace"):
            parent.chmod(0o755)
            shutil.rmtree(parent)
        self._log(session_id).unlink(missing_ok=True)
        self._uids.release(session_id)
        return was_mounted

    def sweep(self) -> None:
        """Remove records that were set aside long ago, and logs of daemons that ended long ago."""
        sweep_records(self._root)
        used = {mount.session_id for mount in self.all()}
        for path in self._logs.glob("mount-*.log"):
            old = time.time() - path.stat().st_mtime > KEEP_LOG_SECONDS
            if old and path.stem.removeprefix("mount-") not in used:
                path.unlink(missing_ok=True)

    async def stop_all(self, *, gently: bool = True) -> int:
        """Unmount everything, also what a crash left without a record; how many there were."""
        ending = [self.unmount(mount.session_id, gently=gently) for mount in self.all()]
        count = sum(await at_a_time(STOP_AT_A_TIME, ending))
        count += await self.end_strays(lambda argv: self._session_of(argv) is not None)
        for path in _mountpoints_below(self._root):
            await self._run_umount(path, lazy=True)
        return count

    async def end_stale(self) -> int:
        """Clear away mounts whose daemon is gone, and daemons that nobody knows of; how many."""
        known = self.all()
        sessions = {mount.session_id for mount in known if not mount.alive()}
        recorded = {mount.session_id for mount in known}
        # First by their arguments: a mount may be about to come.
        await self.end_strays(lambda argv: self._session_of(argv) not in {None, *recorded})
        strangers = {path.parent.name for path in _fuse_below(self._root)} - recorded
        for session_id in sorted(sessions | strangers):
            await self.unmount(session_id, gently=False)
        return len(sessions | strangers)

    def _clear_the_way(self, path: Path) -> None:
        """Raises: MountFailed, when something was written beside the store."""
        stray = sorted(item.name for item in path.iterdir())
        if stray:
            raise MountFailed(
                f"{path} has files that are not in the store: {', '.join(stray[:5])}; "
                "move them away, and upload what you need"
            )
        if os.geteuid() != 0:
            path.chmod(0o755)  # fusermount mounts only where its user may write

    def _share(self) -> None:
        """Let mounts made later show up in boxes started earlier. Only root can; an ordinary
        user's boxes see a remount where the distribution shares `/`, as systemd does."""
        self._root.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            root = str(self._root.resolve())
            if self._root.resolve() not in _mountpoints_below(self._root):
                namespaces.mount(root, root, None, namespaces.MS_BIND)
            namespaces.mount(None, root, None, namespaces.MS_SHARED)

    async def _end_daemon(self, daemon: ProcessId) -> None:
        processes.kill(daemon, signal.SIGKILL)
        if not await processes.wait_gone(daemon, self._limits.kill):
            raise MountFailed(f"the mount's daemon {daemon.pid} survived SIGKILL")

    async def _run_umount(self, path: Path, *, lazy: bool) -> bool:
        process = await asyncio.create_subprocess_exec(
            *_umount_command(path, lazy=lazy),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(self._limits.unmount):
                return await process.wait() == 0
        except TimeoutError:
            process.kill()
            await process.wait()
            return False

    def _session_of(self, argv: Sequence[str]) -> str | None:
        """The session that a daemon with these arguments, weed's or geesefs's, serves here."""
        places = [arg.removeprefix("-dir=") for arg in argv if arg.startswith("-dir=")]
        if "-f" in argv:
            places.append(argv[-1])
        for place in map(Path, places):
            if place.name == "workspace" and place.parent.parent == self._root:
                return place.parent.name
        return None

    def _log(self, session_id: str) -> Path:
        return self._logs / f"mount-{session_id}.log"

    def _record(self, session_id: str) -> Path:
        return self._root / f"{session_id}.json"

    def _write_record(self, mount: Mount) -> None:
        record: dict[str, Any] = {**asdict(mount), "path": str(mount.path)}
        write_record(self._record(mount.session_id), json.dumps(record))


def _parse(record: dict[str, Any]) -> Mount:
    return Mount(
        session_id=record["session_id"],
        engine=record["engine"],
        daemon=ProcessId(**record["daemon"]),
        path=Path(record["path"]),
        uid=record.get("uid"),
    )


def _mountinfo(part: str = "") -> list[tuple[Path, str]]:
    """Every mountpoint of this host with its file system, oldest first; or only those in whose
    line there is `part`: there are hundreds, and this is asked often."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if part not in line:
            continue
        fields = line.split()
        path = fields[4].encode("latin-1").decode("unicode_escape")  # \040 for a space
        found.append((Path(path), fields[fields.index("-") + 1]))
    return found


def _is_fuse(path: Path) -> bool:
    resolved = path.parent.resolve() / path.name
    session = path.parent.name
    # Spelt as it is in the table, unless something had to be escaped.
    mounts = _mountinfo(session if session.replace("-", "").isalnum() else "")
    return any(where == resolved and fs.startswith("fuse") for where, fs in mounts)


def _mountpoints_below(root: Path) -> list[Path]:
    """Mountpoints at or under `root`, innermost and newest first."""
    root = root.resolve()
    return [path for path, _ in reversed(_mountinfo()) if path == root or root in path.parents]


def _fuse_below(root: Path) -> list[Path]:
    """Mountpoints of sessions' workspaces under `root`."""
    root = root.resolve()
    return [path for path, fs in _mountinfo() if fs.startswith("fuse") and path.parents[1] == root]


def _umount_command(path: Path, *, lazy: bool) -> list[str]:
    if os.geteuid() == 0:
        return ["umount", *(["-l"] if lazy else []), str(path)]
    tool = shutil.which("fusermount3") or shutil.which("fusermount") or "fusermount3"
    return [tool, "-uz" if lazy else "-u", str(path)]


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return " | ".join(line for line in lines if line)[-1000:] or "it said nothing"
