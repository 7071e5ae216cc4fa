"""What the walker writes stays in the workspace: no `..` and no planted link leads out of it, in
whatever position of a path."""

from __future__ import annotations

import base64
import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

from sidecar.boxhost.walker import Walker

SECRET = b"somebody else's"
UID = 12345


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    place = tmp_path / "outside"
    place.mkdir()
    (place / "file").write_bytes(SECRET)
    (place / "deep").mkdir()
    (place / "deep" / "file").write_bytes(SECRET)
    return place


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    place = tmp_path / "session" / "workspace"
    (place / "real").mkdir(parents=True)
    return place


def state(place: Path) -> dict[str, tuple[Any, ...]]:
    """All that a write or a chown would change."""
    found = {}
    for path in (place, *sorted(place.rglob("*"))):
        info = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (info.st_mode, info.st_uid, info.st_gid, info.st_size, data)
    return found


def piece(path: str, offset: int = 0, data: bytes = b"mine") -> dict[str, Any]:
    return {"path": path, "offset": offset, "data": base64.b64encode(data).decode()}


@pytest.mark.parametrize("uid", [None, os.geteuid()])
@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../x",
        "../../outside/file",
        "../../outside/new",
        "real/../../../outside/file",
        "real/../x",
        "new/../../x",
        "real/..",
        ".",
        "./x",
        "real/.",
        "real/./x",
        "",
        "/x",
        "real//x",
        "real/",
        "//",
    ],
)
def test_fill_takes_plain_paths_only(
    workspace: Path, outside: Path, path: str, uid: int | None
) -> None:
    before = state(workspace.parent.parent)
    with pytest.raises(OSError, match="not a plain path"):
        Walker(str(workspace)).fill([piece(path)], uid)
    assert state(workspace.parent.parent) == before


@pytest.mark.parametrize("uid", [None, os.geteuid()])
@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize(
    ("link", "target", "path"),
    [
        ("link", "outside", "link/file"),
        ("link", "outside", "link/new"),
        ("link", "outside", "link/deep/file"),
        ("link", "outside/deep", "link/file"),
        ("real/link", "outside", "real/link/file"),
        ("real/link", "outside", "real/link/made/new"),
        ("link", "outside/file", "link"),
        ("link", "outside/missing", "link"),
        ("real/link", "outside/file", "real/link"),
        ("real/link", "outside/missing", "real/link"),
        ("link", "outside", "link"),
    ],
)
def test_fill_writes_nothing_through_a_link(
    workspace: Path,
    outside: Path,
    link: str,
    target: str,
    path: str,
    offset: int,
    uid: int | None,
) -> None:
    (workspace / link).symlink_to(outside.parent / target)
    before = state(outside)
    with contextlib.suppress(OSError):
        Walker(str(workspace)).fill([piece(path, offset)], uid)
    assert state(outside) == before
    assert (workspace / link).is_symlink()


def test_fill_writes_nothing_where_the_workspace_is_a_link(workspace: Path, outside: Path) -> None:
    workspace.rename(workspace.with_name("moved"))
    workspace.symlink_to(outside)
    before = state(outside)
    with pytest.raises(OSError, match=r"."):
        Walker(str(workspace)).fill([piece("new")], None)
    assert state(outside) == before


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_directory_that_is_swapped_for_a_link_gives_nothing_away(
    workspace: Path, outside: Path, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent is quicker than we are between the making of a directory and its chown."""
    steps = ["a", "b", "c"]
    make, chown = os.mkdir, os.chown
    given: list[Path] = []

    def swap(name: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        make(name, mode, dir_fd=dir_fd)
        if name == steps[depth - 1]:
            os.rmdir(name, dir_fd=dir_fd)
            os.symlink(outside, name, dir_fd=dir_fd)

    def follow(name: str, uid: int, gid: int, *, dir_fd: int, follow_symlinks: bool = True) -> None:
        """Notes whom a chown reaches: an ordinary user may not make it."""
        there = Path(f"/proc/self/fd/{dir_fd}").readlink() / name
        given.append(there.resolve() if follow_symlinks else there)
        if os.geteuid() == 0:
            chown(name, uid, gid, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "mkdir", swap)
    monkeypatch.setattr(os, "chown", follow)
    before = state(outside)
    with pytest.raises(OSError, match=r"."):
        Walker(str(workspace)).fill([piece("/".join([*steps, "file"]))], UID)
    assert state(outside) == before
    assert given
    assert all(place.is_relative_to(workspace) for place in given)
