"""Links, modes, times and empty directories outlive the file system that showed them."""

from __future__ import annotations

import dataclasses
import stat
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from sidecar.boxhost import processes
from sidecar.boxhost.host_files import MENDER, HostFiles
from sidecar.boxhost.mender import Mender
from sidecar.providers.base import Command, SandboxSpec
from sidecar.workspace import restore
from sidecar.workspace.barrier import Barrier
from sidecar.workspace.host_mounted import HostMounted, MountedSandbox
from sidecar.workspace.manifest import Entry, Manifests
from sidecar.workspace.restore import Restored, Wanted
from sidecar.workspace.store import Store
from tests.integration.workspace.conftest import HostOf

SECOND = 1_000_000_000
TREE = """
mkdir -p src/deep empty/inner/most closed
printf 'text' > src/plain; printf '#!/bin/sh\\n' > src/run; chmod 755 src/run
printf 'secret' > src/deep/private; chmod 600 src/deep/private
: > zero; : > zero-run; chmod 755 zero-run
ln -s src/plain relative; ln -s /etc/hostname absolute; ln -s nowhere src/dangling
ln -s ../src src/deep/to-directory
touch -d '2001-02-03 04:05:06' src/plain; touch -d '2011-01-01' zero
chmod 700 closed; touch -d '2002-02-02' empty/inner
"""
# Not `find -type l`: geesefs says of a link, in a listing, that it is a file.
SHOW = r"find . -mindepth 1 -printf '%p %y %m %Ts %l\n'"


def spec_of(session: str, number: int, short_dir: Path) -> SandboxSpec:
    return SandboxSpec(f"{session}-{number}", session, {"session": session}, short_dir / "gw")


async def sh(sandbox: MountedSandbox, script: str) -> str:
    result = await sandbox.exec(Command(["sh", "-ec", script]))
    assert result.exit_code == 0, result.stderr.decode()
    return result.stdout.decode()


async def shown(sandbox: MountedSandbox) -> list[list[str]]:
    """Path, type, mode, time and target of everything; a link's own mode means nothing."""
    entries = [line.split(" ") for line in (await sh(sandbox, SHOW)).splitlines()]
    return sorted([*e[:2], "" if e[1] == "l" else e[2], *e[3:]] for e in entries)


def barrier_of(sandbox: MountedSandbox, store: Store, manifests: Manifests) -> Barrier:
    """One more, to look without a receipt."""
    workspace = sandbox.workspace
    return Barrier(
        workspace.files,
        store,
        manifests,
        workspace.session_id,
        workspace.engine.name,
        sync_root=workspace.engine.sync_root,
        held=workspace.files.held,
    )


async def killed(host: HostMounted, sandbox: MountedSandbox) -> None:
    """Box and daemon gone, without a word."""
    await host.destroy(sandbox.id)
    daemon = sandbox.workspace.mount.daemon
    processes.kill(daemon)
    assert await processes.wait_gone(daemon, 10)


@pytest.mark.parametrize(
    "engines",
    [
        ("weed", "weed", "weed"),
        ("geesefs", "geesefs", "geesefs"),
        ("weed", "geesefs", "weed"),
        ("geesefs", "weed", "geesefs"),
    ],
    ids="-".join,
)
async def test_what_a_receipt_covers_looks_the_same_in_every_later_sandbox(
    request: pytest.FixtureRequest, host_of: HostOf, short_dir: Path, engines: tuple[str, ...]
) -> None:
    if "geesefs" in engines:
        request.getfixturevalue("geesefs")
    session = str(uuid.uuid4())
    host = host_of(engines[0])
    sandbox = await host.create(spec_of(session, 0, short_dir))
    await sh(sandbox, TREE)
    await sandbox.workspace.barrier("turn-0", 1)
    before = await shown(sandbox)
    assert len(before) == 15
    for number, engine in enumerate(engines[1:], 1):
        await killed(host, sandbox)
        host = host_of(engine)
        sandbox = await host.create(spec_of(session, number, short_dir))
        assert await shown(sandbox) == before, engine
        assert await sh(sandbox, "./src/run; cat relative") == "text"
        # without another receipt: the first one's manifest is what is known
    await sh(sandbox, "echo more >> src/plain; mv src/run src/moved; echo x > empty/inner/most/f")
    await sandbox.workspace.barrier("turn-1", 2)


