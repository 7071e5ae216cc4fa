"""HTTP bodies: what the api answers and takes, and what api and sidecar say to each other."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from contracts.egress import Egress, HostPatterns
from contracts.events import Text

Permissions = Literal["ask", "auto"]
# mount: as the stack is set up to; checkpoint: copied from the sandbox's own disk
Durability = Literal["mount", "checkpoint"]
SessionState = Literal["running", "waiting", "idle", "not_durable"]
TurnState = Literal["queued", "running", "completed", "failed", "cancelled", "interrupted"]

MAX_PROMPT_CHARS = 1_000_000


class Body(BaseModel):
    """An answer: a field that a newer service adds does not break an older reader."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Asked(Body):
    """A request: a field we do not know is a mistake to be told, not to be dropped."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Choices(Asked):
    """How a turn runs; what is left out falls back to the session's, then to the settings'."""

    harness: str | None = None
    provider: str | None = None
    model: str | None = Field(None, max_length=200)
    reasoning: str | None = Field(None, max_length=50)
    permissions: Permissions | None = None
    durability: Durability | None = None


class Budget(Asked):
    """What a session may spend on models in all; a request beyond it is refused. Tokens are those
    that go in and come out, read from a cache or not; the cost is in dollars, by the table of
    prices."""

    tokens: int | None = Field(None, ge=1, le=10**15)
    cost: float | None = Field(None, gt=0, le=10**9, allow_inf_nan=False)


class Totals(Body):
    """What models were used, as the gateway counted it. `cost` is that of the requests that have a
    price, None if none has; `unpriced` are the others. `estimated` are requests that were cut off
    before their vendor had said what they used."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = None
    unpriced: int = 0
    estimated: int = 0


class SessionCreate(Choices):
    title: str = Field("", max_length=200)
    egress: Egress | None = None
    egress_hosts: HostPatterns | None = None  # with `allow`: besides the stack's own list
    budget: Budget | None = None


class SessionPatch(Asked):
    """What is named is changed; a budget of null is none."""

    title: str | None = Field(None, max_length=200)
    archived: StrictBool | None = None
    egress: Egress | None = None  # from the next turn on
    egress_hosts: HostPatterns | None = None
    budget: Budget | None = None


class LastTurn(Body):
    """How the newest turn stands; `durable` is None while it runs."""

    id: UUID
    state: TurnState
    harness: str
    provider: str
    ended_at: datetime | None
    durable: bool | None
    error: dict[str, Any] | None


class Match(Body):
    """Where a search found a session's transcript: an event, and the text around the hit."""

    seq: int
    text: Text


class Session(Body):
    """`last_seq` is also the number of events. `files` and `bytes` are of the last receipt."""

    id: UUID
    title: str
    harness: str
    provider: str
    model: str | None
    reasoning: str | None
    permissions: Permissions
    durability: Durability = "mount"
    egress: Egress = "off"  # where the provider's network is the gateway's
    egress_hosts: list[str] = []
    archived: bool
    created_at: datetime
    updated_at: datetime
    last_seq: int
    running_turn: UUID | None
    queued: int = 0  # turns that wait for the running one
    durable: bool | None = None  # whether the last turn that ended has a receipt; None: none did
    # waiting: for the answer to a permission; not_durable: the last turn that ended has no receipt
    state: SessionState = "idle"
    waiting: int = 0  # permissions that nobody has answered
    files: int | None = None
    bytes: int | None = None
    last_turn: LastTurn | None = None
    usage: Totals = Totals()
    budget: Budget | None = None
    match: Match | None = None  # of a search
    made_by: str = "owner"  # the name of the token that made it


class SessionPage(Body):
    sessions: list[Session]
    next_cursor: str | None = None


class SessionContents(Body):
    """What a delete would remove."""

    session_id: UUID
    turns: int
    events: int
    files: int
    bytes: int
    state_objects: int  # manifests and the harnesses' own state
    sandboxes: int
    running_turn: UUID | None
    queued: int


