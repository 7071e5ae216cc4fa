"""Links that an agent plants lead nowhere: not while a workspace is listed, read, walked, mended or
changed from the host, not when they are swapped in at the last moment, and not at its top."""

from __future__ import annotations

import base64
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.boxhost.contract import MountSick
from sidecar.boxhost.editor import Editor
from sidecar.boxhost.host_files import HostFiles
from sidecar.boxhost.walker import MOST_LEVELS, Walker

BOUND = 60
OUTSIDE = "what nobody in the sandbox may see"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Somebody else's files: the host's, or another session's."""
    place = tmp_path / "outside"
    (place / "deep").mkdir(parents=True)
    (place / "secret").write_text(OUTSIDE)
    (place / "deep" / "secret").write_text(OUTSIDE)
    (place / "outside-only").write_text(OUTSIDE)
    return place


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    place = tmp_path / "session" / "workspace"
    place.mkdir(parents=True)
    (place / "own.txt").write_text("own")
    return place


@pytest.fixture
async def files(workspace: Path) -> AsyncIterator[HostFiles]:
    opened = HostFiles(workspace)
    yield opened
    await opened.close()


def plant(workspace: Path, outside: Path) -> None:
    """Every kind of link that there is a way to abuse."""
    (workspace / "dir").symlink_to(outside)
    (workspace / "file").symlink_to(outside / "secret")
    (workspace / "up").symlink_to("../../outside")
    (workspace / "proc").symlink_to("/proc/self")
    (workspace / "root").symlink_to("/proc/self/root")
    (workspace / "etc").symlink_to("/etc")
    (workspace / "loop").symlink_to("loop")
    (workspace / "real").mkdir()
    (workspace / "real" / "inner").symlink_to(outside)


THROUGH = [
    "dir/secret",
    "file",
    "up/secret",
    "proc/environ",
    "root/etc/passwd",
    "etc/passwd",
    "loop",
    "real/inner/secret",
    "real/inner/deep/secret",
]
NO_PATHS = ["..", "../outside/secret", "real/../../outside/secret", "./own.txt", "a\0b"]


@pytest.mark.parametrize("path", [*THROUGH, *NO_PATHS])
async def test_nothing_is_read_through_a_link(
    files: HostFiles, workspace: Path, outside: Path, path: str
) -> None:
    plant(workspace, outside)
    with pytest.raises(MountSick):
        await files.call("read", bound=BOUND, path=path, offset=0, size=100)
    taken = [{"path": path, "offset": 0, "size": 100}]
    if path not in NO_PATHS:
        assert await files.call("take", bound=BOUND, pieces=taken) == {"pieces": [None]}
    read = await files.call("read", bound=BOUND, path="own.txt", offset=0, size=100)
    assert base64.b64decode(read["data"]) == b"own"


@pytest.mark.parametrize("path", ["dir", "up", "proc", "root", "etc", "real/inner", "dir/deep"])
async def test_nothing_is_listed_through_a_link(
    files: HostFiles, workspace: Path, outside: Path, path: str
) -> None:
    plant(workspace, outside)
    with pytest.raises(MountSick):
        await files.call("listing", bound=BOUND, path=path)
    listed = await files.call("listing", bound=BOUND, path="")
    kinds = {entry["name"]: entry["kind"] for entry in listed["entries"]}
    assert kinds["dir"] == "symlink"
    assert kinds["own.txt"] == "file"


@pytest.mark.parametrize("path", ["dir/new", "up/new", "real/inner/new", "etc/new", "file/new"])
async def test_nothing_is_changed_through_a_link(
    files: HostFiles, workspace: Path, outside: Path, path: str
) -> None:
    plant(workspace, outside)
    before = contents(outside)
    inside = path.rpartition("/")[0]
    ops: list[tuple[str, dict[str, Any]]] = [
        ("begin", {"path": path, "replace": True}),
        ("mkdir", {"path": path}),
        ("move", {"source": "own.txt", "target": path}),
        ("move", {"source": f"{inside}/secret", "target": "stolen"}),
        ("delete", {"path": f"{inside}/secret"}),
    ]
    for op, given_ in ops:
        with pytest.raises(MountSick):
            await files.edit(op, bound=BOUND, **given_)
    pieces = [{"path": path, "offset": 0, "data": ""}]
    with pytest.raises(MountSick):
        await files.call("fill", bound=BOUND, pieces=pieces, uid=None)
    assert contents(outside) == before
    assert not (workspace / "stolen").exists()


