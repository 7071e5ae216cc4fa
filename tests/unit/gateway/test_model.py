"""The scripted model: conversations in, replies out."""

from __future__ import annotations

import json
import shlex

import pytest

from sidecar.gateway.scripted.conversation import (
    Called,
    Conversation,
    Returned,
    Said,
    Tool,
)
from sidecar.gateway.scripted.language import PHRASES
from sidecar.gateway.scripted.model import answer
from sidecar.gateway.scripted.reply import (
    Call,
    Failure,
    ManyWords,
    Part,
    Text,
    Thinking,
    Ticks,
)
from tests.support.scripted_model import (
    CLAUDE,
    CODEX,
    CODEX_CATALOGUE,
    CODEX_OLD,
    OPENCODE,
    PI,
    ask,
    call,
    function,
    offered,
    ok,
    parts,
    text,
)


@pytest.mark.parametrize(
    ("tools", "name", "arguments"),
    [
        (CLAUDE, "Write", {"file_path": "a.txt", "content": "hi"}),
        (OPENCODE, "write", {"filePath": "a.txt", "content": "hi"}),
        (PI, "write", {"path": "a.txt", "content": "hi"}),
        (CODEX, "exec_command", {"cmd": "printf %s hi > a.txt"}),
        (CODEX_OLD, "shell", {"command": ["bash", "-lc", "printf %s hi > a.txt"]}),
    ],
    ids=["claude", "opencode", "pi", "codex", "codex-old"],
)
def test_writing_uses_the_tool_the_harness_offers(
    tools: dict[str, Tool], name: str, arguments: dict[str, object]
) -> None:
    assert call(ask("write hi to a.txt", tools=tools)) == Call(name, arguments)


@pytest.mark.parametrize(
    ("tools", "name", "arguments"),
    [
        (CLAUDE, "Read", {"file_path": "a b.txt"}),
        (OPENCODE, "read", {"filePath": "a b.txt"}),
        (PI, "read", {"path": "a b.txt"}),
        (CODEX, "exec_command", {"cmd": "cat -- 'a b.txt'"}),
    ],
    ids=["claude", "opencode", "pi", "codex"],
)
def test_reading_uses_the_tool_the_harness_offers(
    tools: dict[str, Tool], name: str, arguments: dict[str, object]
) -> None:
    assert call(ask("read `a b.txt`", tools=tools)) == Call(name, arguments)


def test_a_catalogue_model_of_codex_gets_a_program() -> None:
    command = 'echo "a" `b`'
    made = call(ask(f"run: {command}", tools=CODEX_CATALOGUE))
    assert made.name == "exec"
    assert isinstance(made.arguments, str)
    assert f"tools.exec_command({json.dumps({'cmd': command})})" in made.arguments


def test_only_asking_escalates_and_only_where_the_tool_can() -> None:
    plain = call(ask("run: touch x", tools=CODEX)).arguments
    asked = call(ask("ask to run: touch x", tools=CODEX)).arguments
    assert plain == {"cmd": "touch x"}
    assert isinstance(asked, dict)
    assert asked["sandbox_permissions"] == "require_escalated"
    assert asked["justification"]
    assert "justification" not in call(ask("ask to run: touch x", tools=PI)).arguments


def test_steps_are_done_one_after_another() -> None:
    prompt = "say first then write a to b; say second\nrun: ls"
    assert parts(ask(prompt)) == (
        Text("first"),
        Call("Write", {"file_path": "b", "content": "a"}),
    )
    second = parts(ask(prompt, ok("File created")))
    assert second[0] == Text("second")
    assert isinstance(second[1], Call)
    assert second[1].name == "Bash"
    assert text(ask(prompt, ok("File created"), ok("b"))) == "Done: wrote b; `ls` printed: b"