class SessionDeleted(Body):
    """What a delete removed."""

    session_id: UUID
    sandboxes: int
    objects: int
    state_objects: int = 0  # manifests and the harnesses' own state
    turns: int
    events: int


class TurnCreate(Choices):
    prompt: str = Field(min_length=1)
    queue: StrictBool = False  # wait for the running turn instead of being refused


class ReceiptBody(Body):
    """Proof that all a turn left is in the store; `seq` is the transcript's event that says so."""

    engine: str
    files: int
    bytes: int
    manifest_sha256: str
    took: float
    window: float | None = None
    lost: str = ""
    seq: int


class NotDurableBody(Body):
    """What a turn left and could not be proven to be in the store: a reason for each file."""

    engine: str
    reason: Text
    files: dict[str, Text] = {}


class ManifestEntry(Body):
    path: str
    kind: Literal["file", "directory", "symlink", "special"]
    size: int | None = None
    sha256: str | None = None
    mode: int | None = None
    mtime_ns: int | None = None
    target: str | None = None


class Manifest(Body):
    """All that a receipt stands for; the sha256 of its bytes is the receipt's."""

    v: int
    session_id: UUID
    turn_id: UUID
    epoch: int
    engine: str
    entries: list[ManifestEntry]


class Turn(Body):
    """Of a queued turn, `first_seq` is the earliest that it can have."""

    id: UUID
    session_id: UUID
    state: TurnState
    prompt: str
    harness: str
    provider: str
    model: str | None
    reasoning: str | None
    permissions: Permissions
    durability: Durability = "mount"
    egress: Egress = "off"
    egress_hosts: list[str] = []
    created_at: datetime
    ended_at: datetime | None
    first_seq: int
    last_seq: int
    error: dict[str, Any] | None
    receipt: ReceiptBody | None
    not_durable: NotDurableBody | None = None
    usage: Totals = Totals()


class PermissionOption(Body):
    option_id: Text
    name: Text = ""
    kind: str = ""


class Permission(Body):
    """What a harness asked for, at the event `seq`. `closed`: the turn ended before an answer."""

    permission_id: str
    session_id: UUID
    turn_id: UUID
    seq: int
    state: Literal["pending", "answered", "closed"]
    tool_call_id: Text | None
    title: Text
    kind: str
    input: Any
    options: list[PermissionOption]
    asked_at: datetime
    expires_at: datetime | None  # when it will be rejected, while nobody answers
    option_id: Text | None
    answered_by: str | None
    answered_at: datetime | None


class PermissionList(Body):
    permissions: list[Permission]


class PermissionChoice(Asked):
    option_id: Text


class TurnPage(Body):
    turns: list[Turn]
    next_cursor: str | None = None


class FileEntry(Body):
    """One name in a directory of the workspace. `path` is relative to the workspace."""

    path: str
    name: str
    kind: Literal["file", "directory", "symlink"]
    size: int | None = None
    modified_at: datetime | None = None
    durable: bool | None = None  # of the live view: whether it is as the last receipt has it


class FilePage(Body):
    path: str
    entries: list[FileEntry]
    next_cursor: str | None = None
    removed: list[str] = []  # of the live view: what the last receipt has here and is gone


Via = Literal["mount", "store"]


class Changed(FileEntry):
    """What a user has put into the workspace; `via` the sandbox's mount, or the store."""

    via: Via


class FilesDeleted(Body):
    path: str
    files: int
    directories: int
    via: Via


class FolderCreate(Asked):
    path: str


class Move(Asked):
    source: str
    target: str


class Edited(Asked):
    """What a change of objects does to the paths of the last manifest: one is moved, or gone."""

    source: str
    target: str | None = None


class Hold(Asked):
    """Keep the workspace from being mounted while the api changes its objects."""

    edits: list[Edited] = []


class Change(Body):
    """How a turn left a path; a size is None for what is no file."""

    path: str
    kind: Literal["file", "directory", "symlink", "special"]
    size: int | None = None
    size_before: int | None = None


