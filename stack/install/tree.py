"""The harness tree: sandbox-agent, the harnesses and their adapters, from npm by a lock file.

A tree is named by the hash of its lock and appears by one rename, so what is there is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stack.errors import InstallFailed
from stack.install.binaries import Node
from stack.install.cache import exclusive, make_cache
from stack.install.progress import Progress
from stack.settings import npm_environment, project_root

NPM_SECONDS = 1500.0
CHECK_SECONDS = 60.0
_TAIL_LINES = 15
# Answers `--version` as pi does where no person is looking, and becomes the program for all else.
# pi takes stdout for its protocol then, and tells its version on stderr; pi-acp, which reads stdout
# only, would ask npm for a newer one if it were there. $0 is the path that the launcher was found
# by, so it works wherever the tree is bound.
_LAUNCHER = """\
#!/bin/sh
if [ "$#" = 1 ] && [ "$1" = --version ] && [ ! -t 0 ]; then
    echo '{version}' >&2
    exit
fi
exec "${{0%/*}}/../{behind}/{name}" "$@"
"""
_BEHIND = "behind"
_Told = subprocess.CompletedProcess[str]
_VERSION = re.compile(r"[0-9A-Za-z.+-]+")
_FETCHED = re.compile(r"fetch GET 200 \S+\.tgz")


@dataclass(frozen=True)
class TreeSpec:
    """What to install, and the names that the rest of the stack runs it by."""

    source: Path
    """The directory of package.json and package-lock.json."""
    programs: Mapping[str, str]
    """name in bin/ -> the file in node_modules that it stands for"""
    dropped: tuple[str, ...] = ()
    """Patterns in node_modules of what no Linux x86-64 machine runs."""
    slow_to_tell: Mapping[str, str] = field(default_factory=dict)
    """name in bin/ -> the package whose version it tells: a launcher does that for it"""

    @property
    def key(self) -> str:
        """The lock's hash, and that of what is done with it after npm."""
        lock = (self.source / "package-lock.json").read_bytes()
        done: list[object] = [sorted(self.programs.items()), self.dropped]
        if self.slow_to_tell:
            done += [sorted(self.slow_to_tell.items()), _LAUNCHER, _BEHIND]
        return hashlib.sha256(lock + json.dumps(done).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Tree:
    """An installed tree; `fresh` says whether this call installed it."""

    path: Path
    fresh: bool = False
    megabytes: int = 0
    seconds: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)


def harness_tree() -> TreeSpec:
    """The tree of this checkout."""
    return TreeSpec(
        source=project_root() / "harnesses",
        programs={
            "sandbox-agent": "@sandbox-agent/cli-linux-x64/bin/sandbox-agent",
            # the SDK's own binary: a second claude would be another 350 MB
            "claude": "@anthropic-ai/claude-agent-sdk-linux-x64/claude",
            "claude-agent-acp": "@agentclientprotocol/claude-agent-acp/dist/index.js",
            # the program itself: its JavaScript launcher would stay behind as a parent process
            "codex": "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex",
            "codex-acp": "@agentclientprotocol/codex-acp/dist/index.js",
            "opencode": "opencode-linux-x64-baseline/bin/opencode",
            "pi": "@mariozechner/pi-coding-agent/dist/cli.js",
            "pi-acp": "pi-acp/dist/index.js",
        },
        dropped=(
            "koffi/build/koffi/[!l]*",
            "koffi/build/koffi/linux_[!x]*",
            "@*/*-musl",
        ),
        # pi-acp asks it in every new session, and pi loads all of itself to answer
        slow_to_tell={"pi": "@mariozechner/pi-coding-agent"},
    )


def find_tree(spec: TreeSpec, cache: Path) -> Path | None:
    """The installed tree, if it is there."""
    path = cache / "harnesses" / spec.key
    return path if path.is_dir() else None