async def test_a_link_itself_is_moved_and_deleted_and_not_what_it_leads_to(
    files: HostFiles, workspace: Path, outside: Path
) -> None:
    plant(workspace, outside)
    before = contents(outside)
    await files.edit("move", bound=BOUND, source="dir", target="elsewhere")
    await files.edit("delete", bound=BOUND, path="elsewhere")
    await files.edit("delete", bound=BOUND, path="real")
    begun = await files.edit("begin", bound=BOUND, path="file", replace=True)
    data = base64.b64encode(b"mine").decode()
    await files.edit("piece", bound=BOUND, path="file", name=begun["name"], offset=0, data=data)
    await files.edit("finish", bound=BOUND, path="file", name=begun["name"], replace=True)
    assert (workspace / "file").read_bytes() == b"mine"
    assert not (workspace / "file").is_symlink()
    assert contents(outside) == before


async def test_a_barrier_sees_links_and_nothing_behind_them(
    files: HostFiles, workspace: Path, outside: Path
) -> None:
    plant(workspace, outside)
    await files.call("scan", bound=BOUND, token="", held=[])
    seen = await files.call("settle", bound=BOUND, sync_root=True)
    kinds = {entry["path"]: entry["kind"] for entry in seen["entries"]}
    assert kinds.pop("own.txt") == "file"
    assert kinds.pop("real") == "directory"
    assert set(kinds.values()) == {"symlink"}
    assert seen["problems"] == []


async def test_metadata_is_given_back_to_a_link_and_not_to_what_it_leads_to(
    files: HostFiles, workspace: Path, outside: Path
) -> None:
    plant(workspace, outside)
    before = contents(outside)
    wanted = [
        {"path": path, "kind": "file", "mode": 0o777, "mtime_ns": 1, "target": None}
        for path in ("file", "dir/secret", "real/inner/secret")
    ]
    wanted.append({"path": "dir/made", "kind": "directory", "mode": 0o777, "mtime_ns": 1})
    await files.mend("restore", bound=BOUND, entries=wanted, ask=False, grain_ns=1)
    assert contents(outside) == before


OPS: list[tuple[str, str, dict[str, Any]]] = [
    ("call", "listing", {"path": ""}),
    ("call", "read", {"path": "secret", "offset": 0, "size": 100}),
    ("call", "scan", {"token": "", "held": []}),
    ("call", "put", {"name": ".probe", "text": "x"}),
    ("call", "remove", {"name": "secret"}),
    ("call", "own", {"uid": 12345}),
    ("call", "fill", {"pieces": [{"path": "new", "offset": 0, "data": ""}], "uid": None}),
    ("edit", "begin", {"path": "new", "replace": True}),
    ("edit", "delete", {"path": "secret"}),
    ("edit", "mkdir", {"path": "new"}),
]


@pytest.mark.parametrize(("how", "op", "given_"), OPS)
async def test_a_workspace_that_is_a_link_itself_is_none(
    files: HostFiles, workspace: Path, outside: Path, how: str, op: str, given_: dict[str, Any]
) -> None:
    """On a sandbox's own disk the top is the agent's too: it can put a link in its place."""
    before = contents(outside)
    workspace.rename(workspace.with_name("moved"))
    workspace.symlink_to(outside)
    with pytest.raises(MountSick):
        await getattr(files, how)(op, bound=BOUND, **given_)
    assert contents(outside) == before


async def test_mending_a_workspace_that_is_a_link_changes_nothing_behind_it(
    files: HostFiles, workspace: Path, outside: Path
) -> None:
    before = contents(outside)
    (outside / ".git").mkdir()
    (outside / ".git" / "index.lock").write_text("")
    workspace.rename(workspace.with_name("moved"))
    workspace.symlink_to(outside)
    wanted = [{"path": "secret", "kind": "file", "mode": 0o777, "mtime_ns": 1, "target": None}]
    ops: list[tuple[str, dict[str, Any]]] = [
        ("restore", {"entries": wanted, "ask": False, "grain_ns": 1}),
        ("sweep_locks", {}),
    ]
    for op, given_ in ops:
        with contextlib.suppress(MountSick):
            await files.mend(op, bound=BOUND, **given_)
    assert (outside / ".git" / "index.lock").exists()
    (outside / ".git" / "index.lock").unlink()
    (outside / ".git").rmdir()
    assert contents(outside) == before


