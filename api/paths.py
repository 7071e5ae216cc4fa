"""The one place that decides whether a path may name something in a workspace."""

from __future__ import annotations

from contracts.errors import InvalidPath

MAX_BYTES = 1024


def workspace_path(path: str, *, root: bool = False) -> str:
    """The path itself, when it is relative, plain and inside the workspace.

    `root` allows the empty path, which names the workspace.

    Raises: InvalidPath.
    """
    if path == "" and root:
        return path
    try:
        size = len(path.encode("utf-8"))
    except UnicodeEncodeError:
        raise _refused("it is not valid Unicode") from None
    if size > MAX_BYTES:
        raise _refused(f"it has {size} bytes, the limit is {MAX_BYTES}")
    if "\0" in path:
        raise _refused("it contains NUL")
    if "\\" in path:
        raise _refused("it contains a backslash")
    if path.startswith("/"):
        raise _refused("it is absolute")
    segments = path.split("/")
    if "" in segments:
        raise _refused("it has an empty segment")
    if "." in segments or ".." in segments:
        raise _refused("it has a `.` or `..` segment")
    return path


def _refused(why: str) -> InvalidPath:
    return InvalidPath(
        f"This path cannot be used: {why}.",
        hint="Give a path relative to the workspace, such as src/main.py.",
    )
