"""What counts as the newest prompt, whatever a harness puts around it."""

from __future__ import annotations

import pytest

from sidecar.gateway.scripted.conversation import (
    Called,
    Conversation,
    Item,
    Returned,
    Said,
    estimate_tokens,
    newest_turn,
)

REMINDER = "<system-reminder>\nsay nothing\n</system-reminder>"
ENVIRONMENT = "<environment_context>\n  <cwd>/workspace</cwd>\n</environment_context>"
ABORTED = "<turn_aborted>\nThe user interrupted the previous turn.\n</turn_aborted>"


@pytest.mark.parametrize(
    "text",
    [
        "say hi",
        f"{REMINDER}\nsay hi",
        f"say hi\n{REMINDER}",
        f"{ENVIRONMENT}\n\n{REMINDER}\nsay hi",
        "# AGENTS.md instructions for /w\n\n<INSTRUCTIONS>\nBe kind.\n</INSTRUCTIONS>\nsay hi",
        "[Request interrupted by user]\nsay hi",
        "The goal was to write x to y.\n--- prompt ---\nsay hi",
        "old\n--- prompt ---\nsay no\n--- prompt ---  \nsay hi",
    ],
)
def test_the_prompt_is_what_the_user_wrote(text: str) -> None:
    assert newest_turn(Conversation((Said("user", text),))).prompt == "say hi"


def test_tags_of_the_user_stay() -> None:
    prompt = "say <b>hi</b> --- prompt --- there"
    assert newest_turn(Conversation((Said("user", prompt),))).prompt == prompt


@pytest.mark.parametrize("note", [REMINDER, ENVIRONMENT, ABORTED, "[Request interrupted by user]"])
def test_a_note_of_the_harness_is_no_prompt(note: str) -> None:
    result = Returned("1", "done")
    items: tuple[Item, ...] = (
        Said("user", "write a to b"),
        Called("1", "Write"),
        result,
        Said("user", note),
    )
    turn = newest_turn(Conversation(items))
    assert turn.prompt == "write a to b"
    assert turn.results == (result,)


def test_results_of_earlier_prompts_do_not_count() -> None:
    items: tuple[Item, ...] = (
        Said("user", "write a to b"),
        Called("1", "Write"),
        Returned("1", "done"),
        Said("assistant", "Done"),
        Said("user", "write c to d"),
    )
    turn = newest_turn(Conversation(items))
    assert turn.prompt == "write c to d"
    assert turn.results == ()
    assert turn.history == items[:-1]


def test_a_briefing_is_history() -> None:
    turn = newest_turn(Conversation((Said("user", "The goal: G.\n--- prompt ---\nrecall"),)))
    assert turn.history == (Said("user", "The goal: G."),)


def test_an_empty_conversation_has_an_empty_prompt() -> None:
    assert newest_turn(Conversation(())).prompt == ""


def test_tokens_are_a_quarter_of_the_characters() -> None:
    assert estimate_tokens([{"role": "user", "content": [{"text": "x" * 396}]}], None, 7) == 100
