"""Names that tests share with the product, taken from it: a rename there is a rename here."""

from __future__ import annotations

from pydantic_settings import BaseSettings

from contracts import events
from sidecar.engine_proxy.sandboxes import SESSION_LABEL as SESSION_LABEL
from sidecar.engine_proxy.sandboxes import STACK_LABEL as STACK_LABEL


def env_name(settings: type[BaseSettings], field: str) -> str:
    """The environment variable that sets a field.

    Raises: KeyError when these settings have no such field.
    """
    found = settings.model_fields[field]
    if isinstance(found.validation_alias, str):
        return found.validation_alias
    return f"{settings.model_config.get('env_prefix', '')}{field}".upper()


def event_type(event: type[events.EventBase]) -> str:
    """The `type` that events of a class have."""
    return str(event.model_fields["type"].default)


TURN_STARTED = event_type(events.TurnStarted)
TURN_COMPLETED = event_type(events.TurnCompleted)
TURN_FAILED = event_type(events.TurnFailed)
TURN_CANCELLED = event_type(events.TurnCancelled)
TURN_INTERRUPTED = event_type(events.TurnInterrupted)
SANDBOX_CREATING = event_type(events.SandboxCreating)
SANDBOX_READY = event_type(events.SandboxReady)
SANDBOX_ATTACHED = event_type(events.SandboxAttached)
SANDBOX_GONE = event_type(events.SandboxGone)
SANDBOX_DESTROYED = event_type(events.SandboxDestroyed)
MOUNT_READY = event_type(events.MountReady)
STATE_CAPTURED = event_type(events.StateCaptured)
STATE_FAILED = event_type(events.StateFailed)
TOOL_CALL = event_type(events.ToolCall)
TOOL_UPDATE = event_type(events.ToolUpdate)
TOOL_RESULT = event_type(events.ToolResult)
PERMISSION_ASKED = event_type(events.PermissionAsked)
PERMISSION_ANSWERED = event_type(events.PermissionAnswered)
MODEL_FAILED = event_type(events.ModelFailed)
RUN_GAP = event_type(events.RunGap)
RECEIPT = event_type(events.Receipt)
RECEIPT_FAILED = event_type(events.ReceiptFailed)