def missing_programs(spec: TreeSpec, tree: Path) -> list[str]:
    """The names whose program is not there or cannot be executed."""
    return [name for name in spec.programs if not os.access(tree / "bin" / name, os.X_OK)]


def install_tree(spec: TreeSpec, cache: Path, node: Node, progress: Progress) -> Tree:
    """The tree of `spec`, installed if it is not there yet.

    Raises:
        InstallFailed: npm failed, or a program of the tree does not run.
    """
    if found := find_tree(spec, cache):
        return Tree(found)
    home = make_cache(cache) / "harnesses"
    home.mkdir(exist_ok=True)
    home.chmod(0o755)
    with exclusive(home / ".lock", progress):
        if found := find_tree(spec, cache):
            return Tree(found)
        _sweep(home)
        return _install(spec, home, node, progress)


def _sweep(home: Path) -> None:
    """Remove what an installation that was killed left behind; the caller holds the lock."""
    for leftover in home.glob(".new-*"):
        shutil.rmtree(leftover)


def _install(spec: TreeSpec, home: Path, node: Node, progress: Progress) -> Tree:
    started = time.monotonic()
    new = home / f".new-{spec.key}"
    new.mkdir()
    try:
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(spec.source / name, new / name)
        _npm_ci(new, node, progress)
        _drop(new / "node_modules", spec.dropped)
        _link(spec, new)
        _open_to_all(
            *(new, new / "bin", new / "package.json", new / "package-lock.json"),
            *((new / _BEHIND,) if spec.slow_to_tell else ()),
        )
        versions = _check(spec, new, node, progress)
        megabytes = _megabytes(new)
        final = home / spec.key
        new.rename(final)
    finally:
        progress.finish()
        shutil.rmtree(new, ignore_errors=True)
    return Tree(final, True, megabytes, time.monotonic() - started, versions)