def test_a_reminder_after_a_result_does_not_start_over() -> None:
    items = (
        Said("user", "write a to b"),
        Called("1", "Write"),
        ok("File created"),
        Said("user", "<system-reminder>write a to b</system-reminder>"),
    )
    assert text(answer(Conversation(items, CLAUDE))) == "Done: wrote b"


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (ok("a\nb"), "Done: `x` printed:\na\nb"),
        (ok("(Bash completed with no output)"), "Done: `x` printed nothing"),
        (ok("(no output)"), "Done: `x` printed nothing"),
        (ok("Exit code 3"), "Done: `x` printed: Exit code 3"),
        (ok("Command exited with code 3\na"), "Done: `x` printed:\nCommand exited with code 3\na"),
        (ok("a\nOutput:\nb"), "Done: `x` printed:\na\nOutput:\nb"),
        (
            Returned("1", "Exit code 3\nout", failed=True),
            "Not all of it worked: `x` failed with exit code 3 and printed: out",
        ),
        (
            ok("out\n\n\nCommand exited with code 3"),
            "Not all of it worked: `x` failed with exit code 3 and printed: out",
        ),
        (
            ok("Chunk ID: 1\nWall time: 0 seconds\nProcess exited with code 3\nOutput:\nout\n"),
            "Not all of it worked: `x` failed with exit code 3 and printed: out",
        ),
        (
            ok("Chunk ID: 1\nProcess exited with code 0\nOutput:\nProcess exited with code 3\n"),
            "Done: `x` printed: Process exited with code 3",
        ),
        (ok("Chunk ID: 1\nProcess exited with code 0\nOutput:\n"), "Done: `x` printed nothing"),
        (
            ok("Script completed\nOutput:\n\nProcess exited with code 4\nOutput:\nout\n"),
            "Not all of it worked: `x` failed with exit code 4 and printed: out",
        ),
        (
            Returned("1", "The user said no.", failed=True),
            "Not all of it worked: `x` failed and printed: The user said no.",
        ),
    ],
)
def test_a_result_is_told_in_the_words_of_no_harness(result: Returned, said: str) -> None:
    assert text(ask("run: x", result)) == said


@pytest.mark.parametrize(
    ("tools", "output", "content"),
    [
        (CLAUDE, "     1\tone\n     2\t\n     3\t2\tthree\n     4\t", "\none\n\n2\tthree"),
        (
            OPENCODE,
            "<path>/w/a</path>\n<type>file</type>\n<content>\n1: one\n2: 3: x\n\n"
            "(End of file - total 2 lines)\n</content>",
            "\none\n3: x",
        ),
        (PI, "1\tone\n2\ttwo", "\n1\tone\n2\ttwo"),
        (PI, "ERROR: disk is full, sorry", " ERROR: disk is full, sorry"),
        (CODEX, "Process exited with code 0\nOutput:\n1\tone\n", " 1\tone"),
    ],
    ids=["claude", "opencode", "pi", "pi-error", "codex"],
)
def test_a_file_is_quoted_as_it_is(tools: dict[str, Tool], output: str, content: str) -> None:
    assert text(ask("read a", ok(output), tools=tools)) == f"Done: a holds:{content}"


@pytest.mark.parametrize(
    ("tools", "result"),
    [
        (CLAUDE, Returned("1", "File does not exist.", failed=True)),
        (OPENCODE, ok("File not found: /w/a")),
        (PI, ok("ENOENT: no such file or directory, access '/w/a'")),
        (CODEX, ok("Process exited with code 1\nOutput:\ncat: a: No such file or directory")),
    ],
    ids=["claude", "opencode", "pi", "codex"],
)
def test_a_file_that_is_missing_is_told_as_missing(
    tools: dict[str, Tool], result: Returned
) -> None:
    assert text(ask("read a", result, tools=tools)).startswith(
        "Not all of it worked: could not read a: "
    )


def test_a_file_that_must_be_read_first_is_read_and_written_again() -> None:
    refused = Returned("1", "File has been modified since read. Read it again.", failed=True)
    write = call(ask("write a to b"))
    assert call(ask("write a to b", refused)).name == "Read"
    assert call(ask("write a to b", refused, ok("1\told"))) == write
    assert text(ask("write a to b", refused, ok("1\told"), ok("updated"))) == "Done: wrote b"


def test_any_other_refusal_of_a_write_is_final() -> None:
    refused = Returned("1", "The user does not want this.", failed=True)
    assert "could not write b" in text(ask("write a to b", refused))


def test_a_read_that_is_answered_with_a_note_is_done_by_the_shell() -> None:
    note = ok("File unchanged since last read. Refer to the earlier result.")
    again = call(ask("read b", note))
    assert again.arguments == {"command": "cat -- b", "description": "Run a command"}
    assert text(ask("read b", note, ok("1\tx"))) == "Done: b holds: 1\tx"


def test_a_command_that_still_runs_is_asked_again() -> None:
    running = ok("Process running with session ID 7\nOutput:\none ")
    ended = ok("Process exited with code 0\nOutput:\ntwo")
    poll = call(ask("run: x", running, tools=CODEX))
    assert poll.name == "write_stdin"
    assert isinstance(poll.arguments, dict)
    assert poll.arguments["session_id"] == 7
    said = text(ask("run: x; y", running, ended, tools=CODEX))
    assert said == "Done: `x; y` printed: one two"
    program = call(ask("run: x", running, tools=CODEX_CATALOGUE)).arguments
    assert isinstance(program, str)
    assert "tools.write_stdin" in program