async def test_what_was_put_back_is_counted_and_a_second_look_finds_nothing_to_do(
    host_of: HostOf, geesefs: Path, short_dir: Path, store: Store, manifests: Manifests
) -> None:
    session = str(uuid.uuid4())
    one, other = host_of("weed"), host_of("geesefs")
    sandbox = await one.create(spec_of(session, 0, short_dir))
    await sh(sandbox, TREE)
    await sandbox.workspace.barrier("turn-0", 1)
    await killed(one, sandbox)
    workspace, report = await other.ready(session)
    assert report.restored.symlinks == 4, "weed's links are empty objects to S3"
    assert report.restored.modes >= 4
    assert report.restored.problems == {}
    want = await restore.wanted(session, store, manifests)
    assert not await restore.restore(workspace.files, want, ask=True, grain_ns=SECOND)


async def test_a_file_that_changed_after_the_receipt_keeps_what_it_has(
    host_of: HostOf, engine: str, short_dir: Path
) -> None:
    session = str(uuid.uuid4())
    host = host_of(engine)
    sandbox = await host.create(spec_of(session, 0, short_dir))
    await sh(sandbox, "printf one > same-size; printf kept > kept; chmod 755 same-size kept")
    await sandbox.workspace.barrier("turn-0", 1)
    await sh(sandbox, "printf two > same-size; chmod 644 same-size; sync same-size")
    left = await sh(sandbox, "stat -c '%a %Y' same-size")
    await killed(host, sandbox)
    again = await host.create(spec_of(session, 1, short_dir))
    told = again.report.verified
    assert told is not None
    assert (told.files, told.of, told.changed) == (1, 2, ("same-size",))
    assert await sh(again, "cat same-size") == "two"
    assert await sh(again, "stat -c '%a %Y' same-size") == left
    assert await sh(again, "stat -c %a kept") == "755\n"


async def test_what_came_after_the_receipt_has_its_own_modes_and_links(
    host_of: HostOf, engine: str, short_dir: Path, store: Store, manifests: Manifests
) -> None:
    """Also before the very first receipt: geesefs is made to fetch what it stored itself."""
    session = str(uuid.uuid4())
    host = host_of(engine)
    sandbox = await host.create(spec_of(session, 0, short_dir))
    make = "echo x > tool; chmod 755 tool; ln -s tool link; : > empty; sync tool link empty ."
    await sh(sandbox, make)
    look = await barrier_of(sandbox, store, manifests).look()
    assert look.good  # stored, and no receipt
    await killed(host, sandbox)
    again = await host.create(spec_of(session, 1, short_dir))
    seen = await sh(again, "stat -c %a tool; readlink link; stat -c %F empty")
    assert seen == "755\ntool\nregular empty file\n"


def entry(path: str, kind: str, **more: Any) -> Entry:
    plain = Entry(path, "file", None, None, 0o644, 1000 * SECOND, None)
    return dataclasses.replace(plain, kind=kind, **more)  # type: ignore[arg-type]


async def mended(top: Path, *entries: Entry) -> Restored:
    return await restore.restore(HostFiles(top), Wanted(entries), ask=False, grain_ns=1)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """What a link could lead to; it must stay as it is."""
    place = tmp_path / "outside"
    place.mkdir()
    (place / "file").write_text("1234")
    (place / "file").chmod(0o600)
    (place / "empty").write_text("")
    (place / "a.lock").write_text("")
    return place


def look(place: Path) -> list[tuple[str, int, int]]:
    found = [place, *sorted(place.iterdir())]
    return [(p.name, p.lstat().st_mode, p.lstat().st_mtime_ns) for p in found]


@pytest.fixture
def top(tmp_path: Path) -> Path:
    place = tmp_path / "top"
    place.mkdir()
    return place


async def test_no_link_is_followed_while_things_are_put_back(top: Path, outside: Path) -> None:
    before = look(outside)
    (top / "file").symlink_to(outside / "file")
    (top / "directory").symlink_to(outside)
    (top / "directory2").symlink_to(outside)
    await mended(
        top,
        entry("file", "file", size=4, mode=0o777),
        entry("directory", "directory", mode=0o777),
        entry("directory/file", "file", size=4, mode=0o777),
        entry("directory/empty", "symlink", target="x"),
        entry("directory2/new", "directory"),
        entry("../outside/file", "file", size=4, mode=0o777),
        entry("../new", "directory"),
    )
    assert look(outside) == before
    assert sorted(path.name for path in outside.parent.iterdir()) == ["outside", "top"]


def test_a_directory_that_became_a_link_since_it_was_seen_is_not_opened(
    top: Path, outside: Path
) -> None:
    (top / "swapped").symlink_to(outside)
    with pytest.raises(NotADirectoryError), Mender(str(top)).directory("swapped"):
        pytest.fail("it led outside")