def _npm_ci(where: Path, node: Node, progress: Progress) -> None:
    """Run npm without the packages' own scripts: they make second copies, and may do anything."""
    lock = json.loads((where / "package-lock.json").read_text(encoding="utf-8"))
    total = sum(1 for name, entry in lock["packages"].items() if name and _wanted(entry))
    command = (*node.npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline")
    environment = npm_environment() | {
        "npm_config_loglevel": "http",
        "npm_config_progress": "false",
    }
    environment["PATH"] = f"{node.path.parent}:{environment.get('PATH', '/usr/bin:/bin')}"
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    process = subprocess.Popen(
        command,
        cwd=where,
        env=environment,
        umask=0o022,  # see _open_to_all
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        code = _follow(process, tail, total, progress)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.wait()
        if process.stdout:
            process.stdout.close()
    if code != 0:
        raise InstallFailed(
            "npm could not install the harnesses: " + "\n".join(tail),
            hint="it needs the npm registry; with a proxy or a mirror, set npm's configuration",
        )


def _follow(
    process: subprocess.Popen[str], tail: deque[str], total: int, progress: Progress
) -> int:
    """Read npm's output to its end, within NPM_SECONDS."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    deadline = time.monotonic() + NPM_SECONDS
    fetched = 0
    while time.monotonic() < deadline:
        progress.step("harnesses: packages fetched", min(fetched, total), total)
        try:
            line = lines.get(timeout=0.5)
        except queue.Empty:
            continue
        if line is None:
            return process.wait(timeout=30)
        if _FETCHED.search(line):
            fetched += 1
        elif "npm http" not in line:
            tail.append(line.rstrip())
    raise InstallFailed(f"npm took longer than {NPM_SECONDS:.0f} s", hint="try again")


def _wanted(entry: Mapping[str, object]) -> bool:
    """Whether npm installs this package here."""
    systems, machines, libc = entry.get("os"), entry.get("cpu"), entry.get("libc")
    return (
        (not isinstance(systems, list) or "linux" in systems)
        and (not isinstance(machines, list) or "x64" in machines)
        and (not isinstance(libc, list) or "glibc" in libc)
    )


def _drop(modules: Path, patterns: tuple[str, ...]) -> None:
    for pattern in patterns:
        for path in list(modules.glob(pattern)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def _link(spec: TreeSpec, tree: Path) -> None:
    """Make bin/ with relative links: the tree is bound into boxes at another path."""
    names = tree / "bin"
    names.mkdir()
    for name, target in spec.programs.items():
        program = tree / "node_modules" / target
        if not program.is_file():
            raise InstallFailed(
                f"the tree has no {target} for {name}",
                hint="the lock in harnesses/ does not fit this version of Holdfast",
            )
        program.chmod(0o755)
        link = names / name
        if name in spec.slow_to_tell:
            link = _put_launcher(tree, name, spec.slow_to_tell[name])
        link.symlink_to(Path("..") / "node_modules" / target)


def _put_launcher(tree: Path, name: str, package: str) -> Path:
    """Write the launcher of a program into bin/; returns where the program itself belongs.

    Neither path has the package's name in it: a process that runs is known by the title that it
    gives itself, and must not count as another program until then (sidecar/harnesses/base.py).
    """
    about = json.loads((tree / "node_modules" / package / "package.json").read_bytes())
    version = str(about["version"])
    if not _VERSION.fullmatch(version):
        raise InstallFailed(f"{package} has the version {version!r}, which is none")
    launcher = tree / "bin" / name
    launcher.write_text(_LAUNCHER.format(version=version, behind=_BEHIND, name=name))
    launcher.chmod(0o755)
    (tree / _BEHIND).mkdir(exist_ok=True)
    return tree / _BEHIND / name


def _open_to_all(*made_here: Path) -> None:
    """Whatever our umask: boxes read the tree under other uids."""
    for path in made_here:
        path.chmod(0o755 if path.is_dir() else 0o644)


def _check(spec: TreeSpec, tree: Path, node: Node, progress: Progress) -> dict[str, str]:
    """Run every program once; a tree that does not run here is never installed."""
    versions = {}
    # where the next installation sweeps it up, should this one be killed
    with tempfile.TemporaryDirectory(prefix=".new-home-", dir=tree.parent) as home:
        environment = {"HOME": home, "PATH": f"{tree}/bin:{node.path.parent}:/usr/bin:/bin"}
        for done, name in enumerate(spec.programs):
            progress.step(f"harnesses: checking {name}", done, len(spec.programs))
            told = _answer(tree / "bin" / name, environment, home)
            if name in spec.slow_to_tell:
                _check_launcher(told, _answer(tree / _BEHIND / name, environment, home), name)
            lines = (told.stdout or told.stderr).strip().splitlines()
            versions[name] = lines[-1] if lines else ""
    return versions


def _check_launcher(told: _Told, own: _Told, name: str) -> None:
    """The program itself must run too, and say the same as its launcher, in the same place."""
    if (told.stdout, told.stderr) != (own.stdout, own.stderr):
        raise InstallFailed(
            f"{name} --version says {own.stdout + own.stderr!r}, "
            f"and its launcher {told.stdout + told.stderr!r}",
            hint="the lock in harnesses/ does not fit this version of Holdfast",
        )


def _answer(program: Path, environment: Mapping[str, str], cwd: str) -> _Told:
    try:
        done = subprocess.run(
            (str(program), "--version"),
            env=dict(environment),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CHECK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallFailed(f"{program.name} does not run: {error}") from error
    if done.returncode != 0:
        raise InstallFailed(
            f"{program.name} --version exited with {done.returncode}: {done.stderr[-500:]}",
            hint="`holdfast doctor` checks what the harnesses need",
        )
    return done


def _megabytes(tree: Path) -> int:
    used = 0
    for directory, _, files in os.walk(tree):
        used += sum((Path(directory) / name).lstat().st_blocks for name in files)
    return round(used * 512 / 1e6)