class Changes(Body):
    """What a turn left otherwise than the last receipt before it, that of turn `since`."""

    turn_id: UUID
    since: UUID | None
    added: list[Change]
    changed: list[Change]
    removed: list[Change]
    cut: bool = False  # there are more than are listed


class SandboxBody(Body):
    session_id: UUID
    sandbox_id: str
    provider: str
    state: Literal["running", "stopped", "suspended", "gone", "unknown"]
    engine: str | None = None
    created_at: datetime | None = None
    warm_until: datetime | None = None
    in_use: bool = False  # a turn runs in it
    memory: int | None = None  # bytes that its processes have together; None: nobody tells
    title: str = ""  # of its session


class SandboxList(Body):
    """`asked` names the providers that answered in full: what they do not list does not exist. Of
    every other provider nothing is known."""

    sandboxes: list[SandboxBody]
    asked: list[str] = Field(default_factory=list)


class Killed(Body):
    """`killed` is false when the session had no sandbox."""

    session_id: UUID
    killed: bool
    sandbox_id: str | None = None


class Released(Body):
    """What the sidecar let go of for a session that is being deleted."""

    session_id: UUID
    sandboxes: int
    mounts: int


class Destroyed(Body):
    """A sandbox that was ended on request; `lived` is false when it was gone already."""

    provider: str
    sandbox_id: str
    lived: bool
    proof: str


class Leak(Body):
    """A sandbox that lives, or may live, and that nothing answers for.

    `code` tells the reasons apart: no entry of the ledger has it (`unknown`), its session has
    several (`rival`), or its provider cannot be asked whether it is gone (`unproven`).
    """

    provider: str
    sandbox_id: str | None
    session_id: UUID | None
    since: datetime | None
    code: Literal["unknown", "rival", "unproven"] = "unknown"
    reason: str


class LeakList(Body):
    leaks: list[Leak]


class HarnessBody(Body):
    name: str
    title: str
    can_ask: bool
    models: list[str] = []
    efforts: list[str] = []


class ProviderBody(Body):
    name: str
    title: str
    available: bool
    reason: str = ""
    engine: str | None = None
    engine_why: str = ""
    # gateway: what a session may reach is its `egress`; provider: whatever the provider lets it
    network: Literal["gateway", "provider"] = "gateway"


class Capabilities(Body):
    """What this stack can run, told by the sidecar."""

    harnesses: list[HarnessBody]
    providers: list[ProviderBody]
    default_harness: str
    default_provider: str


class PastTurn(Body):
    """An earlier turn as a handoff needs it. What was long is cut, and `cut` says so."""

    turn_id: UUID
    epoch: int
    harness: str
    state: TurnState
    prompt: str
    said: str = ""  # what the assistant said; of a long text the end
    tools: list[str] = []  # titles of the tools it used, in order
    paths: list[str] = []  # files they touched
    plan: list[dict[str, Any]] = []  # as it stood at the end
    error: str | None = None
    cut: bool = False


class Spent(Body):
    """What a session has used so far, of what its budget counts."""

    tokens: int = 0
    cost: float = 0.0


class RunRequest(Asked):
    """A turn, as the api hands it to the sidecar. Idempotent by `turn_id`."""

    turn_id: UUID
    session_id: UUID
    epoch: int
    prompt: str
    harness: str
    provider: str
    model: str | None = None
    reasoning: str | None = None
    permissions: Permissions = "auto"
    durability: Durability = "mount"
    egress: Egress = "off"
    egress_hosts: list[str] = []
    past: list[PastTurn] = []  # the session's last turns, oldest first
    turns_before: int = 0  # how many there were in all
    budget: Budget | None = None
    spent: Spent = Spent()


class Terms(Asked):
    """What the model gateway is to know of a session. What is left out stays as it is: a field is
    changed by naming it, and None takes it away. `spent` only ever raises what the gateway knows.
    A request is of the turn that is named when it begins."""

    turn_id: UUID | None = None
    budget: Budget | None = None
    spent: Spent | None = None
    egress: Egress | None = None
    egress_hosts: list[str] | None = None