@contextlib.contextmanager
def swapping(workspace: Path, outside: Path) -> Iterator[None]:
    """A name that is a directory and a link in turns, as fast as the kernel can."""
    real, link, name = workspace / ".real", workspace / ".link", workspace / "name"
    real.mkdir()
    (real / "secret").write_text("mine")
    (real / "deep").mkdir()
    link.symlink_to(outside)
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            with contextlib.suppress(OSError):
                real.rename(name)
                name.rename(real)
                link.rename(name)
                name.rename(link)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


# Rounds that are enough, and rounds at most until the name was seen in both states.
ROUNDS, MOST_ROUNDS = 300, 5000


def test_a_link_swapped_in_between_check_and_use_is_not_followed(
    workspace: Path, outside: Path
) -> None:
    walker, editor = Walker(str(workspace)), Editor(str(workspace))
    before = contents(outside)
    read = {"mine": 0, "refused": 0}
    with swapping(workspace, outside):
        for number in range(MOST_ROUNDS):
            if number >= ROUNDS and all(read.values()):
                break
            try:
                data = walker.read("name/secret", 0, 100)["data"]
            except OSError:
                read["refused"] += 1
            else:
                assert base64.b64decode(data) == b"mine"
                read["mine"] += 1
            with contextlib.suppress(OSError):
                listed = walker.listing("name")["entries"]
                assert "outside-only" not in {each["name"] for each in listed}
            with contextlib.suppress(OSError):
                walker.scan(token="", held=[])
                seen = walker.settle(sync_root=False)
                paths = {each["path"] for each in seen["entries"]}
                assert not any("outside-only" in path or "deep/secret" in path for path in paths)
            with contextlib.suppress(OSError):
                editor.mkdir(f"name/n{number}")
                editor.delete(f"name/n{number}")
            with contextlib.suppress(OSError):
                editor.delete("name/deep/secret")
    assert contents(outside) == before
    assert read["mine"], "the name was never a directory: the test is blind"
    assert read["refused"], "the name was never swapped: the test is blind"


async def test_more_levels_than_can_be_kept_are_told_and_the_walker_lives(
    files: HostFiles, workspace: Path
) -> None:
    here = os.open(workspace, os.O_RDONLY)
    for _ in range(MOST_LEVELS + 200):
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    try:
        await files.call("scan", bound=BOUND, token="", held=[])
        seen = await files.call("settle", bound=BOUND, sync_root=False)
        assert "nested too deep" in next(iter(seen["odd"].values()))
    finally:
        (workspace / "own.txt").unlink()
        remove_deep(workspace)


def remove_deep(top: Path) -> None:
    """What shutil cannot: by descriptors, as paths are too long here."""
    chain = [os.open(top, os.O_RDONLY)]
    with contextlib.suppress(FileNotFoundError):
        while True:
            chain.append(os.open("d", os.O_RDONLY, dir_fd=chain[-1]))
            if len(chain) > 900:
                raise AssertionError("deeper than it was made")
    os.close(chain.pop())
    while chain:
        os.rmdir("d", dir_fd=chain[-1])
        os.close(chain.pop())


NAMES = st.text(
    st.characters(min_codepoint=1, max_codepoint=0x10FFFF, exclude_characters="/"), min_size=1
)


@given(steps=st.lists(st.one_of(st.sampled_from(["..", ".", "dir", "up", "root", ""]), NAMES)))
def test_no_path_at_all_reads_what_is_outside(
    workspace: Path, outside: Path, steps: list[str]
) -> None:
    if not (workspace / "dir").is_symlink():
        plant(workspace, outside)
    for path in ("/".join(steps), "/".join([*steps, "secret"])):
        try:
            data = Walker(str(workspace)).read(path, 0, 100)["data"]
        except (OSError, ValueError):
            continue
        assert base64.b64decode(data) == b"own"


def contents(place: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(place)): (
            path.lstat().st_mode,
            path.lstat().st_uid,
            path.lstat().st_mtime_ns,
            path.read_text() if path.is_file() else "",
        )
        for path in sorted(place.rglob("*"))
    }
