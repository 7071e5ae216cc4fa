"""The transcript: one JSON object a line, told apart by `type`.

New types are additive; a changed meaning bumps `v`. What cannot be understood
becomes a `raw` event: a transcript never loses a line and decoding never raises.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)


def _any_str(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")  # noqa: TRY004 - pydantic reports ValueError
    return value


# Agents print anything: pydantic's own str refuses lone surrogates, this one keeps them.
Text = Annotated[str, PlainValidator(_any_str), WithJsonSchema({"type": "string"})]


class EventBase(BaseModel):
    """What every event has. `seq` is given by the database, dense and growing per session."""

    model_config = ConfigDict(frozen=True, extra="allow")

    v: int = 1
    seq: int | None = None
    session_id: UUID | None = None
    turn_id: UUID | None = None
    at: datetime = Field(default_factory=lambda: datetime.now(UTC))


class ErrorInfo(BaseModel):
    """An error inside an event, in the shape of an HTTP error body."""

    model_config = ConfigDict(frozen=True, extra="allow")

    code: str
    message: Text
    hint: Text = ""
    retryable: bool = False


class TurnStarted(EventBase):
    type: Literal["turn.started"] = "turn.started"
    harness: str
    provider: str
    model: str | None = None
    reasoning: str | None = None
    permissions: str = "auto"
    egress: str = "off"


class TurnCompleted(EventBase):
    type: Literal["turn.completed"] = "turn.completed"
    stop_reason: str = "end_turn"


class TurnFailed(EventBase):
    type: Literal["turn.failed"] = "turn.failed"
    error: ErrorInfo


class TurnCancelled(EventBase):
    type: Literal["turn.cancelled"] = "turn.cancelled"
    reason: Text = ""


class TurnInterrupted(EventBase):
    """The turn ended because something under it died; what it had done so far is kept."""

    type: Literal["turn.interrupted"] = "turn.interrupted"
    error: ErrorInfo


class SandboxCreating(EventBase):
    type: Literal["sandbox.creating"] = "sandbox.creating"
    provider: str


class SandboxReady(EventBase):
    type: Literal["sandbox.ready"] = "sandbox.ready"
    provider: str
    sandbox_id: str
    took: float
    network: Literal["gateway", "provider"] = "gateway"  # whose rules hold for what it may reach


class SandboxAttached(EventBase):
    type: Literal["sandbox.attached"] = "sandbox.attached"
    provider: str
    sandbox_id: str


class SandboxGone(EventBase):
    type: Literal["sandbox.gone"] = "sandbox.gone"
    provider: str
    sandbox_id: str
    reason: Text = ""


class SandboxDestroyed(EventBase):
    type: Literal["sandbox.destroyed"] = "sandbox.destroyed"
    provider: str
    sandbox_id: str
    proof: Text = ""


class MountReady(EventBase):
    type: Literal["mount.ready"] = "mount.ready"
    engine: str
    why: Text = ""
    took: float


class MountLost(EventBase):
    type: Literal["mount.lost"] = "mount.lost"
    engine: str
    reason: Text


class MountRestored(EventBase):
    type: Literal["mount.restored"] = "mount.restored"
    engine: str
    took: float


class WorkspaceRestored(EventBase):
    """What the file system had forgotten was put back from the last manifest."""

    type: Literal["workspace.restored"] = "workspace.restored"
    symlinks: int = 0
    modes: int = 0
    mtimes: int = 0
    directories: int = 0
    took: float = 0.0
    problems: dict[str, Text] = {}


class WorkspaceVerified(EventBase):
    """A new sandbox's workspace beside the last receipt: so many `of` its files are in the store
    as it says. `changed` names some of the others: what a turn without a receipt, a process between
    turns or a user has changed since."""

    type: Literal["workspace.verified"] = "workspace.verified"
    files: int
    of: int
    changed: list[Text] = []
    took: float = 0.0


class WorkspaceSwept(EventBase):
    """Stale locks that a killed process had left were removed."""

    type: Literal["workspace.swept"] = "workspace.swept"
    paths: list[Text]
    reason: Text = ""


class RunAdopted(EventBase):
    """A new sidecar goes on with a turn that the one before it had begun."""

    type: Literal["run.adopted"] = "run.adopted"
    reason: Text = ""


class RunGap(EventBase):
    """The sidecar's journal of the turn lost lines that the transcript has: what happened then may
    be told twice or not at all."""

    type: Literal["run.gap"] = "run.gap"
    lines: int
    reason: Text = ""


class StateCaptured(EventBase):
    """The harness's own state is in the state bucket: the conversation can be loaded from it."""

    type: Literal["state.captured"] = "state.captured"
    harness: str
    bytes: int
    took: float


