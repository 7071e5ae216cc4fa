"""Parse what walker.py, mender.py and editor.py answer.

Inside a sandbox these scripts run as the agent's own user, who can put anything in their place. An
answer is therefore taken only if it has the shape of its call, stays within bounds and fits the
request. Whatever does not is `MountSick("died")`, an error of that one workspace.
"""

from __future__ import annotations

import binascii
import errno
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, with_config
from pydantic_core import from_json
from typing_extensions import TypedDict  # pydantic refuses typing's before Python 3.12

from sidecar.boxhost.contract import MountSick

# About 800,000 files that changed in one turn.
MOST_BYTES = 256 << 20
MOST_ITEMS = 2_000_000
MOST_PROBLEMS = 100_000
# Deeper or longer than the walker goes (400 levels of 255 bytes); the store refuses it by file.
LONGEST_PATH = 400 * 256
LONGEST_TEXT = 2000
LONGEST_NAME = 1024  # 255 bytes, each of them shown as four characters
LONGEST_TARGET = 4096
MOST_ERRNO = 4095
# From the year 1 to the year 9999: what datetime can tell. A file may have any other time.
EARLIEST, LATEST = -62_135_596_800.0, 253_402_300_799.0
COMING = ".holdfast-upload-"

ERRNO_KINDS = {
    errno.ENOTCONN: "ENOTCONN",
    errno.EACCES: "EACCES",
    errno.EIO: "EIO",
    errno.ECONNABORTED: "ECONNABORTED",
}


def _plain_text(text: str) -> str:
    """No NUL, which neither a name nor PostgreSQL's JSON can have."""
    if "\0" in text:
        raise ValueError("a NUL")
    return text


def _plain_path(path: str) -> str:
    if "\0" in path or not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise ValueError("not a plain path")
    return path


def _plain_name(name: str) -> str:
    if "/" in name:
        raise ValueError("not a plain name")
    return _plain_path(name)


def _coming_name(name: str) -> str:
    if not name.startswith(COMING):
        raise ValueError("not a file on its way in")
    return _plain_name(name)


def _base64(data: str) -> str:
    try:
        binascii.a2b_base64(data, strict_mode=True)
    except binascii.Error as error:
        raise ValueError("not base64") from error
    return data


