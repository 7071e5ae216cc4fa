"""What models were used: added up as it is stored, for each turn and its session; and budgets."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.bodies import Budget, Session, Totals, Turn
from tests.support import names
from tests.support.api.fault_injector import FaultyRun, numbered, planned, short_run
from tests.support.api.serving import Api, assert_error

END: tuple[str, dict[str, Any]] = (names.TURN_COMPLETED, {})
TWO: list[tuple[str, dict[str, Any]]] = [
    (
        "usage",
        {"model": "m", "input_tokens": 100, "output_tokens": 10, "cached_tokens": 40, "cost": 0.25},
    ),
    ("usage", {"model": "x", "input_tokens": 7, "output_tokens": 1, "estimated": True}),
]
OF_TWO = Totals(
    requests=2,
    input_tokens=107,
    output_tokens=11,
    cached_tokens=40,
    cost=0.25,
    unpriced=1,
    estimated=1,
)


async def shown(api: Api, session: Session) -> Session:
    answer = await api.http.get(f"/sessions/{session.id}")
    return Session.model_validate_json(answer.content)


async def run(api: Api, session: Session, *events: tuple[str, dict[str, Any]]) -> Turn:
    with planned(api.injector, lambda run: run.journal.extend(numbered(*events))):
        return await api.ended(await api.start(session.id))


async def test_what_is_used_is_added_up_for_the_turn_and_for_the_session(api: Api) -> None:
    session = await api.new_session()
    assert session.usage == Totals()
    first = await run(api, session, *TWO, END)
    assert first.usage == OF_TWO
    second = await run(api, session, TWO[0], END)
    assert second.usage.input_tokens == 100
    total = (await shown(api, session)).usage
    assert (total.requests, total.input_tokens, total.output_tokens) == (3, 207, 21)
    assert (total.cost, total.unpriced) == (0.5, 1)
    listed = (await api.http.get("/sessions")).json()["sessions"]
    assert next(s for s in listed if s["id"] == str(session.id))["usage"]["requests"] == 3
    page = (await api.http.get(f"/sessions/{session.id}/turns")).json()["turns"]
    assert [turn["usage"]["requests"] for turn in page] == [2, 1]


async def test_a_cost_that_nobody_knows_is_none(api: Api) -> None:
    session = await api.new_session()
    turn = await run(api, session, TWO[1], END)
    assert (turn.usage.cost, turn.usage.unpriced) == (None, 1)


async def test_a_line_that_comes_twice_counts_once(api: Api) -> None:
    lines = numbered(*TWO, END)

    def twice(run: FaultyRun) -> None:
        run.journal.extend(lines)
        run.faults = [lambda _: [lines[0], None], lambda _: [*lines[:2], lines[0], None]]

    session = await api.new_session()
    with planned(api.injector, twice):
        turn = await api.ended(await api.start(session.id))
    assert turn.usage == OF_TWO
    assert (await shown(api, session)).usage == OF_TWO


async def test_numbers_beyond_reason_do_not_stop_the_stream(api: Api) -> None:
    absurd = {"input_tokens": 10**40, "output_tokens": -5, "cost": 1e300}
    session = await api.new_session()
    turn = await run(api, session, ("usage", absurd), END)
    assert turn.state == "completed"
    assert turn.usage.input_tokens == 10**12
    assert turn.usage.output_tokens == 0


async def test_a_turn_runs_with_its_sessions_budget_and_what_was_spent(api: Api) -> None:
    session = await api.new_session(budget={"tokens": 1000, "cost": 2.5})
    assert session.budget == Budget(tokens=1000, cost=2.5)
    await run(api, session, *TWO, END)
    turn = await run(api, session, END)
    request = api.injector.runs[turn.id].request
    assert request.budget == Budget(tokens=1000, cost=2.5)
    assert (request.spent.tokens, request.spent.cost) == (118, 0.25)


async def test_a_budget_is_changed_and_taken_away(api: Api) -> None:
    session = await api.new_session()
    assert session.budget is None
    url = f"/sessions/{session.id}"
    answer = await api.http.patch(url, json={"budget": {"tokens": 5}})
    assert answer.json()["budget"] == {"tokens": 5, "cost": None}
    answer = await api.http.patch(url, json={"title": "other"})
    assert answer.json()["budget"] == {"tokens": 5, "cost": None}
    answer = await api.http.patch(url, json={"budget": None})
    assert (answer.json()["budget"], answer.json()["title"]) == (None, "other")
    assert api.injector.terms == [], "no turn ran that would have to know"


async def test_a_running_turn_is_told_of_its_new_budget(api: Api) -> None:
    session = await api.new_session()
    turn, run = await api.start_run(session.id, lambda run: None)
    answer = await api.http.patch(f"/sessions/{session.id}", json={"budget": {"tokens": 9}})
    assert answer.status_code == 200
    told = [terms for sid, terms in api.injector.terms if sid == session.id]
    assert told == [{"budget": {"tokens": 9}}]
    run.journal.extend(short_run())
    await api.ended(turn)


@pytest.mark.parametrize(
    "budget",
    [
        {"tokens": 0},
        {"tokens": -1},
        {"tokens": 1.5},
        {"cost": 0},
        {"cost": "Infinity"},
        {"cost": 1e300},
        {"tokens": 10**30},
        {"dollars": 1},
        7,
    ],
)
async def test_a_budget_that_makes_no_sense_is_refused(api: Api, budget: Any) -> None:
    assert_error(await api.http.post("/sessions", json={"budget": budget}), 400, "invalid_input")
    session = await api.new_session()
    answer = await api.http.patch(f"/sessions/{session.id}", json={"budget": budget})
    assert_error(answer, 400, "invalid_input")