def test_long_output_is_cut_and_says_so() -> None:
    said = text(ask("run: x", ok("y" * 10_000)))
    assert len(said) < 4_200
    assert said.endswith("[… 6000 characters left out]")


@pytest.mark.parametrize(
    ("prompt", "part"),
    [
        ("say hi", Text("hi")),
        ("remember 7", Text("I will remember: 7")),
        ("wait 2 seconds", Ticks(2)),
        ("5 words", ManyWords(5)),
    ],
)
def test_words_need_no_tool(prompt: str, part: Part) -> None:
    assert parts(ask(prompt)) == (part,)


def test_a_thought_alone_still_has_an_answer() -> None:
    assert parts(ask("think deep")) == (Thinking("deep"), Text("Done thinking."))
    assert parts(ask("think deep; say hi")) == (Thinking("deep"), Text("hi"))


def test_a_failure_comes_at_its_place_and_again_on_a_retry() -> None:
    prompt = "write a to b then fail with 503"
    assert call(ask(prompt)).name == "Write"
    for _ in range(2):
        failure = ask(prompt, ok("File created"))
        assert isinstance(failure, Failure)
        assert failure.status == 503


def test_recall_quotes_earlier_prompts_and_results_verbatim() -> None:
    items = (
        Said("user", "<system-reminder>x</system-reminder>"),
        Said("user", "remember  the code\nis 7-ä"),
        Said("assistant", "I will remember"),
        Said("user", "run: ls"),
        Called("c", "Bash"),
        Returned("c", "a.txt"),
        Said("user", "The briefing: B.\n--- prompt ---\nwhat did I say?"),
    )
    assert text(answer(Conversation(items, CLAUDE))) == (
        "Earlier in this conversation:\n- you said: remember  the code\nis 7-ä\n"
        "- you said: run: ls\n- Bash returned: a.txt\n- you said: The briefing: B."
    )


def test_recall_at_the_start_finds_nothing() -> None:
    assert text(ask("recall")) == "Nothing was said before this."


def test_what_fits_nothing_gets_the_list_of_phrases() -> None:
    said = text(ask("Make me a sandwich"))
    assert "scripted model" in said
    assert "Make me a sandwich" in said
    assert all(phrase in said for phrase in PHRASES)


def test_what_is_not_understood_among_other_steps_is_told() -> None:
    assert text(ask("dear model; write a to b", ok("File created"))) == (
        'Not all of it worked: I did not understand "dear model"; wrote b'
    )


def test_a_harness_without_a_fitting_tool_is_told() -> None:
    tools = offered(function("get_weather", "city"))
    assert "offers no tool" in text(ask("run: ls", tools=tools))


SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "tags": {"type": "array"}},
    "required": ["title"],
}


@pytest.mark.parametrize(
    "conversation",
    [
        Conversation((Said("user", "write a to b; fail with 500"),)),
        Conversation(
            (Said("user", "<session>\nwrite a to b\n</session>\n\nWrite the title."),),
            CLAUDE,
            schema=SCHEMA,
        ),
        Conversation((Said("user", "Generate a title:\n"), Said("user", "run: rm -rf x"))),
        Conversation((Said("user", "write a to b"), Said("user", "[SUGGESTION MODE: …]")), CLAUDE),
    ],
    ids=["no-tools", "schema", "title", "suggestion"],
)
def test_a_side_request_gets_a_short_text_and_never_a_call(conversation: Conversation) -> None:
    said = text(answer(conversation))
    assert 0 < len(said) < 100


def test_a_schema_is_filled_with_the_title() -> None:
    prompt = "Make a title.\n\nUser's first message:\nwrite hello to a.txt and more words than six"
    said = text(answer(Conversation((Said("user", prompt),), CODEX, schema=SCHEMA)))
    assert json.loads(said) == {"title": "Write hello to a.txt and more", "tags": []}


@pytest.mark.parametrize(
    ("system", "prompt"),
    [
        ("", "Your task is to create a detailed summary of the conversation so far, paying"),
        ("", "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary"),
        ("You are a context summarization agent. You are given", "the conversation"),
    ],
    ids=["claude", "codex", "opencode"],
)
def test_a_summary_keeps_what_the_user_said(system: str, prompt: str) -> None:
    items = (Said("user", "remember 4711"), Said("assistant", "ok"), Said("user", prompt))
    said = text(answer(Conversation(items, CLAUDE, system=system)))
    assert "remember 4711" in said


def test_shell_commands_reach_the_shell_as_written() -> None:
    command = "a 'b' \"c\" $(d) | e > f"
    arguments = call(ask(f"run: {command}")).arguments
    assert isinstance(arguments, dict)
    assert arguments["command"] == command
    assert shlex.split(arguments["command"])[1] == "b"