class StateFailed(EventBase):
    """The harness's own state was not stored; the next cold start uses an older one, or tells the
    conversation by a handoff."""

    type: Literal["state.failed"] = "state.failed"
    harness: str
    reason: Text


class Resume(EventBase):
    """Which rung of the resume ladder brought the conversation back."""

    type: Literal["resume"] = "resume"
    rung: Literal["new", "warm", "native", "repaired", "handoff"]
    carried: Text = ""
    dropped: Text = ""
    steps: dict[str, float] = {}  # seconds: server, state, start, load


class Message(EventBase):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant"]
    text: Text


class Thought(EventBase):
    type: Literal["thought"] = "thought"
    text: Text


class ToolCall(EventBase):
    type: Literal["tool.call"] = "tool.call"
    tool_call_id: Text
    title: Text = ""
    kind: str = "other"
    input: Any = None
    paths: list[Text] = []


class ToolUpdate(EventBase):
    """News of a running tool: `output` is all so far, `output_delta` goes behind what was there."""

    type: Literal["tool.update"] = "tool.update"
    tool_call_id: Text
    title: Text | None = None
    status: str | None = None
    input: Any = None
    output: Text | None = None
    output_delta: Text | None = None


class ToolResult(EventBase):
    """The end of a tool call, with its whole output."""

    type: Literal["tool.result"] = "tool.result"
    tool_call_id: Text
    status: Literal["completed", "failed"]
    output: Text = ""
    paths: list[Text] = []
    diffs: list[Any] = []


class Plan(EventBase):
    type: Literal["plan"] = "plan"
    entries: list[Any]


class PermissionAsked(EventBase):
    """The harness waits for an answer before it does something. Each of `options` has an
    `option_id`, a `name`, and a `kind`: allow_once, allow_always, reject_once, reject_always."""

    type: Literal["permission.asked"] = "permission.asked"
    permission_id: str
    tool_call_id: Text | None = None
    title: Text = ""
    kind: str = "other"
    input: Any = None
    options: list[Any] = []


class PermissionAnswered(EventBase):
    """The harness has its answer; no `option_id`: the request was withdrawn. `by` is `auto` when
    nobody was asked, `timeout` when nobody answered in time, `cancel` when the turn was cancelled,
    else who answered."""

    type: Literal["permission.answered"] = "permission.answered"
    permission_id: str
    option_id: Text | None = None
    kind: str | None = None
    by: str = "auto"
    reason: Text = ""


class Usage(EventBase):
    """What one request to a model used, as the gateway counted it. `input_tokens` are all that
    went in; `cached_tokens` and `cache_write_tokens` are the part of them that was read from the
    vendor's cache or written to it. `cost` is in dollars; without it the model has no price. `cut`:
    the harness broke it off. `estimated`: the vendor did not come to say. `side`: for a
    title, a summary or the like. `late`: of a request that began before this turn."""

    type: Literal["usage"] = "usage"
    model: Text | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    cost: float | None = None
    outcome: Literal["completed", "cut", "failed"] = "completed"
    estimated: bool = False
    side: bool = False
    late: bool = False
    took: float | None = None


class ModelFailed(EventBase):
    """A request to a model failed, and the harness may have asked again. `status` is the HTTP one;
    none: nobody knows. `code` is `budget_spent` for a request that the gateway did not let out."""

    type: Literal["model.failed"] = "model.failed"
    status: int | None = None
    code: str = ""
    message: Text = ""
    model: Text | None = None
    side: bool = False
    late: bool = False


class Egress(EventBase):
    """What went, or was not let, out of the sandbox through the gateway's proxy: one connection, or
    several alike in `connections`, of which 0 says that it was told before and went on. `reason` is
    why it was refused, or why one that was allowed came to nothing."""

    type: Literal["egress"] = "egress"
    host: Text
    port: int | None = None
    method: Text = ""
    verdict: Literal["allowed", "refused"]
    reason: Text = ""
    connections: int = 1
    bytes_up: int = 0
    bytes_down: int = 0


