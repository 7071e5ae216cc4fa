"""What client and service of a box-host say to each other.

A call is a POST to `/<call>`. Request and answer are one line of JSON and, behind it, bytes as they
are (a command's input and output, a tar). What may be asked for is the whole of this file: ids that
are ids, names from a list, and no path or program of the host.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, StringConstraints, TypeAdapter

from sidecar.boxhost.boxes import Box, BoxFailed, BoxGone
from sidecar.boxhost.contract import MountSick
from sidecar.boxhost.home import HomeTooLarge
from sidecar.boxhost.mounts import Mount, MountFailed
from sidecar.boxhost.processes import ProcessInfo

UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
SessionId = Annotated[str, StringConstraints(pattern=f"^{UUID}$")]
BOX_ID = f"{UUID}-[0-9]{{1,18}}"
BoxId = Annotated[str, StringConstraints(pattern=f"^{BOX_ID}$")]
ExecId = Annotated[str, StringConstraints(pattern="^[0-9a-f]{32}$")]
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
Identity = tuple[int, int]  # pid, start
FIRST_UID = 1000  # below it are the system's own
MOST_BOUND = 600

BOX = TypeAdapter(Box)
BOXES = TypeAdapter(list[Box])
MOUNT = TypeAdapter(Mount | None)
PROCESSES = TypeAdapter(list[ProcessInfo])

ERRORS: Mapping[str, type[Exception]] = {
    "box_failed": BoxFailed,
    "box_gone": BoxGone,
    "mount_failed": MountFailed,
    "home_too_large": HomeTooLarge,
}


class Ask(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class OfBox(Ask):
    box_id: BoxId


class OfSession(Ask):
    session_id: SessionId


class StartBox(OfBox):
    """`own_disk`: its workspace is not the session's mount."""

    session_id: SessionId
    labels: dict[str, str]
    gateway_socket: Text
    own_disk: bool = False


class InBox(OfBox):
    """A command that runs inside the box."""

    argv: list[Text] = Field(min_length=1)
    cwd: Text
    env: dict[Text, Text]
    timeout: float | None
    exec_id: ExecId


class EndExec(OfBox):
    exec_id: ExecId


class Pack(OfBox):
    kept: list[Text]
    left: list[Text]


class KillProcesses(OfBox):
    processes: list[Identity]


class Key(Ask):
    access_key: Text
    secret_key: SecretStr


class MountSession(OfSession):
    engine: Literal["geesefs", "weed"]
    uid: Annotated[int, Field(ge=FIRST_UID)] | None
    key: Key | None


class Unmount(OfSession):
    gently: bool


class OfMount(OfSession):
    """`daemon` is the mount that the caller knows: another one is not taken for it."""

    daemon: Identity


class Call(Ask):
    bound: float = Field(gt=0, le=MOST_BOUND)
    arguments: dict[str, Any]


class Walking(Call):
    op: Literal["put", "remove", "listing", "read", "take", "fill", "scan", "settle"]


class Mending(Call):
    op: Literal["look", "restore", "sweep_locks"]


class Editing(Call):
    op: Literal["begin", "piece", "finish", "abandon", "mkdir", "move", "delete"]


class Walk(Walking, OfMount):
    pass


class Mend(Mending, OfMount):
    pass


class Edit(Editing, OfMount):
    pass


class WalkInBox(Walking, OfBox):
    """On the box's own disk."""


class MendInBox(Mending, OfBox):
    """On the box's own disk."""


class EditInBox(Editing, OfBox):
    """On the box's own disk."""


def is_box_id(text: str) -> bool:
    return re.fullmatch(BOX_ID, text, re.ASCII) is not None


def pack(plain: Any, data: bytes = b"") -> bytes:
    return json.dumps(plain).encode() + b"\n" + data


def unpack(body: bytes) -> tuple[bytes, bytes]:
    """The line of JSON, not parsed yet, and what is behind it."""
    end = body.find(b"\n")
    return (body, b"") if end < 0 else (body[:end], body[end + 1 :])


def told(error: Exception) -> dict[str, str] | None:
    """An error that is part of the contract, to be sent; None for any other."""
    if isinstance(error, MountSick):
        return {"kind": "mount_sick", "message": error.message, "sick": error.kind}
    for kind, known in ERRORS.items():
        if type(error) is known:
            return {"kind": kind, "message": str(error)}
    return None


def heard(error: Mapping[str, str]) -> Exception | None:
    """The error that was sent; None for one that is not part of the contract."""
    if error["kind"] == "mount_sick":
        return MountSick(error["sick"], error["message"])
    known = ERRORS.get(error["kind"])
    return None if known is None else known(error["message"])
