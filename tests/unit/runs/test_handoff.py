"""A handoff carries what a harness does not know, within a budget, and says what it leaves out."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from contracts.bodies import PastTurn
from sidecar.runs.handoff import BUDGET_CHARS, MARK, Briefing, briefing


def past(epoch: int, prompt: str = "", **fields: Any) -> PastTurn:
    values = {"harness": "claude", "state": "completed", "said": f"answer {epoch}", **fields}
    return PastTurn(turn_id=uuid4(), epoch=epoch, prompt=prompt or f"ask {epoch}", **values)


def brief(*turns: PastTurn, known: int = 0, before: int | None = None) -> Briefing:
    found = briefing(turns, len(turns) if before is None else before, known_epoch=known)
    assert found is not None
    return found


def test_nothing_is_handed_over_when_everything_is_known() -> None:
    assert briefing([past(1), past(2)], 2, known_epoch=2) is None


def test_a_first_turn_has_nothing_to_hand_over() -> None:
    assert briefing([], 0, known_epoch=0) is None


def test_the_last_messages_are_there_verbatim() -> None:
    text = brief(past(1, "build a boat\n  with two masts", said="It has\ntwo masts.")).text
    assert "build a boat\n  with two masts" in text
    assert "It has\ntwo masts." in text


def test_goal_tools_and_files_are_told() -> None:
    turns = [past(1, "the goal"), past(2, tools=["Write hull.py"], paths=["hull.py"])]
    text = brief(*turns).text
    assert "# Goal\nthe goal" in text
    assert "Write hull.py" in text
    assert "- hull.py" in text


def test_only_turns_that_the_harness_does_not_know_are_told() -> None:
    found = brief(past(1, "known one"), past(2, "unknown two"), known=1)
    assert "known one" not in found.text.replace("unknown", "")
    assert "unknown two" in found.text
    assert found.carried == "a summary of turn 2 from the transcript"


def test_a_turn_that_was_cut_off_is_an_open_point() -> None:
    cut = past(1, "move the files", state="interrupted", error="every process is gone")
    text = brief(cut).text
    assert "# Open points" in text
    assert "cut off before its end (every process is gone)" in text


def test_what_is_planned_and_not_done_is_an_open_point() -> None:
    plan = [{"content": "sail", "status": "pending"}, {"content": "build", "status": "completed"}]
    text = brief(past(1, plan=plan)).text
    assert "planned: sail (pending)" in text
    assert "planned: build" not in text


def test_it_stays_within_its_budget_and_says_what_was_left_out() -> None:
    turns = [past(n, "p" * 3_000, said="s" * 8_000, tools=["t" * 300] * 30) for n in range(1, 21)]
    found = brief(*turns, before=500)
    assert len(found.text) < BUDGET_CHARS * 1.1
    assert "earlier turns" in found.dropped
    assert found.dropped in found.text


def test_turns_that_were_never_sent_count_as_left_out() -> None:
    assert "480 earlier turns" in brief(*[past(n) for n in range(481, 501)], before=500).dropped


def test_the_newest_turns_are_kept_when_not_all_fit() -> None:
    turns = [past(n, f"ask {n} " + "p" * 3_000, tools=["t" * 300] * 30) for n in range(1, 21)]
    text = brief(*turns).text
    assert "- turn 20 " in text
    assert "- turn 1 " not in text


def test_the_prompt_stands_behind_the_mark() -> None:
    whole = brief(past(1)).before("do it")
    assert whole.endswith(f"\n{MARK}\ndo it")
