"""Boxes: bubblewrap sandboxes on this host, one keeper process each."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sidecar.boxhost import freezer, processes
from sidecar.boxhost.processes import ProcessId, ProcessInfo
from sidecar.boxhost.uids import Uids
from sidecar.record_files import read_record, replacing, write_record
from sidecar.tasks import at_a_time

log = logging.getLogger(__name__)

HERE = Path(__file__).parent
KEEPER = str(HERE / "keeper.py")
HOME = "/home/agent"
SESSION_DIR = "/session"
WORKSPACE = f"{SESSION_DIR}/workspace"
RECORD = "box.json"
GATEWAY_PORT = 8080
AGENT_PORT = 2468

# What a command and all that it started carry in their environment.
EXEC_MARK = "HOLDFAST_EXEC"
START_SECONDS = 30
KILL_SECONDS = 5
STOP_AT_A_TIME = 8
ENVIRONMENT_LOOKS = 10
ENVIRONMENT_SECONDS = 0.005
ETC = {
    "passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:1000:1000::/home/agent:/bin/bash\n",
    "group": "root:x:0:\nagent:x:1000:\n",
    "hosts": "127.0.0.1 localhost sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "resolv.conf": "",
}
ETC_MODE = 0o644  # whatever our umask: the box's user reads it
HOST_ETC = ("/etc/ssl", "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime")


class BoxFailed(Exception):
    """A box could not be started, or is not there any more."""


class BoxGone(BoxFailed):
    """The box does not run."""


@dataclass(frozen=True)
class BoxSpec:
    """A box to be. `session_dir` is the PARENT of the workspace's mountpoint: a workspace that is
    mounted anew stays visible, which binding the mountpoint itself would prevent. Without one the
    box has its workspace on a disk of its own, which goes with it."""

    id: str
    session_id: str
    labels: Mapping[str, str]
    session_dir: Path | None
    gateway_socket: Path
    read_only: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Box:
    """A box as it was started; whether it lives is asked of the kernel, not of this record."""

    id: str
    labels: Mapping[str, str]
    keeper: ProcessId
    first: ProcessId
    pid_namespace: int
    uid: int | None
    agent_socket: str
    created_at: str

    def alive(self) -> bool:
        return processes.alive(self.first) and processes.alive(self.keeper)


class Boxes:
    """Starts, finds and ends boxes. Two of them on one directory see the same boxes.

    A box's directory is made before its keeper, which has it as an argument: a keeper whose starter
    died before the record was written is found by it."""

    def __init__(
        self,
        data_dir: Path,
        run_dir: Path,
        bwrap: Path,
        *,
        client_uid: int | None = None,
        freeze_seconds: float = freezer.FREEZE_SECONDS,
    ) -> None:
        """`client_uid` is who connects to the boxes' agent sockets, when that is not us."""
        self._root = data_dir / "boxes"
        self._etc = data_dir / "etc"
        self._sockets = run_dir / "boxes"
        self._bwrap = bwrap
        self._client_uid = client_uid
        self._freeze_seconds = freeze_seconds
        self._uids = Uids(data_dir)
        self._starting = asyncio.Lock()

    def all(self) -> list[Box]:
        """Every box that has a record, living or not."""
        found = (self.get(path.name) for path in sorted(self._root.glob("*")))
        return [box for box in found if box is not None]

    def get(self, box_id: str) -> Box | None:
        return read_record(self._root / box_id / RECORD, _parse)

    def home(self, box_id: str) -> Path:
        return self._root / box_id / "home"

    def disk(self, box_id: str) -> Path:
        """What is the session's directory to a box that has none of the host's."""
        return self._root / box_id / "session"

    async def start(self, spec: BoxSpec) -> Box:
        """A living box with this id: the one that is there, or a new one.

        Raises: BoxFailed.
        """
        async with self._starting:
            known = self.get(spec.id)
            if known is not None and known.alive():
                return known
            await self.kill(spec.id)
            return await self._start(spec)

    async def _start(self, spec: BoxSpec) -> Box:
        uid = self._uids.of(spec.session_id)
        place = self._root / spec.id
        shutil.rmtree(place, ignore_errors=True)
        home = place / "home"
        _make_for(uid, home, 0o700)
        if spec.session_dir is None:
            _make_for(uid, self.disk(spec.id), 0o755)
            _make_for(uid, self.disk(spec.id) / "workspace", 0o755)
        self._sockets.mkdir(parents=True, exist_ok=True)
        if self._client_uid is not None:
            os.chown(self._sockets, self._client_uid, self._client_uid)
        self._write_etc()
        agent_socket = self._socket(spec.id)
        agent_socket.unlink(missing_ok=True)
        description = self._describe(spec, uid, home, agent_socket)
        found = await self._start_keeper(description, place)
        keeper, first = (processes.identify(pid) for pid in (found["keeper"], found["child_pid"]))
        if keeper is None or first is None:
            raise BoxFailed(f"the box {spec.id} died right after its start")
        box = Box(
            id=spec.id,
            labels=dict(spec.labels),
            keeper=keeper,
            first=first,
            pid_namespace=found["pid_namespace"],
            uid=uid,
            agent_socket=str(agent_socket),
            created_at=datetime.now(UTC).isoformat(),
        )
        write_record(place / RECORD, json.dumps(asdict(box)))
        return box

    def _describe(
        self, spec: BoxSpec, uid: int | None, home: Path, agent_socket: Path
    ) -> dict[str, Any]:
        options = [
            *("--unshare-user", "--uid", "1000", "--gid", "1000", "--unshare-pid", "--unshare-ipc"),
            *("--unshare-uts", "--unshare-net", "--unshare-cgroup-try", "--hostname", "sandbox"),
            *("--die-with-parent", "--new-session"),
            *("--ro-bind", "/usr", "/usr", "--tmpfs", "/usr/local"),
            *("--symlink", "usr/bin", "/bin", "--symlink", "usr/sbin", "/sbin"),
            *("--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"),
            *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/run"),  # noqa: S108 - the box's own
            *("--symlink", WORKSPACE.lstrip("/"), "/workspace"),
        ]
        for name in HOST_ETC:
            options += ["--ro-bind-try", name, name]
        binds = [
            {"source": str(self._etc / name), "target": f"/etc/{name}", "writable": False}
            for name in ETC
        ]
        for target, source in spec.read_only.items():
            binds.append({"source": str(source), "target": target, "writable": False})
        binds.append({"source": str(home), "target": HOME, "writable": True})
        session = spec.session_dir or self.disk(spec.id)
        binds.append({"source": str(session), "target": SESSION_DIR, "writable": True})
        return {
            "bwrap": str(self._bwrap),
            "uid": uid,
            "options": options,
            "binds": binds,
            "finish": ["--remount-ro", "/", "--chdir", "/", "--clearenv"],
            "gateway_socket": str(spec.gateway_socket),
            "gateway_port": GATEWAY_PORT,
            "agent_socket": str(agent_socket),
            "agent_port": AGENT_PORT,
            "client_uid": self._client_uid,
        }

    async def _start_keeper(self, description: dict[str, Any], place: Path) -> dict[str, Any]:
        log_path = place / "keeper.log"
        read_end, write_end = os.pipe()
        with log_path.open("ab") as log_file:
            keeper = processes.start_lasting(
                [sys.executable, "-I", "-S", KEEPER, str(place)],
                stdin=subprocess.PIPE,
                stdout=write_end,
                stderr=log_file.fileno(),
                env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"},
            )
        os.close(write_end)
        assert keeper.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            keeper.stdin.write(json.dumps(description).encode())
            keeper.stdin.close()
        try:
            async with asyncio.timeout(START_SECONDS):
                answer = await _read_line(read_end)
            found: dict[str, Any] = json.loads(answer or b'{"ok": false}')
        except TimeoutError:
            found = {"ok": False, "error": f"not up after {START_SECONDS} s"}
        if not found.get("ok"):
            keeper.kill()
            await processes.wait_pid(keeper.pid, KILL_SECONDS)
            raise BoxFailed(f"{found.get('error', 'the keeper died')}: {_tail(log_path)}")
        return {**found, "keeper": keeper.pid}

    async def stop_all(self) -> int:
        """Kill every box, also those without a record; how many lived."""
        ids = [path.name for path in self._root.glob("*")]
        return sum(await at_a_time(STOP_AT_A_TIME, [self.kill(box_id) for box_id in ids]))

    async def end_half_made(self) -> int:
        """At start, while nobody makes a box: end those that have no record, because whoever made
        them died or the record cannot be read. How many lived. Raises: BoxFailed."""
        ids = [path.name for path in self._root.glob("*") if self.get(path.name) is None]
        return sum([await self._kill_unrecorded(box_id) for box_id in ids])

    async def kill(self, box_id: str) -> bool:
        """End every process of the box at once and forget it; False if there was no living one.

        Raises: BoxFailed, when a process would not die.
        """
        box = self.get(box_id)
        if box is None:
            return await self._kill_unrecorded(box_id)
        lived = box.alive()
        # The namespace's first process takes all others with it, also daemons that ignore TERM.
        for process in (box.first, box.keeper):
            processes.kill(process, signal.SIGKILL)
        for process in (box.first, box.keeper):
            if not await self._is_gone(box, process):
                raise BoxFailed(f"process {process.pid} of box {box_id} survived SIGKILL")
        await freezer.remove(self._root / box_id)
        await asyncio.to_thread(self._remove, box)
        return lived

    async def _kill_unrecorded(self, box_id: str) -> bool:
        """Raises: BoxFailed."""
        place = self._root / box_id
        if place not in self._root.glob("*"):  # neither one that is gone nor a way out of here
            return False
        self.thaw(box_id)
        keepers = await asyncio.to_thread(
            processes.with_arguments, lambda argv: list(argv[-2:]) == [KEEPER, str(place)]
        )
        for keeper in keepers:
            processes.kill(keeper)  # bubblewrap and all that is in the box die with it
            if not await processes.wait_gone(keeper, KILL_SECONDS):
                raise BoxFailed(f"keeper {keeper.pid} of box {box_id} survived SIGKILL")
        await freezer.remove(place)
        # The directory last: by it a successor knows that there is something left to remove.
        self._socket(box_id).unlink(missing_ok=True)
        await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
        return bool(keepers)

    def _socket(self, box_id: str) -> Path:
        return self._sockets / f"{hashlib.sha256(box_id.encode()).hexdigest()[:16]}.sock"

    async def _is_gone(self, box: Box, process: ProcessId) -> bool:
        """A frozen process dies when it is thawed, before it runs on; and a barrier that does not
        know of the kill may freeze it once more."""
        for _ in range(KILL_SECONDS * 10):
            self.thaw(box.id)
            if await processes.wait_gone(process, 0.1):
                return True
        return False

    async def freeze(self, box: Box) -> None:
        """Stop every process of the box; commands that enter it later run.

        Raises: BoxFailed, when one would not stop; then none is.
        """
        try:
            place = self._root / box.id
            await freezer.freeze(place, box.first, box.pid_namespace, self._freeze_seconds)
        except freezer.FreezeFailed as error:
            raise BoxFailed(f"box {box.id}: {error}") from error

    def thaw(self, box_id: str) -> bool:
        """Let the box's processes go on; False if none was ever frozen. Idempotent."""
        return freezer.thaw(self._root / box_id)

    def thaw_all(self) -> int:
        """Let go on what a predecessor froze and did not thaw; how many boxes it may have been."""
        count = 0
        for path in self._root.glob("*"):
            try:
                count += self.thaw(path.name)
            except OSError:
                log.exception("cannot thaw box %s", path.name)
        return count

    def _remove(self, box: Box) -> None:
        Path(box.agent_socket).unlink(missing_ok=True)
        shutil.rmtree(self._root / box.id, ignore_errors=True)

    def processes(self, box: Box) -> list[ProcessInfo]:
        """What runs in the box, without bubblewrap's own first process and the idle one."""
        return [p for p in processes.in_pid_namespace(box.pid_namespace) if p.inner_pid > 2]

    def entering(
        self, box: Box, argv: Sequence[str], cwd: str, *, detached: bool = False
    ) -> list[str]:
        """The command that runs `argv` inside the box."""
        mode = "detached" if detached else "attached"
        script = str(HERE / "enter.py")
        return [sys.executable, "-I", "-S", script, str(box.first.pid), cwd, mode, "--", *argv]

    @contextlib.asynccontextmanager
    async def marked(self, box: Box) -> AsyncIterator[tuple[str, str]]:
        """An environment variable for a command; whatever carries it at the end is killed."""
        name, value = EXEC_MARK, uuid.uuid4().hex
        try:
            yield name, value
        finally:
            await self.kill_marked(box, name, value)

    async def end_commands(self) -> None:
        """End what is left of commands whose runner died; only while nobody runs any.

        Raises: BoxFailed.
        """
        for box in self.all():
            if box.alive():
                await self.kill_marked(box, EXEC_MARK, "")

    async def kill_marked(self, box: Box, name: str, value: str) -> None:
        """Raises: BoxFailed, when a process cannot die because its file system hangs."""
        marker = f"{name}={value}".encode()
        for _ in range(50):  # a fork bomb gets fifty sweeps
            left = await self._find_marked(box, marker)
            if not left:
                return
            for process in left:
                processes.kill(process)
            for process in left:
                if not await processes.wait_gone(process, KILL_SECONDS):
                    raise BoxFailed(f"process {process.pid} of box {box.id} survived SIGKILL")
        raise BoxFailed(f"processes of box {box.id} multiply faster than they can be killed")

    async def _find_marked(self, box: Box, marker: bytes) -> list[ProcessId]:
        """One without an environment is looked at again: in the middle of an exec it has none."""

        def look() -> list[ProcessId]:
            left = [each.id for each in self.processes(box)]
            found: list[ProcessId] = []
            for _ in range(ENVIRONMENT_LOOKS):
                environments = {each: processes.environment(each) for each in left}
                found += [
                    each
                    for each, variables in environments.items()
                    if processes.has_variable(variables or b"", marker)
                ]
                left = [each for each, variables in environments.items() if variables == b""]
                if not left:
                    break
                time.sleep(ENVIRONMENT_SECONDS)
            return found

        return await asyncio.to_thread(look)

    def _write_etc(self) -> None:
        self._etc.mkdir(parents=True, exist_ok=True)
        for name, text in ETC.items():
            path = self._etc / name
            if not _holds(path, text):
                with replacing(path) as file:
                    os.fchmod(file.fileno(), ETC_MODE)
                    file.write(text.encode())


def _parse(record: dict[str, Any]) -> Box:
    keeper, first = ProcessId(**record["keeper"]), ProcessId(**record["first"])
    return Box(**{**record, "keeper": keeper, "first": first})


def _holds(path: Path, text: str) -> bool:
    """Whether the box's user can read just this there."""
    try:
        return path.stat().st_mode & 0o777 == ETC_MODE and path.read_bytes() == text.encode()
    except FileNotFoundError:
        return False


def _make_for(uid: int | None, directory: Path, mode: int) -> None:
    directory.mkdir(parents=True)
    if uid is not None:
        os.chown(directory, uid, uid)
    directory.chmod(mode)


def _tail(path: Path) -> str:
    return path.read_text(errors="replace").strip()[-2000:]


async def _read_line(fd: int) -> bytes:
    """The first line of a pipe; closes it."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb")
    )
    try:
        return await reader.readline()
    finally:
        transport.close()
