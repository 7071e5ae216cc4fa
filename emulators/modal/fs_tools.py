"""What Modal puts into a sandbox for the SDK's files API: one operation, given as JSON. Runs inside
the box, with the standard library alone; its source is what is sent."""

from __future__ import annotations

import errno
import grp
import json
import pwd
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

KINDS: tuple[tuple[type[OSError], str], ...] = (
    (FileNotFoundError, "NotFound"),
    (NotADirectoryError, "NotDirectory"),
    (IsADirectoryError, "IsDirectory"),
    (PermissionError, "PermissionDenied"),
    (FileExistsError, "PathAlreadyExists"),
)


def described(path: Path) -> dict[str, Any]:
    """Of the path itself: a link is not followed."""
    found = path.lstat()
    kinds = {stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
    entry = {
        "name": path.name,
        "path": str(path),
        "type": kinds.get(stat.S_IFMT(found.st_mode), "file"),
        "size": found.st_size,
        "mode": stat.S_IMODE(found.st_mode),
        "permissions": stat.filemode(found.st_mode),
        "owner": _name(pwd.getpwuid, found.st_uid, "pw_name"),
        "group": _name(grp.getgrgid, found.st_gid, "gr_name"),
        "modified_time": found.st_mtime,
    }
    if path.is_symlink():
        entry["symlink_target"] = str(path.readlink())
    return entry


def _name(look_up: Any, number: int, field: str) -> str:
    try:
        return str(getattr(look_up(number), field))
    except KeyError:
        return str(number)


def do(operation: str, path: Path, more: dict[str, Any]) -> None:
    if operation == "WriteFile":
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
    elif operation == "ReadFile":
        with path.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
    elif operation == "ListFiles":
        json.dump([described(each) for each in sorted(path.iterdir())], sys.stdout)
    elif operation == "Stat":
        json.dump(described(path), sys.stdout)
    elif operation == "MakeDirectory":
        path.mkdir(parents=more["parents"], exist_ok=more["parents"])
    elif operation == "Remove":
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        elif more["recursive"]:
            shutil.rmtree(path)
        else:
            path.rmdir()
    else:
        raise OSError(0, f"{operation} is not emulated")


def kind(error: OSError) -> str:
    if error.errno == errno.ENOTEMPTY:
        return "DirectoryNotEmpty"
    return next((name for cls, name in KINDS if isinstance(error, cls)), "Other")


def main() -> int:
    ((operation, more),) = json.loads(sys.argv[1]).items()
    try:
        do(operation, Path(more["path"]), more)
    except OSError as error:
        said = {"error_kind": kind(error), "message": error.strerror, "detail": str(error)}
        json.dump(said, sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
