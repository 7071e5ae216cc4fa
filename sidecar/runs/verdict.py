"""Whether a turn's model has failed it, by the requests that the gateway saw."""

from __future__ import annotations

from collections.abc import Iterable

from contracts import events
from contracts.errors import BudgetSpent, ModelFailed
from contracts.events import ErrorInfo
from sidecar.runs.journal import Entry

RAISE_IT = (
    "Raise it with `holdfast budget SESSION --tokens N` (or --cost), PATCH /sessions/{id}, or in "
    "the page."
)
HINTS = {
    400: "The request is at fault: another model, or a new session, may do.",
    401: "Check the key of the model API (.env).",
    402: "Check the account of the model API.",
    403: "The key of the model API does not allow this: check the model and the account.",
    404: "Check the name of the model.",
    429: "The model API limits how much may be asked: wait, then send the prompt again.",
    529: "The model API is overloaded: wait, then send the prompt again.",
}
OTHERWISE = "Send the prompt again; `holdfast logs gateway` shows what was tried."


def verdict(entries: Iterable[Entry]) -> ErrorInfo | None:
    """Why the turn has failed: its last request to a model did, and none succeeded after it.

    Requests on the side do not decide while there are others: the answer stands although its title
    could not be made. What the harness broke off itself says nothing either way.
    """
    own = [_request(entry) for entry in entries if entry.event["type"] in _TYPES]
    mine = [event for event in own if not event.late]
    last: events.ModelFailed | None = None
    for event in [event for event in mine if not event.side] or mine:
        if isinstance(event, events.ModelFailed):
            last = event
        elif event.outcome == "completed":
            last = None
    return None if last is None else _told(last)


_TYPES = ("usage", "model.failed")


def _request(entry: Entry) -> events.Usage | events.ModelFailed:
    cls = events.Usage if entry.event["type"] == "usage" else events.ModelFailed
    return cls.model_validate(entry.event)


def _told(failed: events.ModelFailed) -> ErrorInfo:
    if failed.code == BudgetSpent.code:
        return ErrorInfo(code=BudgetSpent.code, message=failed.message, hint=RAISE_IT)
    message = failed.message or "no reason was given"
    status = failed.status
    return ErrorInfo(
        code=ModelFailed.code,
        message=f"the model API failed ({status}): {message}" if status else message,
        hint=HINTS.get(status or 0, OTHERWISE),
        retryable=status is None or status in (408, 429) or status >= 500,
    )
