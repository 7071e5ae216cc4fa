"""Checks of the machine: what was found, and what to do about what is missing."""

from __future__ import annotations

import os
import platform
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stack.embedded.layout import Layout
from stack.embedded.ports import free_port_near, holder_of, is_free
from stack.embedded.state import running_state
from stack.errors import BinaryMissing
from stack.install.binaries import find_node, find_postgres, find_weed, version_of
from stack.install.bubblewrap import runnable_bwrap
from stack.install.geesefs import find_geesefs
from stack.install.tree import find_tree, harness_tree, missing_programs
from stack.settings import Settings

Level = Literal["ok", "warn", "fail"]

MIN_FREE_GB = 5.0
MIN_PYTHON = (3, 11)
_FUSE = Path("/dev/fuse")
_TRY_SECONDS = 20.0


@dataclass(frozen=True)
class Finding:
    check: str
    level: Level
    found: str
    advice: str = ""


def examine(settings: Settings) -> list[Finding]:
    """Every check, in the order in which a user would repair things."""
    checks: tuple[Callable[[Settings], Finding], ...] = (
        _machine,
        _python,
        _fuse,
        _user_namespaces,
        _mount_propagation,
        _bwrap,
        _node,
        _weed,
        _postgres,
        _harnesses,
        _geesefs,
        _docker,
        _api_port,
        _disk,
        _reachable_by_boxes,
    )
    return [check(settings) for check in checks]


def _machine(_: Settings) -> Finding:
    found = f"{platform.system()} {platform.machine()}, kernel {platform.release()}"
    if platform.system() == "Linux" and platform.machine() == "x86_64":
        return Finding("machine", "ok", found)
    return Finding("machine", "fail", found, "the embedded stack runs on Linux x86-64 only")


def _python(_: Settings) -> Finding:
    found = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info >= MIN_PYTHON:
        return Finding("python", "ok", found)
    return Finding("python", "fail", found, "Python 3.11 or newer is needed")