async def test_only_what_is_still_the_same_kind_and_size_is_touched(top: Path) -> None:
    (top / "longer").write_text("12345")
    (top / "now-a-file").write_text("")
    (top / "was-a-link").write_text("x")
    (top / "other-target").symlink_to("elsewhere")
    before = look(top)[1:]
    done = await mended(
        top,
        entry("longer", "file", size=4, mode=0o777),
        entry("now-a-file", "directory", mode=0o777),
        entry("was-a-link", "symlink", target="x"),
        entry("other-target", "symlink", target="x"),
        entry("gone", "file", size=1),
    )
    assert look(top)[1:] == before
    assert not done


async def test_setuid_is_not_given_back(top: Path) -> None:
    (top / "tool").write_text("1")
    await mended(top, entry("tool", "file", size=1, mode=0o4755))
    assert stat.S_IMODE((top / "tool").stat().st_mode) == 0o755


async def test_a_forgotten_directory_comes_back_and_a_deleted_one_does_not(top: Path) -> None:
    (top / "kept").mkdir()
    (top / "kept" / "file").write_text("x")
    done = await mended(
        top,
        entry("a", "directory", mode=0o750),
        entry("a/b", "directory"),
        entry("kept", "directory"),
        entry("kept/empty", "directory"),
        entry("kept/file", "file", size=1),
        entry("deleted", "directory"),
        entry("deleted/empty", "directory"),
        entry("deleted/file", "file", size=1),
    )
    assert done.directories == 3
    assert stat.S_IMODE((top / "a").stat().st_mode) == 0o750
    assert (top / "a" / "b").stat().st_mtime_ns == 1000 * SECOND
    assert (top / "a").stat().st_mtime_ns == 1000 * SECOND
    assert (top / "kept" / "empty").is_dir()
    assert not (top / "deleted").exists()


async def test_a_path_that_cannot_be_mended_is_told_and_the_rest_is_done(top: Path) -> None:
    (top / "file").write_text("1")
    (top / "zero").write_text("")
    done = await mended(
        top,
        entry("file", "file", size=1, mode=0o755),
        entry("zero", "symlink", target="t" * 5000),
    )
    assert list(done.problems) == ["zero"]
    assert (top / "zero").read_text() == ""
    assert done.modes == 1


async def test_stale_locks_of_git_are_swept_and_nothing_else(
    durable: HostMounted, short_dir: Path, outside: Path, store: Store, manifests: Manifests
) -> None:
    session = str(uuid.uuid4())
    sandbox = await durable.create(spec_of(session, 0, short_dir))
    await sh(
        sandbox,
        "git init -q repo; cd repo; git config user.email a@b; git config user.name n;"
        " echo 1 > f; git add f; git commit -qm one; cd ..;"
        " mkdir -p repo/.git/modules/sub/refs/heads deep/er/.git node_modules/x/.git;"
        " touch repo/.git/index.lock repo/.git/refs/heads/master.lock deep/er/.git/HEAD.lock"
        " repo/.git/modules/sub/index.lock poetry.lock repo/yarn.lock node_modules/x/.git/a.lock;"
        f" mkdir linked; ln -s {outside} linked/.git; ln -s poetry.lock deep/er/.git/b.lock",
    )
    refused = await sandbox.exec(Command(["git", "-C", "repo", "commit", "-qam", "two"]))
    assert refused.exit_code != 0, "a stale lock does not stop git: the test is blind"
    before = look(outside)
    await barrier_of(sandbox, store, manifests).look()  # flushed, whatever it says
    await killed(durable, sandbox)
    again = await durable.create(spec_of(session, 1, short_dir))
    swept = await again.workspace.sweep_locks()
    # Of a lock that git renamed, geesefs now and then leaves the object behind: a lock again.
    assert [path for path in swept if path != "repo/.git/config.lock"] == [
        "deep/er/.git/HEAD.lock",
        "deep/er/.git/b.lock",
        "repo/.git/index.lock",
        "repo/.git/modules/sub/index.lock",
        "repo/.git/refs/heads/master.lock",
    ]
    assert look(outside) == before
    await sh(again, "echo 2 > repo/f; git -C repo commit -qam two; git -C repo fsck --strict")
    kept = await sh(again, "find . -name '*.lock' | sort")
    assert kept.split() == ["./node_modules/x/.git/a.lock", "./poetry.lock", "./repo/yarn.lock"]
    assert await again.workspace.sweep_locks() == []


def test_the_mender_runs_on_the_standard_library_alone() -> None:
    probe = subprocess.run(
        [sys.executable, "-I", "-S", str(MENDER), "/"],
        input=b'{"op": "look"}',
        capture_output=True,
        timeout=30,
        check=True,
    )
    assert probe.stdout == b'{"ok": {}}'