class Agreed(Body):
    """The terms that were named hold."""

    session_id: UUID


class GatewayRecord(Body):
    """Something that the gateway noted of a session. `id` grows; it is never given twice."""

    id: int
    at: datetime
    kind: str
    data: dict[str, Any]


class GatewayRecords(Body):
    """What was noted after the id that was asked for. `last` is the newest id there is, `open` how
    many requests are on their way."""

    records: list[GatewayRecord]
    last: int
    open: int = 0


class PermissionAnswer(Asked):
    """An answer on its way to the harness; without an option the request is withdrawn."""

    option_id: Text | None = None
    by: str
    reason: Text = ""


class RunBody(Body):
    turn_id: UUID
    session_id: UUID
    state: Literal["running", "ended"]
    last_n: int


class RunList(Body):
    runs: list[RunBody]


class RunLine(Body):
    """One line of a run's stream. `n` counts from 1 and is what `?after=` resumes from."""

    n: int
    event: dict[str, Any]


class InvokeMessage(Body):
    role: str = "user"
    content: Any = ""


class InvokeInputs(Body):
    messages: list[InvokeMessage] = []


class InvokeData(Body):
    inputs: InvokeInputs = InvokeInputs()
    parameters: Choices = Choices()


class InvokeRequest(Asked):
    """One call that sends, steers, cancels or attaches; see `POST /invoke`."""

    session_id: UUID | None = None
    data: InvokeData = InvokeData()
    force: StrictBool = False


MatrixState = Literal["running", "completed", "failed", "interrupted", "cancelled"]
CellState = Literal["waiting", "running", "passed", "failed", "skipped"]


class MatrixCreate(Asked):
    """Which cells; what is left out is all that the stack knows."""

    harnesses: list[str] | None = Field(None, min_length=1, max_length=100)
    providers: list[str] | None = Field(None, min_length=1, max_length=100)
    engine: Literal["auto", "geesefs", "weed"] = "auto"


class StepTook(Body):
    name: str
    took: float


class MatrixCell(Body):
    """One harness on one provider. `step` is what it is at while it runs."""

    harness: str
    provider: str
    state: CellState
    step: str | None = None
    steps: list[StepTook] = []
    took: float | None = None
    reason: Text = ""
    engine: str | None = None
    session_id: UUID | None = None


class MatrixRun(Body):
    """`cells` are None in a list of runs. `failed` as a state: there is no verdict for all."""

    id: UUID
    state: MatrixState
    created_at: datetime
    ended_at: datetime | None
    harnesses: list[str]
    providers: list[str]
    engine: str
    passed: int
    failed: int
    skipped: int
    error: Text | None
    cells: list[MatrixCell] | None = None


class MatrixRunList(Body):
    runs: list[MatrixRun]


# In this order each may do what the one before it may.
Role = Literal["read", "run", "admin"]


class Me(Body):
    """Who asks, as the api knows it."""

    name: str
    role: Role


class TokenCreate(Asked):
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")
    role: Role


class TokenBody(Body):
    """A named token, without what it is."""

    name: str
    role: Role
    created_at: datetime
    created_by: str


class NewToken(TokenBody):
    """The one time that a token is told: only a hash of it is kept."""

    token: str


class TokenList(Body):
    tokens: list[TokenBody]


class AuditEntry(Body):
    """One request that changed something, or was not allowed to. `subject` is what of the session
    or of the stack it was about: a turn, a path, a token."""

    id: int
    at: datetime
    name: str
    role: Role
    client: str
    action: str
    session_id: UUID | None
    subject: str
    status: int
    request_id: str


class AuditPage(Body):
    entries: list[AuditEntry]
    next_cursor: str | None = None


class Health(Body):
    status: Literal["ok"] = "ok"


class Readiness(Body):
    ready: bool
    parts: dict[str, str]