def _fuse(_: Settings) -> Finding:
    try:
        mode = _FUSE.stat().st_mode
        os.close(os.open(_FUSE, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        advice = "load the module: modprobe fuse; in a container: --device /dev/fuse"
        return Finding("fuse", "fail", f"{_FUSE} is not there", advice)
    except OSError as error:
        found = f"{_FUSE} cannot be opened: {error.strerror} (mode {stat.S_IMODE(mode):o})"
        return Finding("fuse", "fail", found, "as root: chmod 666 /dev/fuse, as distributions do")
    if os.geteuid() == 0:
        return Finding("fuse", "ok", f"{_FUSE} opens; root mounts by itself")
    helper = shutil.which("fusermount3") or shutil.which("fusermount")
    if helper is None:
        found = f"{_FUSE} opens, but fusermount3 is not there"
        return Finding("fuse", "fail", found, "install the package fuse3")
    if not os.stat(helper).st_mode & stat.S_ISUID:  # noqa: PTH116 - a path as which() gives it
        return Finding("fuse", "fail", f"{helper} is not setuid root", "reinstall fuse3")
    return Finding("fuse", "ok", f"{_FUSE} opens; mounts by {helper}")


def _user_namespaces(settings: Settings) -> Finding:
    """Try the real thing: sysctls, AppArmor and seccomp all have a say in it."""
    check = "user namespaces"
    try:
        bwrap = runnable_bwrap(settings)
    except BinaryMissing as error:
        return Finding(check, "fail", "not tried: no bubblewrap", error.hint)
    command = (str(bwrap), "--unshare-user", "--unshare-pid", "--unshare-net", "--ro-bind")
    # root gives boxes uids of their own, so it is an ordinary uid that must be allowed to
    nobody = 65534 if os.geteuid() == 0 else None
    try:
        done = subprocess.run(
            (*command, "/", "/", "--proc", "/proc", "--dev", "/dev", "true"),
            user=nobody,
            group=nobody,
            extra_groups=None if nobody is None else (),
            cwd="/",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TRY_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(check, "fail", f"bubblewrap cannot be run: {error}")
    if done.returncode == 0:
        return Finding(check, "ok", "a box of user, pid and network namespaces starts")
    advice = (
        "allow them: sysctl kernel.unprivileged_userns_clone=1, and on Ubuntu 24.04 "
        "kernel.apparmor_restrict_unprivileged_userns=0; in a container: seccomp=unconfined"
    )
    return Finding(check, "fail", done.stderr.strip()[-300:] or "it does not start", advice)


def _mount_propagation(settings: Settings) -> Finding:
    """A box sees a mount that is renewed under it only if mounts propagate."""
    target = settings.data if settings.data.exists() else settings.data.parent
    point, shared = _mount_of(target)
    if shared:
        return Finding("mount propagation", "ok", f"{point} is shared")
    found = f"{point} is private"
    if os.geteuid() == 0:
        return Finding("mount propagation", "ok", f"{found}; the sidecar makes its own shared one")
    advice = "as root: mount --make-rshared /, if turns fail after a mount was lost"
    return Finding("mount propagation", "warn", found, advice)


def _mount_of(path: Path) -> tuple[str, bool]:
    """The mount that `path` is on, and whether it is in a peer group."""
    best, shared = "/", False
    wanted = f"{path}/"
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        fields = line.split()
        point = fields[4]
        if wanted.startswith(point.rstrip("/") + "/") and len(point) >= len(best):
            optional = fields[6 : fields.index("-")]
            best, shared = point, any(word.startswith("shared:") for word in optional)
    return best, shared


def _bwrap(settings: Settings) -> Finding:
    try:
        path = runnable_bwrap(settings)
    except BinaryMissing as error:
        return Finding("bubblewrap", "fail", error.message, error.hint)
    version = version_of(str(path), "--version")
    if not version:
        return Finding("bubblewrap", "fail", f"{path} does not run", "reinstall it")
    return Finding("bubblewrap", "ok", f"{version} ({path})")


def _node(settings: Settings) -> Finding:
    try:
        node = find_node(settings)
    except BinaryMissing as error:
        return Finding("node", "fail", error.message, error.hint)
    return Finding("node", "ok", f"{node.version} from {node.origin} ({node.path})")


def _weed(settings: Settings) -> Finding:
    try:
        path = find_weed(settings)
    except BinaryMissing as error:
        return Finding("seaweedfs", "fail", error.message, error.hint)
    version = version_of(str(path), "version")
    if not version:
        return Finding("seaweedfs", "fail", f"{path} does not run", "run `make setup`")
    return Finding("seaweedfs", "ok", f"{version} ({path})")


def _postgres(_: Settings) -> Finding:
    try:
        programs = find_postgres()
    except BinaryMissing as error:
        return Finding("postgres", "fail", error.message, error.hint)
    version = version_of(str(programs / "postgres"), "--version")
    if not version:
        return Finding("postgres", "fail", f"{programs} does not run", "run `make setup`")
    if os.geteuid() == 0 and shutil.which("unshare") is None:
        return Finding("postgres", "fail", "unshare was not found", "install util-linux")
    return Finding("postgres", "ok", f"{version} ({programs})")


def _harnesses(settings: Settings) -> Finding:
    spec = harness_tree()
    tree = find_tree(spec, settings.cache_root)
    if tree is None:
        found = f"not installed in {settings.cache_root}"
        return Finding("harnesses", "warn", found, "`make up` or `holdfast install` does it")
    if lost := missing_programs(spec, tree):
        advice = f"remove {tree} and run `holdfast install`"
        return Finding("harnesses", "fail", f"{tree} lacks {', '.join(lost)}", advice)
    return Finding("harnesses", "ok", f"{len(spec.programs)} programs in {tree}")


def _geesefs(settings: Settings) -> Finding:
    found = find_geesefs(settings)
    if found.path is not None:
        return Finding("geesefs", "ok", f"{found.path}, from {found.why}")
    if settings.workspace == "geesefs":
        advice = "put geesefs on PATH, set HOLDFAST_GEESEFS, or set HOLDFAST_WORKSPACE=auto"
        return Finding("geesefs", "fail", found.why, advice)
    return Finding("geesefs", "ok", f"none ({found.why}): weed mounts the workspaces")


def _docker(settings: Settings) -> Finding:
    """Optional: without it, sandboxes are boxes on this machine."""
    engine = settings.docker_socket or Path("/var/run/docker.sock")
    image = settings.sandbox_image or "holdfast-sandbox:latest"
    advice = "only the provider docker needs it; see docs/docker.md"
    docker = shutil.which("docker")
    if docker is None:
        return Finding("docker", "warn", "docker is not on PATH", advice)
    command = (
        docker,
        "--host",
        f"unix://{engine}",
        "image",
        "inspect",
        "--format",
        "{{.Id}}",
        image,
    )
    try:
        asked = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TRY_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Finding("docker", "warn", f"no answer from {engine}", advice)
    if asked.returncode == 0:
        return Finding("docker", "ok", f"{engine}, with the image {image}")
    if "No such image" in asked.stderr:
        return Finding("docker", "warn", f"no image {image}", "build it: make images")
    return Finding("docker", "warn", f"no engine answers at {engine}", advice)


def _api_port(settings: Settings) -> Finding:
    port, host = settings.api_port, settings.api_host
    state = running_state(Layout.of(settings))
    if state is not None and state.ports.get("api") == port:
        return Finding("api port", "ok", f"{port}: this stack is running")
    if is_free(port, host):
        return Finding("api port", "ok", f"{host}:{port} is free")
    advice = f"set HOLDFAST_API_PORT, for example to {free_port_near(host, port)}"
    return Finding("api port", "fail", f"{port} is taken by {holder_of(port) or '?'}", advice)


def _disk(settings: Settings) -> Finding:
    places = {"data": settings.data, "cache": settings.cache_root}
    free = {name: _free_gb(path) for name, path in places.items()}
    found = ", ".join(f"{gigabytes:.1f} GB free for the {name}" for name, gigabytes in free.items())
    if min(free.values()) < MIN_FREE_GB:
        return Finding("disk", "fail", found, f"{MIN_FREE_GB:g} GB are needed")
    return Finding("disk", "ok", found)


def _free_gb(path: Path) -> float:
    existing = next(place for place in (path, *path.parents) if place.exists())
    return shutil.disk_usage(existing).free / 1e9


def _reachable_by_boxes(settings: Settings) -> Finding:
    """Root starts each box under a uid of its own, which must be able to run bubblewrap."""
    check = "box access"
    if os.geteuid() != 0:
        return Finding(check, "ok", "boxes run as this user")
    try:
        closed = _closed_parent(runnable_bwrap(settings))
    except BinaryMissing as error:
        return Finding(check, "fail", error.message, error.hint)
    if closed is None:
        return Finding(check, "ok", "other uids can run bubblewrap")
    advice = "`holdfast install` puts a copy into the cache, which HOLDFAST_CACHE can move"
    return Finding(check, "warn", f"{closed} is closed to other uids", advice)


def _closed_parent(path: Path) -> Path | None:
    resolved = path.resolve()
    for parent in reversed(resolved.parents):
        if parent.exists() and not parent.stat().st_mode & stat.S_IXOTH:
            return parent
    return None