def _representable(seconds: float) -> float:
    return min(max(seconds, EARLIEST), LATEST)


Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Nanoseconds = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
Seconds = Annotated[float, Field(allow_inf_nan=False), AfterValidator(_representable)]
Mode = Annotated[int, Field(ge=0, le=0o7777)]
Errno = Annotated[int, Field(ge=0, le=MOST_ERRNO)]
Kind = Literal["file", "directory", "symlink", "special"]
Path = Annotated[str, Field(max_length=LONGEST_PATH), AfterValidator(_plain_path)]
Name = Annotated[str, Field(max_length=LONGEST_NAME), AfterValidator(_plain_name)]
Text = Annotated[str, Field(max_length=LONGEST_TEXT), AfterValidator(_plain_text)]
# A path as it is shown: what is not UTF-8 is escaped, so it may stand for no name at all.
Shown = Annotated[str, Field(max_length=4 * LONGEST_PATH), AfterValidator(_plain_text)]
Target = Annotated[str, Field(max_length=LONGEST_TARGET), AfterValidator(_plain_text)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Md5 = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Token = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Data = Annotated[str, AfterValidator(_base64)]
Paths = Annotated[list[Path], Field(max_length=MOST_ITEMS)]
Reasons = Annotated[dict[Shown, Text], Field(max_length=MOST_PROBLEMS)]

shape = with_config(ConfigDict(strict=True, extra="forbid"))


@shape
class Nothing(TypedDict):
    pass


@shape
class Scan(TypedDict):
    names: Count
    pending: Count
    gone: Count


@shape
class SeenEntry(TypedDict):
    path: Path
    kind: Kind
    size: Count | None
    sha256: Sha256 | None
    mode: Mode
    mtime_ns: Nanoseconds
    target: Target | None
    md5: NotRequired[Md5]


def _of_one_kind(entry: SeenEntry) -> SeenEntry:
    """Only files have a size and hashes, only symlinks a target."""
    is_file = entry["kind"] == "file"
    hashed = entry["sha256"] is not None
    if is_file != (entry["size"] is not None) or hashed != ("md5" in entry):
        raise ValueError("sizes and hashes do not go together")
    if (hashed and not is_file) or (entry["target"] is not None and entry["kind"] != "symlink"):
        raise ValueError("not of one kind")
    return entry


@shape
class Problem(TypedDict):
    path: Path
    errno: Errno | None
    reason: Text


@shape
class Settle(TypedDict):
    token: Token
    full: bool
    entries: Annotated[
        list[Annotated[SeenEntry, AfterValidator(_of_one_kind)]], Field(max_length=MOST_ITEMS)
    ]
    read: Paths
    gone: Paths
    odd: Annotated[dict[Shown, Text], Field(max_length=MOST_ITEMS)]
    problems: Annotated[list[Problem], Field(max_length=MOST_ITEMS)]


def _of_one_tree(seen: Settle) -> Settle:
    """Every path is told once."""
    paths = {entry["path"] for entry in seen["entries"]}
    if len(paths) != len(seen["entries"]) or not paths.isdisjoint(seen["gone"]):
        raise ValueError("a path is told twice")
    return seen


@shape
class ListedEntry(TypedDict):
    name: Name
    kind: Kind
    size: Count
    mtime: Seconds
    mtime_ns: Nanoseconds


@shape
class Listing(TypedDict):
    # A name may come twice: what is not UTF-8 looks like its own escape.
    entries: Annotated[list[ListedEntry], Field(max_length=MOST_ITEMS)]
    upto: Annotated[str, Field(max_length=LONGEST_NAME), AfterValidator(_plain_text)]


@shape
class Read(TypedDict):
    data: Data
    size: Count


@shape
class Take(TypedDict):
    pieces: list[Data | None]


@shape
class Fill(TypedDict):
    taken: Paths


@shape
class Restore(TypedDict):
    symlinks: Count
    modes: Count
    mtimes: Count
    directories: Count
    problems: Reasons


@shape
class SweepLocks(TypedDict):
    paths: Annotated[list[Shown], Field(max_length=MOST_ITEMS)]


@shape
class Begin(TypedDict):
    name: Annotated[str, Field(max_length=LONGEST_NAME), AfterValidator(_coming_name)]


@shape
class Made(TypedDict):
    kind: Literal["file", "directory", "symlink"]
    size: Count | None
    mtime: Seconds


@shape
class Delete(TypedDict):
    files: Count
    directories: Count


@shape
class Failure(TypedDict):
    errno: Errno | None
    error: Annotated[str, AfterValidator(_plain_text)]


FAILURE: TypeAdapter[Failure] = TypeAdapter(Failure)
NOTHING: TypeAdapter[Any] = TypeAdapter(Nothing)
MADE: TypeAdapter[Any] = TypeAdapter(Made)
SHAPES: Mapping[tuple[str, str], TypeAdapter[Any]] = {
    ("walk", "put"): NOTHING,
    ("walk", "remove"): NOTHING,
    ("walk", "own"): NOTHING,
    ("walk", "fill"): TypeAdapter(Fill),
    ("walk", "scan"): TypeAdapter(Scan),
    ("walk", "settle"): TypeAdapter(Annotated[Settle, AfterValidator(_of_one_tree)]),
    ("walk", "listing"): TypeAdapter(Listing),
    ("walk", "read"): TypeAdapter(Read),
    ("walk", "take"): TypeAdapter(Take),
    ("mend", "look"): NOTHING,
    ("mend", "restore"): TypeAdapter(Restore),
    ("mend", "sweep_locks"): TypeAdapter(SweepLocks),
    ("edit", "begin"): TypeAdapter(Begin),
    ("edit", "piece"): NOTHING,
    ("edit", "abandon"): NOTHING,
    ("edit", "finish"): MADE,
    ("edit", "mkdir"): MADE,
    ("edit", "move"): MADE,
    ("edit", "delete"): TypeAdapter(Delete),
}


def _not_too_many(arguments: Mapping[str, Any], found: Listing) -> bool:
    limit = arguments.get("limit", 0)
    return not limit or len(found["entries"]) <= limit


def _not_too_long(arguments: Mapping[str, Any], found: Read) -> bool:
    return _is_piece(found["data"], arguments["size"])


def _piece_by_piece(arguments: Mapping[str, Any], found: Take) -> bool:
    asked, pieces = arguments["pieces"], found["pieces"]
    return len(asked) == len(pieces) and all(
        data is None or _is_piece(data, piece["size"])
        for data, piece in zip(pieces, asked, strict=True)
    )


def _is_piece(data: str, size: int) -> bool:
    return len(data) // 4 * 3 - data.count("=") <= size


# What an answer must be besides well-formed: an answer to this very request.
FITS: Mapping[tuple[str, str], Callable[[Mapping[str, Any], Any], bool]] = {
    ("walk", "listing"): _not_too_many,
    ("walk", "read"): _not_too_long,
    ("walk", "take"): _piece_by_piece,
}


def parse(tool: str, op: str, arguments: Mapping[str, Any], data: bytes) -> dict[str, Any]:
    """What `tool` (`walk`, `mend` or `edit`) says to `op`.

    Raises: MountSick, for an error that it tells, and of kind `died` for what is no answer.
    """
    if len(data) > MOST_BYTES:
        raise _nonsense(op)
    try:
        answer = from_json(data, allow_inf_nan=False)
        if isinstance(answer, dict) and answer.keys() == {"ok"}:
            found = SHAPES[tool, op].validate_python(answer["ok"])
        else:
            raise _told(FAILURE.validate_python(answer))
    except ValueError as error:
        raise _nonsense(op) from error
    fits = FITS.get((tool, op))
    if fits is not None and not fits(arguments, found):
        raise _nonsense(op)
    result: dict[str, Any] = found
    return result


def _told(failure: Failure) -> MountSick:
    number = failure["errno"]
    kind = ERRNO_KINDS.get(number or 0) or f"errno {number}"
    return MountSick(kind, f"the workspace answered {failure['error'][:LONGEST_TEXT]}")


def _nonsense(op: str) -> MountSick:
    return MountSick("died", f"the workspace gave no valid answer to {op}")
