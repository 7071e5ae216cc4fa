"""Parse the first line of what boxd answers.

The sandbox's user could take boxd's place, so a line is taken only if it has the shape of its call
and stays within bounds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict  # pydantic refuses typing's before Python 3.12

MOST_BYTES = 1 << 30
MOST_PACKED_BYTES = 512 << 20
MOST_WALKED_BYTES = 256 << 20
MOST_PROCESSES = 100_000
MOST_INODES = 1_000_000
LONGEST_MESSAGE = 2000
MOST_PID = 1 << 22
# Why boxd says no. Every other word says nothing.
KINDS = frozenset({"missing", "large", "hang", "died"})


class Refused(Exception):
    """boxd says no. `kind` is `missing`, `large`, `hang`, `died` or nothing."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


shape = with_config(ConfigDict(strict=True, extra="forbid"))
Size = Annotated[int, Field(ge=0, le=MOST_BYTES)]
Pid = Annotated[int, Field(ge=1, le=MOST_PID)]
Inode = Annotated[int, Field(ge=0, lt=1 << 64)]
ExitCode = Annotated[int, Field(ge=0, le=255)]


@shape
class Plain(TypedDict):
    size: Size


@shape
class Exec(TypedDict):
    size: Size
    exit_code: ExitCode
    stdout: Size


def _within_output(head: Exec) -> Exec:
    if head["stdout"] > head["size"]:
        raise ValueError("more on stdout than there is")
    return head


@shape
class Process(TypedDict):
    token: Annotated[str, Field(pattern=r"^[0-9]{1,7}:[0-9]{1,20}$")]
    pid: Pid
    argv: list[str]  # may hold lone surrogates: the path of a program need not be UTF-8
    memory: NotRequired[Annotated[int, Field(ge=0, lt=1 << 63)]]  # an older image does not tell


@shape
class Processes(TypedDict):
    size: Size
    processes: Annotated[list[Process], Field(max_length=MOST_PROCESSES)]


@shape
class Held(TypedDict):
    size: Size
    inodes: Annotated[list[Inode], Field(max_length=MOST_INODES)]


@shape
class Mounted(TypedDict):
    size: Size
    mounted: bool
    alive: bool


@shape
class Thawed(TypedDict):
    size: Size
    was_frozen: bool


@dataclass(frozen=True)
class Answer:
    """What the first line says, and how many bytes may follow."""

    head: TypeAdapter[Any]
    most_bytes: int = 0


PLAIN = Answer(TypeAdapter(Plain))
MOUNTED = Answer(TypeAdapter(Mounted))
WALKED = Answer(PLAIN.head, MOST_WALKED_BYTES)
ANSWERS: Mapping[str, Answer] = {
    "exec": Answer(TypeAdapter(Annotated[Exec, AfterValidator(_within_output)]), MOST_BYTES),
    "read": Answer(PLAIN.head, MOST_BYTES),
    "pack": Answer(PLAIN.head, MOST_PACKED_BYTES),
    "processes": Answer(TypeAdapter(Processes)),
    "held": Answer(TypeAdapter(Held)),
    "thaw": Answer(TypeAdapter(Thawed)),
    "mount": MOUNTED,
    "unmount": MOUNTED,
    "mounted": MOUNTED,
    "walk": WALKED,
    "mend": WALKED,
    "edit": WALKED,
}


def parse_head(op: str, line: bytes) -> dict[str, Any]:
    """The first line of an answer to `op`; `size` bytes follow it.

    Raises: Refused; ValueError, for what is no answer.
    """
    expected = ANSWERS.get(op, PLAIN)
    try:
        plain = json.loads(line or b"null")
        if isinstance(plain, dict) and "error" in plain:
            raise _refusal(plain)
        head: dict[str, Any] = expected.head.validate_python(plain)
    except (ValueError, RecursionError):
        raise ValueError(f"not a valid answer to {op}") from None
    if head["size"] > expected.most_bytes:
        raise ValueError(f"{head['size']} bytes to {op}")
    return head


def _refusal(plain: Mapping[str, Any]) -> Refused:
    kind = plain.get("kind")
    message = str(plain["error"])[:LONGEST_MESSAGE].replace("\0", "")
    message = message.encode("utf-8", "backslashreplace").decode()
    return Refused(message, kind if isinstance(kind, str) and kind in KINDS else "")
