"""The harness tree: whole or absent, installed once, readable by boxes."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from stack.errors import InstallFailed
from stack.install.binaries import find_node
from stack.install.cache import exclusive
from stack.install.progress import Silent
from stack.install.tree import (
    TreeSpec,
    find_tree,
    harness_tree,
    install_tree,
    missing_programs,
)
from stack.settings import Settings
from tests.support.paths import ROOT
from tests.support.services import until

ANSWERS = "#!/bin/sh\necho tiny 1.0.0\n"
FAILS = "#!/bin/sh\necho broken >&2\nexit 3\n"
# Opens the fifo for reading, and so hangs until someone writes.
HANGS = "#!/bin/sh\ntouch {started}\nread line < {fifo}\n"


@dataclass
class Heard:
    """Progress as a list."""

    lines: list[str] = field(default_factory=list)
    titles: set[str] = field(default_factory=set)

    def say(self, text: str) -> None:
        self.lines.append(text)

    def step(self, title: str, done: float, total: float | None) -> None:
        self.titles.add(title)

    def finish(self) -> None:
        """Nothing to put away."""


def tiny(home: Path, program: str, name: str = "tiny") -> TreeSpec:
    """A package of one program, packed and locked by the real npm, that needs no registry."""
    source = home / "source"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    packed = source / "tiny-1.0.0.tgz"
    files = {
        "package/package.json": json.dumps({"name": "tiny", "version": "1.0.0"}),
        "package/tiny.sh": program,
        "package/extra/other-platform.node": "x",
    }
    with tarfile.open(packed, "w:gz") as tar:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(content), 0o644
            tar.addfile(info, io.BytesIO(content.encode()))
    package = {"name": "t", "private": True, "dependencies": {"tiny": f"file:{packed}"}}
    (source / "package.json").write_text(json.dumps(package))
    npm = find_node(Settings()).npm
    command = (*npm, "install", "--package-lock-only", "--offline", "--no-audit", "--no-fund")
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=60)
    return TreeSpec(source, {name: "tiny/tiny.sh"}, dropped=("tiny/extra/*.node",))


def install(spec: TreeSpec, cache: Path, progress: Heard | None = None) -> Path:
    return install_tree(spec, cache, find_node(Settings()), progress or Heard()).path


def test_a_tree_runs_from_its_bin_and_is_installed_once(tmp_path: Path) -> None:
    spec, cache = tiny(tmp_path, ANSWERS), tmp_path / "cache"
    node = find_node(Settings())
    first = install_tree(spec, cache, node, Silent())
    assert first.fresh
    assert first.versions == {"tiny": "tiny 1.0.0"}
    link = first.path / "bin" / "tiny"
    assert not link.readlink().is_absolute()
    assert subprocess.run((link,), capture_output=True, check=True).stdout == b"tiny 1.0.0\n"
    assert not list(first.path.glob("node_modules/tiny/extra/*"))
    again = install_tree(spec, cache, node, Silent())
    assert (again.path, again.fresh) == (first.path, False)


def test_a_tree_whose_program_does_not_run_is_not_installed(tmp_path: Path) -> None:
    spec, cache = tiny(tmp_path, FAILS), tmp_path / "cache"
    with pytest.raises(InstallFailed, match=r"tiny --version exited with 3: broken"):
        install(spec, cache)
    assert find_tree(spec, cache) is None
    assert [path.name for path in (cache / "harnesses").iterdir()] == [".lock"]


def test_a_program_that_the_packages_lack_is_named(tmp_path: Path) -> None:
    spec = tiny(tmp_path, ANSWERS)
    wrong = TreeSpec(spec.source, {"tool": "tiny/nothing.js"})
    with pytest.raises(InstallFailed, match=r"no tiny/nothing\.js for tool"):
        install(wrong, tmp_path / "cache")


def test_what_npm_says_is_in_the_error(tmp_path: Path) -> None:
    spec = tiny(tmp_path, ANSWERS)
    (spec.source / "tiny-1.0.0.tgz").write_bytes(b"not a tarball")
    with pytest.raises(InstallFailed, match=r"npm could not install(.|\n)*TAR_BAD_ARCHIVE"):
        install(spec, tmp_path / "cache")
    assert find_tree(spec, tmp_path / "cache") is None


async def test_an_installation_that_is_killed_is_never_used(tmp_path: Path) -> None:
    fifo, started, cache = tmp_path / "fifo", tmp_path / "started", tmp_path / "cache"
    os.mkfifo(fifo)
    spec = tiny(tmp_path, HANGS.format(fifo=fifo, started=started))
    code = (
        "import sys, pathlib; from tests.integration.stack.test_tree import TreeSpec, install\n"
        "spec = TreeSpec(pathlib.Path(sys.argv[1]), {'tiny': 'tiny/tiny.sh'})\n"
        "install(spec, pathlib.Path(sys.argv[2]))\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, str(spec.source), str(cache)), cwd=ROOT
    )
    await until(started.exists, "the installation to be half way", within=60)
    process.kill()
    await process.wait()
    # lets the program that hangs in its check go
    os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    leftovers = list((cache / "harnesses").glob(".new-*"))
    assert leftovers
    assert find_tree(spec, cache) is None
    whole = tiny(tmp_path, ANSWERS)
    assert missing_programs(whole, install(whole, cache)) == []
    assert not any(path.exists() for path in leftovers)


def test_two_installations_at_once_do_the_work_once(tmp_path: Path) -> None:
    spec, cache = tiny(tmp_path, ANSWERS), tmp_path / "cache"
    node = find_node(Settings())
    fresh: list[bool] = []

    def one() -> None:
        fresh.append(install_tree(spec, cache, node, Silent()).fresh)

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(fresh) == [False, False, True]


def test_who_waits_for_another_installation_is_told_and_gives_up_in_time(tmp_path: Path) -> None:
    lock, heard = tmp_path / "lock", Heard()
    with (
        exclusive(lock, Silent()),
        pytest.raises(InstallFailed, match="another installation"),
        exclusive(lock, heard, seconds=0.3),
    ):
        pytest.fail("two held the lock")
    assert heard.lines == ["waiting for another installation into the same cache"]
    with exclusive(lock, Silent(), seconds=0):
        pass


@pytest.fixture
def closed_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("closed_umask")
def test_a_tree_is_readable_by_other_users_whatever_the_umask(tmp_path: Path) -> None:
    tree = install(tiny(tmp_path, ANSWERS), tmp_path / "cache")
    for path in (tree.parent.parent, tree.parent, tree, *tree.rglob("*")):
        if not path.is_symlink():
            wanted = 0o005 if path.is_dir() else 0o004
            assert path.stat().st_mode & wanted == wanted, path


def test_the_key_of_a_tree_changes_with_its_lock_and_its_names(tmp_path: Path) -> None:
    spec = tiny(tmp_path, ANSWERS)
    assert TreeSpec(spec.source, {"other": "tiny/tiny.sh"}).key != spec.key
    before = spec.key
    lock = spec.source / "package-lock.json"
    lock.write_text(lock.read_text() + "\n")
    assert spec.key != before


def test_the_lock_pins_everything_and_names_no_registry() -> None:
    spec = harness_tree()
    package = json.loads((spec.source / "package.json").read_text())
    assert all(version[0].isdigit() for version in package["dependencies"].values())
    lock = json.loads((spec.source / "package-lock.json").read_text())
    packages = {name: entry for name, entry in lock["packages"].items() if name}
    assert all(entry["integrity"].startswith("sha512-") for entry in packages.values())
    assert not [name for name, entry in packages.items() if "resolved" in entry]


@pytest.mark.harness
@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("claude", "2.1.312"),
        ("claude-agent-acp", "0.99.1"),
        ("codex", "0.166.0"),
        ("codex-acp", "2.6.0"),
        ("opencode", "1.18.33"),
        ("sandbox-agent", "0.4.2"),
    ],
)
def test_the_real_harnesses_run_as_another_user(harness_dir: Path, name: str, version: str) -> None:
    nobody = 65534 if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o777)
        answer = subprocess.run(
            (harness_dir / "bin" / name, "--version"),
            env={"PATH": f"{find_node(Settings()).path.parent}:/usr/bin:/bin", "HOME": home},
            cwd=home,
            user=nobody,
            group=nobody,
            extra_groups=None if nobody is None else (),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    assert version in answer.stdout


@pytest.mark.harness
def test_the_real_tree_has_every_program_once(harness_dir: Path) -> None:
    assert missing_programs(harness_tree(), harness_dir) == []
    big = [path for path in harness_dir.rglob("*") if path.lstat().st_size > 150_000_000]
    assert sorted(path.name for path in big) == ["claude", "codex", "opencode"]
