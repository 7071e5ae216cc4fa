"""Every error a Holdfast service reports, as one tree.

HoldfastError
├── BadRequest (400)
│   ├── InvalidInput            a body or a parameter that is malformed
│   ├── InvalidPath             `..`, absolute, NUL, backslash
│   ├── UnknownHarness
│   ├── UnknownProvider
│   └── UnsupportedChoice       a combination that cannot work
├── Unauthenticated (401)
├── Forbidden (403)
│   ├── RoleTooSmall            carries the role that is needed
│   ├── CrossOrigin             a page of another origin used the login
│   └── EngineCallRefused       the engine proxy does not let it through
├── NotFound (404)
│   ├── SessionNotFound
│   ├── TurnNotFound
│   ├── RunNotFound
│   ├── FileNotFound
│   ├── PermissionNotFound
│   ├── MatrixRunNotFound
│   ├── TokenNotFound
│   └── SandboxNotFound
├── Conflict (409)
│   ├── TurnRunning             carries the running turn's id
│   ├── NoTurnRunning
│   ├── AlreadyAnswered         carries who answered, and what
│   ├── FileExists
│   ├── TokenExists
│   ├── WorkspaceMounted        change it through its mount, not behind its back
│   ├── OverQuota               the session's files are more than it may keep
│   └── StaleEpoch              somebody else holds the session's lease by now
├── TooLarge (413)
├── RangeNotSatisfiable (416)
├── HostNotAllowed (421)        a name that this api does not answer to
├── TooMany (429)
│   ├── TooManySessions         that one token has made
│   └── TooManyFollowers        streams that are open at a time
├── Unavailable (503)           a part of the stack that does not answer
│   ├── DatabaseUnavailable
│   ├── StoreUnavailable
│   ├── SidecarUnavailable
│   ├── NotAskedYet             a harness that is not known to wait for an answer
│   ├── WorkspaceBusy           the sandbox is on its way in or out
│   ├── BoxHostUnavailable      whoever holds the boxes and mounts cannot be asked
│   └── EngineUnavailable       the Docker engine
├── SandboxError (502)          raised by providers; carries `op`
│   ├── SandboxGone             the control plane says so
│   ├── NotRunning
│   ├── Unauthorized
│   ├── RateLimited
│   ├── QuotaExceeded
│   ├── NoCapacity
│   ├── Unreachable             any data-plane failure: ask `status()`
│   ├── SandboxConflict
│   ├── InvalidSpec
│   ├── FileMissing
│   └── Unsupported
├── WorkspaceError (502)
│   ├── MountFailed             no durable directory: no turn
│   └── NotDurable              the barrier could not prove what the turn left
├── BudgetSpent (402)           the session may use no more of a model
├── ModelFailed (502)           the model API, as the gateway saw it
└── HarnessError (502)
    ├── HarnessStartFailed
    ├── HarnessExited           the process died, with or without a word
    ├── StreamGap               events of the harness were lost
    ├── PromptFailed            the harness answered the prompt with an error
    └── TurnLimit               the harness said or asked more than one turn may
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class HoldfastError(Exception):
    """The root. `message` says what happened, `hint` what to do about it."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str = "", **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details

    def body(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "retryable": self.retryable,
            **self.details,
        }


class BadRequest(HoldfastError):
    code, status = "bad_request", 400


class InvalidInput(BadRequest):
    code = "invalid_input"


class InvalidPath(BadRequest):
    code = "invalid_path"


class UnknownHarness(BadRequest):
    code = "unknown_harness"


class UnknownProvider(BadRequest):
    code = "unknown_provider"


class UnsupportedChoice(BadRequest):
    code = "unsupported_choice"


class Unauthenticated(HoldfastError):
    code, status = "unauthenticated", 401


class Forbidden(HoldfastError):
    code, status = "forbidden", 403


class RoleTooSmall(Forbidden):
    code = "role_too_small"


class CrossOrigin(Forbidden):
    code = "cross_origin"


class EngineCallRefused(Forbidden):
    code = "engine_call_refused"


class NotFound(HoldfastError):
    code, status = "not_found", 404


class SessionNotFound(NotFound):
    code = "session_not_found"


class TurnNotFound(NotFound):
    code = "turn_not_found"


class RunNotFound(NotFound):
    code = "run_not_found"


class FileNotFound(NotFound):
    code = "file_not_found"


class MatrixRunNotFound(NotFound):
    code = "matrix_run_not_found"


class PermissionNotFound(NotFound):
    code = "permission_not_found"


