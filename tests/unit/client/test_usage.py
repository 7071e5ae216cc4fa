"""What models were used, on the command line; and budgets."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest
from typer.testing import Result

from contracts import events
from contracts.bodies import Budget, Totals
from tests.support.client.commands import RECEIPT
from tests.support.client.wire_server import FakeApi

ONE = events.Usage(
    model="m", input_tokens=1200, output_tokens=30, cached_tokens=200, cost=0.0125, side=True
)
UNPRICED = events.Usage(model="x", input_tokens=1, output_tokens=1, estimated=True)
FAILED = events.ModelFailed(status=529, message="over\x1b[2Jloaded")


def test_a_turn_tells_once_what_it_used(api: FakeApi, invoke: Callable[..., Result]) -> None:
    api.script = [ONE, FAILED, UNPRICED, RECEIPT, events.TurnCompleted()]
    shown = invoke("run", "go").stdout
    assert shown.count("tokens in") == 1
    assert (
        "1,201 tokens in (200 cached), 31 out, 2 requests, $0.0125 and 1 without a price, "
        "1 of them estimated\n" in shown
    )
    assert "the model API failed (529): over" in shown
    assert "\x1b" not in shown


def test_a_turn_without_a_price_says_so(api: FakeApi, invoke: Callable[..., Result]) -> None:
    api.script = [UNPRICED, RECEIPT, events.TurnCompleted()]
    assert "1 request, no price known" in invoke("run", "go").stdout


def test_show_ends_with_what_the_session_used(api: FakeApi, invoke: Callable[..., Result]) -> None:
    totals = Totals(requests=3, input_tokens=900, output_tokens=100, cost=0.5)
    session = api.add_session(usage=totals, budget=Budget(tokens=2000, cost=2))
    api.append(session.id, events.Message(role="assistant", text="hi"), turn_id=uuid4())
    lines = invoke("show", str(session.id)).stdout.splitlines()
    assert lines[-2:] == [
        "used: 900 tokens in, 100 out, 3 requests, $0.5000",
        "budget: 1,000 of 2,000 tokens, $0.5000 of $2",
    ]


@pytest.mark.parametrize(
    ("options", "budget"),
    [
        ((), None),
        (("--budget-tokens", "500"), Budget(tokens=500)),
        (("--budget-cost", "0.5"), Budget(cost=0.5)),
    ],
)
@pytest.mark.parametrize("command", [("new",), ("run", "go")])
def test_a_new_session_has_the_budget_it_was_given(
    api: FakeApi,
    invoke: Callable[..., Result],
    command: tuple[str, ...],
    options: tuple[str, ...],
    budget: Budget | None,
) -> None:
    api.script = [RECEIPT, events.TurnCompleted()]
    assert invoke(*command, *options).exit_code == 0
    [session] = api.sessions.values()
    assert session.budget == budget


def test_a_budget_is_shown_changed_and_taken_away(
    api: FakeApi, invoke: Callable[..., Result]
) -> None:
    session = api.add_session()
    ref = str(session.id)
    assert "nothing was used yet, and there is no budget" in invoke("budget", ref).stdout
    changed = invoke("budget", ref, "--tokens", "1000", "--cost", "2").stdout
    assert changed == "budget: 0 of 1,000 tokens, $0.0000 of $2\n"
    assert api.sessions[session.id].budget == Budget(tokens=1000, cost=2)
    assert invoke("budget", ref).stdout == changed, "looking changes nothing"
    assert invoke("budget", ref, "--none").exit_code == 0
    assert api.sessions[session.id].budget is None


@pytest.mark.parametrize(
    "options",
    [
        ("budget", "last", "--tokens", "0"),
        ("budget", "last", "--cost", "-1"),
        ("budget", "last", "--cost", "inf"),
        ("budget", "last", "--none", "--tokens", "5"),
        ("new", "--budget-cost", "0"),
        ("run", "go", "--session", "last", "--budget-tokens", "5"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(
    api: FakeApi, invoke: Callable[..., Result], options: tuple[str, ...]
) -> None:
    api.add_session()
    assert invoke(*options).exit_code == 2
    assert [session.budget for session in api.sessions.values()] == [None]