class Receipt(EventBase):
    """Proof that all the turn left behind is in the store. `window` is how many seconds of work a
    sandbox's sudden end may cost, with an engine that copies; `lost` says that it did."""

    type: Literal["receipt"] = "receipt"
    engine: str
    files: int
    bytes: int
    manifest_sha256: str
    took: float
    window: float | None = None
    lost: Text = ""


class UnprovenCode(StrEnum):
    """Why a file is not proven to be in the store."""

    MISSING = "missing"  # the store does not have it
    SIZE_DIFFERS = "size_differs"
    CONTENT_DIFFERS = "content_differs"
    NOT_DELETED = "not_deleted"  # the store still has what was deleted in the sandbox
    UNSUPPORTED = "unsupported"  # its name, link target or depth cannot be stored
    UNREADABLE = "unreadable"  # the file system answered with an error


class ReceiptFailed(EventBase):
    """The turn is not durable: what is not proven to be in the store, and why. `files` has a reason
    in words for each file, `codes` its UnprovenCode."""

    type: Literal["receipt.failed"] = "receipt.failed"
    engine: str
    reason: Text
    files: dict[str, Text] = {}
    codes: dict[str, Text] = {}


class Quota(EventBase):
    """The turn left more behind than a session may keep: what it left is proven all the same, and
    the next turn is refused until files are deleted or the quota is raised. A `most` is None where
    there is none."""

    type: Literal["quota"] = "quota"
    files: int
    bytes: int
    most_files: int | None = None
    most_bytes: int | None = None
    message: Text = ""


class Raw(EventBase):
    """Anything we do not know, kept as it came."""

    type: Literal["raw"] = "raw"
    source: str = ""
    data: Any = None


KnownEvent = Annotated[
    TurnStarted
    | TurnCompleted
    | TurnFailed
    | TurnCancelled
    | TurnInterrupted
    | SandboxCreating
    | SandboxReady
    | SandboxAttached
    | SandboxGone
    | SandboxDestroyed
    | MountReady
    | MountLost
    | MountRestored
    | WorkspaceRestored
    | WorkspaceVerified
    | WorkspaceSwept
    | RunAdopted
    | RunGap
    | StateCaptured
    | StateFailed
    | Resume
    | Message
    | Thought
    | ToolCall
    | ToolUpdate
    | ToolResult
    | Plan
    | PermissionAsked
    | PermissionAnswered
    | Usage
    | Egress
    | ModelFailed
    | Receipt
    | ReceiptFailed
    | Quota
    | Raw,
    Field(discriminator="type"),
]
Event = KnownEvent

TURN_ENDS = (TurnCompleted, TurnFailed, TurnCancelled, TurnInterrupted)
TURN_END_TYPES = frozenset(str(cls.model_fields["type"].default) for cls in TURN_ENDS)

_ADAPTER: TypeAdapter[Event] = TypeAdapter(Event)


def to_dict(event: EventBase) -> dict[str, Any]:
    """The event as plain JSON values, fields without a value left out."""
    plain = event.model_dump(exclude_none=True)
    plain["at"] = event.at.isoformat()
    for key in ("session_id", "turn_id"):
        if key in plain:
            plain[key] = str(plain[key])
    return plain


def encode(event: EventBase) -> bytes:
    """One line of NDJSON. ASCII, so that NUL and lone surrogates travel as escapes."""
    return dumps(to_dict(event)) + b"\n"


def dumps(value: Any) -> bytes:
    """Compact ASCII JSON."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode("ascii")


def from_dict(plain: Any) -> Event:
    """The event in `plain`; whatever is not one of ours becomes `raw`. Never raises."""
    try:
        return _ADAPTER.validate_python(plain)
    except ValidationError:
        return Raw(source="undecodable", data=plain, **_envelope(plain))


def decode(line: bytes | str) -> Event:
    """One line of NDJSON back into an event. Never raises."""
    try:
        plain = json.loads(line)
    except ValueError:
        text = line if isinstance(line, str) else line.decode("utf-8", "backslashreplace")
        return Raw(source="malformed", data=text)
    return from_dict(plain)


def _envelope(plain: Any) -> dict[str, Any]:
    """The place in the transcript of an event whose own fields we do not understand."""
    if not isinstance(plain, dict):
        return {}
    kept = {key: plain[key] for key in ("seq", "session_id", "turn_id", "at") if key in plain}
    try:
        EventBase.model_validate(kept)
    except ValidationError:
        return {}
    return kept
