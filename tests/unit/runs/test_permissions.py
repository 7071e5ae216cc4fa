"""What a turn is asked, and what a sidecar that adopts it knows of that."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest

from contracts.bodies import PermissionAnswer, RunRequest
from contracts.errors import InvalidInput, NotAskedYet
from sidecar.harnesses.acp import AcpConnection
from sidecar.runs.journal import Journal
from sidecar.runs.permissions import Permissions

OPTIONS = [
    {"optionId": "yes", "name": "Allow", "kind": "allow_once"},
    {"optionId": "no", "name": "Reject", "kind": "reject_once"},
]


class Wire:
    """The agent's end: what it was answered. It can be deaf for a number of tries."""

    server_id = "claude-1"

    def __init__(self) -> None:
        self.answers: list[tuple[Any, Any]] = []
        self.deaf = 0

    async def respond(self, request_id: Any, result: dict[str, Any]) -> bool:
        if self.deaf:
            self.deaf -= 1
            return False
        self.answers.append((request_id, result["outcome"]))
        return True


def journal_in(directory: Path, permissions: Any = "ask") -> Journal:
    request = RunRequest(
        turn_id=uuid4(),
        session_id=uuid4(),
        epoch=1,
        prompt="go",
        harness="claude",
        provider="local",
        permissions=permissions,
    )
    return Journal.create(directory, request)


async def ask(found: Permissions, wire: Wire, number: int, *, told: bool = False) -> None:
    call = {"toolCallId": "c", "title": "Write", "kind": "edit", "rawInput": {"path": "a"}}
    message = {"id": f"rpc-{number}", "params": {"options": OPTIONS, "toolCall": call}}
    await found.ask(cast(AcpConnection, wire), number, message, told=told)


def said(journal: Journal, kind: str) -> list[dict[str, Any]]:
    return [entry.event for entry in journal.entries() if entry.event["type"] == kind]


async def test_an_answer_reaches_the_harness_once_however_often_it_is_given(tmp_path: Path) -> None:
    journal, wire = journal_in(tmp_path), Wire()
    found = Permissions(journal)
    await ask(found, wire, 7)
    assert wire.answers == []
    [asked] = said(journal, "permission.asked")
    assert (asked["permission_id"], asked["kind"], asked["input"]) == (
        "claude-1-7",
        "edit",
        {"path": "a"},
    )
    with pytest.raises(InvalidInput):
        await found.answer("claude-1-7", PermissionAnswer(option_id="maybe", by="page"))
    for option in ("yes", "no"):
        await found.answer("claude-1-7", PermissionAnswer(option_id=option, by="page"))
    assert wire.answers == [("rpc-7", {"outcome": "selected", "optionId": "yes"})]
    [answered] = said(journal, "permission.answered")
    assert (answered["option_id"], answered["kind"], answered["by"]) == (
        "yes",
        "allow_once",
        "page",
    )


async def test_what_the_harness_did_not_take_is_not_journalled(tmp_path: Path) -> None:
    journal, wire = journal_in(tmp_path), Wire()
    found = Permissions(journal)
    await ask(found, wire, 1)
    wire.deaf = 3
    answer = PermissionAnswer(option_id="no", by="cli")
    with pytest.raises(NotAskedYet):
        await found.answer("claude-1-1", answer)
    assert said(journal, "permission.answered") == []
    await found.answer("claude-1-1", answer)
    assert len(said(journal, "permission.answered")) == 1


async def test_the_next_sidecar_knows_what_is_open_from_the_journal(tmp_path: Path) -> None:
    journal, wire = journal_in(tmp_path), Wire()
    before = Permissions(journal)
    for number in (3, 5, 8):
        await ask(before, wire, number)
    await before.answer("claude-1-3", PermissionAnswer(option_id="yes", by="page"))
    await before.answer("claude-1-8", PermissionAnswer(option_id="yes", by="page"))

    found, again = Permissions(Journal.load(journal.path)), Wire()
    assert found.first_open == 5
    with pytest.raises(NotAskedYet):  # the harness's own id comes with its stream
        await found.answer("claude-1-5", PermissionAnswer(option_id="no", by="page"))
    for number in (5, 8):
        await ask(found, again, number, told=True)
    await found.answer("claude-1-5", PermissionAnswer(option_id="no", by="page"))
    await found.answer("claude-1-8", PermissionAnswer(option_id="no", by="page"))
    assert again.answers == [("rpc-5", {"outcome": "selected", "optionId": "no"})]
    assert found.first_open is None


async def test_auto_says_yes_once_and_puts_it_on_record(tmp_path: Path) -> None:
    journal, wire = journal_in(tmp_path, "auto"), Wire()
    await ask(Permissions(journal), wire, 1)
    assert wire.answers == [("rpc-1", {"outcome": "selected", "optionId": "yes"})]
    [answered] = said(journal, "permission.answered")
    assert (answered["by"], answered["option_id"]) == ("auto", "yes")


async def test_a_cancelled_turn_withdraws_what_is_asked_before_and_after(tmp_path: Path) -> None:
    journal, wire = journal_in(tmp_path), Wire()
    found = Permissions(journal)
    await ask(found, wire, 1)
    await found.withdraw()
    await ask(found, wire, 2)
    cancelled = {"outcome": "cancelled"}
    assert wire.answers == [("rpc-1", cancelled), ("rpc-2", cancelled)]
    assert [event["by"] for event in said(journal, "permission.answered")] == ["cancel"] * 2
