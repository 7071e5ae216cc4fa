"""What a turn may be held to: what its tools said was done, behind a receipt."""

from __future__ import annotations

import random
from typing import Any

from tests.chaos.script import Expected, Holds, Script, Step, write_script

WRITE = Step('write "x" to a.txt', "a.txt", effects=(Holds("a.txt", b"x"),))
SYNCED = Step("run: …", "step-1-1", "ok-1-1", synced=True, effects=(Holds("b.txt", b"y"),))
SCRIPT = Script(1, (WRITE, SYNCED))


def call(number: str, text: str, output: str, status: str = "completed") -> list[dict[str, Any]]:
    return [
        {"type": "tool.call", "tool_call_id": number, "input": {}},
        {"type": "tool.update", "tool_call_id": number, "input": {"command": text}},
        {"type": "tool.result", "tool_call_id": number, "status": status, "output": output},
    ]


def test_a_step_is_done_when_its_own_tool_said_so() -> None:
    assert SCRIPT.done(call("1", "a.txt", "written")) == [WRITE]
    assert SCRIPT.done(call("1", "a.txt", "written", status="failed")) == []
    assert SCRIPT.done(call("1", ": step-1-1 && …", "ok-1-1\n")) == [SYNCED]
    assert SCRIPT.done(call("1", ": step-1-1 && …", "No space left on device")) == []
    assert SCRIPT.done(call("1", ": step-1-1 && …", "ok-1-1")[:2]) == []


def test_nothing_is_asked_of_a_turn_without_a_receipt() -> None:
    expected = Expected({"a.txt": Holds("a.txt", b"before"), "c.txt": Holds("c.txt", b"z")})
    expected.after(SCRIPT, [WRITE, SYNCED], receipt=False, remounted=False)
    assert list(expected.files) == ["c.txt"]


def test_a_remount_may_lose_only_what_was_not_fsynced() -> None:
    expected = Expected()
    expected.after(SCRIPT, [WRITE, SYNCED], receipt=True, remounted=True)
    assert list(expected.files) == ["b.txt"]
    expected.after(SCRIPT, [WRITE, SYNCED], receipt=True, remounted=False)
    assert sorted(expected.files) == ["a.txt", "b.txt"]


def test_no_command_holds_its_own_mark() -> None:
    for number in range(50):
        for step in write_script(number, range(number), random.Random(number)).steps:
            assert not step.mark or step.mark not in step.phrase