class TokenNotFound(NotFound):
    code = "token_not_found"


class SandboxNotFound(NotFound):
    code = "sandbox_not_found"


class Conflict(HoldfastError):
    code, status = "conflict", 409


class TurnRunning(Conflict):
    code = "turn_running"


class NoTurnRunning(Conflict):
    code = "no_turn_running"


class AlreadyAnswered(Conflict):
    code = "already_answered"


class WorkspaceMounted(Conflict):
    code = "workspace_mounted"


class OverQuota(Conflict):
    code = "over_quota"


class FileExists(Conflict):
    code = "file_exists"


class TokenExists(Conflict):
    code = "token_exists"


class StaleEpoch(Conflict):
    code = "stale_epoch"


class TooLarge(HoldfastError):
    code, status = "too_large", 413


class RangeNotSatisfiable(HoldfastError):
    code, status = "range_not_satisfiable", 416


class HostNotAllowed(HoldfastError):
    code, status = "host_not_allowed", 421


class TooMany(HoldfastError):
    code, status, retryable = "too_many", 429, True


class TooManySessions(TooMany):
    code, retryable = "too_many_sessions", False


class TooManyFollowers(TooMany):
    code = "too_many_followers"


class Unavailable(HoldfastError):
    code, status, retryable = "unavailable", 503, True


class DatabaseUnavailable(Unavailable):
    code = "database_unavailable"


class StoreUnavailable(Unavailable):
    code = "store_unavailable"


class SidecarUnavailable(Unavailable):
    code = "sidecar_unavailable"


class NotAskedYet(Unavailable):
    code = "not_asked_yet"


class WorkspaceBusy(Unavailable):
    code = "workspace_busy"


class BoxHostUnavailable(Unavailable):
    code = "box_host_unavailable"


class EngineUnavailable(Unavailable):
    code = "engine_unavailable"


class SandboxError(HoldfastError):
    code, status = "sandbox_error", 502

    def __init__(self, message: str, *, op: str, hint: str = "", **details: Any) -> None:
        super().__init__(message, hint=hint, op=op, **details)
        self.op = op


class SandboxGone(SandboxError):
    code = "sandbox_gone"


class NotRunning(SandboxError):
    code = "sandbox_not_running"


class Unauthorized(SandboxError):
    code = "provider_unauthorized"


class RateLimited(SandboxError):
    code, retryable = "provider_rate_limited", True


class QuotaExceeded(SandboxError):
    code = "provider_quota_exceeded"


class NoCapacity(SandboxError):
    code, retryable = "provider_no_capacity", True


class Unreachable(SandboxError):
    code, retryable = "sandbox_unreachable", True


class SandboxConflict(SandboxError):
    code = "sandbox_conflict"


class InvalidSpec(SandboxError):
    code = "invalid_sandbox_spec"


class FileMissing(SandboxError):
    code = "sandbox_file_missing"


class Unsupported(SandboxError):
    code = "sandbox_unsupported"


class WorkspaceError(HoldfastError):
    code, status = "workspace_error", 502


class MountFailed(WorkspaceError):
    code, retryable = "mount_failed", True


class NotDurable(WorkspaceError):
    code = "not_durable"


class BudgetSpent(HoldfastError):
    code, status = "budget_spent", 402


class ModelFailed(HoldfastError):
    code, status = "model_failed", 502


class HarnessError(HoldfastError):
    code, status = "harness_error", 502


class HarnessStartFailed(HarnessError):
    code, retryable = "harness_start_failed", True


class HarnessExited(HarnessError):
    code, retryable = "harness_exited", True


class StreamGap(HarnessError):
    code, retryable = "stream_gap", True


class PromptFailed(HarnessError):
    code = "prompt_failed"


class TurnLimit(HarnessError):
    code = "turn_limit"


def _tree(root: type[HoldfastError]) -> dict[str, type[HoldfastError]]:
    classes = {root.code: root}
    for child in root.__subclasses__():
        classes |= _tree(child)
    return classes


BY_CODE: Mapping[str, type[HoldfastError]] = _tree(HoldfastError)


def from_body(body: Mapping[str, Any]) -> HoldfastError:
    """Rebuild the error that another service rendered; an unknown code becomes the root class."""
    known = dict(body)
    code, message, hint = known.pop("code", ""), known.pop("message", ""), known.pop("hint", "")
    known.pop("retryable", None)
    cls = BY_CODE.get(code, HoldfastError)
    if issubclass(cls, SandboxError):
        known.setdefault("op", "unknown")
    return cls(str(message), hint=str(hint), **known)
