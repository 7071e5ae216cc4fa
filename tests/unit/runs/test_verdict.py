"""Whether a turn's model has failed it: what its requests come to, whatever its harness says."""

from __future__ import annotations

import pytest

from contracts import events
from contracts.events import to_dict
from sidecar.runs.journal import Entry
from sidecar.runs.verdict import verdict

OK = events.Usage(input_tokens=1)
CUT = events.Usage(input_tokens=1, outcome="cut")
HALF = events.Usage(input_tokens=1, outcome="failed")
BAD = events.ModelFailed(status=400, message="no")
SIDE_BAD = BAD.model_copy(update={"side": True})
SIDE_OK = OK.model_copy(update={"side": True})
LATE_BAD = BAD.model_copy(update={"late": True})
SAID = events.Message(role="assistant", text="done")


def of(*told: events.EventBase) -> events.ErrorInfo | None:
    return verdict([Entry(n, to_dict(event)) for n, event in enumerate(told, start=1)])


@pytest.mark.parametrize(
    "told",
    [
        (),
        (SAID,),
        (OK,),
        (BAD, BAD, OK),
        (OK, CUT),
        (OK, SIDE_BAD),
        (OK, LATE_BAD),
        (LATE_BAD,),
        (SIDE_BAD, SIDE_OK),
        (CUT,),
    ],
)
def test_a_turn_whose_last_request_came_back_has_not_failed(
    told: tuple[events.EventBase, ...],
) -> None:
    assert of(*told) is None


@pytest.mark.parametrize(
    "told",
    [
        (BAD,),
        (OK, BAD),
        (OK, HALF, BAD),
        (BAD, SAID),
        (BAD, SIDE_OK),
        (BAD, CUT),
        (SIDE_BAD,),
    ],
)
def test_a_turn_whose_last_request_failed_has_failed(told: tuple[events.EventBase, ...]) -> None:
    error = of(*told)
    assert error is not None
    assert (error.code, error.message) == ("model_failed", "the model API failed (400): no")


@pytest.mark.parametrize(
    ("status", "retryable", "hint"),
    [
        (401, False, ".env"),
        (404, False, "name of the model"),
        (429, True, "wait"),
        (500, True, "again"),
        (None, True, "again"),
    ],
)
def test_the_error_says_what_to_do(status: int | None, retryable: bool, hint: str) -> None:
    error = of(events.ModelFailed(status=status, message="why"))
    assert error is not None
    assert error.retryable == retryable
    assert hint in error.hint


def test_a_spent_budget_is_said_as_such_and_how_to_raise_it() -> None:
    refused = events.ModelFailed(status=400, code="budget_spent", message="9 of 8 tokens.")
    error = of(OK, refused)
    assert error is not None
    assert (error.code, error.message, error.retryable) == ("budget_spent", "9 of 8 tokens.", False)
    assert "holdfast budget" in error.hint
