"""A prompt's steps as a script: it yields what to say and which tools to call, and is sent each
call's result.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass

from sidecar.gateway.scripted import tools
from sidecar.gateway.scripted.conversation import Called, Item, Returned, without_context
from sidecar.gateway.scripted.language import (
    Append,
    Fail,
    Read,
    Recall,
    Remember,
    Run,
    Say,
    Step,
    Think,
    Unknown,
    Wait,
    Words,
    Write,
)
from sidecar.gateway.scripted.reply import Call, Failure, ManyWords, Part, Text, Thinking, Ticks
from sidecar.gateway.scripted.tools import Outcome, Tools

# Nobody wants to read more of a tool's output in an answer; the harness shows it in full.
_MAX_OUTPUT = 4_000
# Enough for any test to find its own words, and still a small part of a context window.
_MAX_RECALL = 40_000
# An hour, at 30 seconds each.
_MAX_POLLS = 120

Script = Generator[Part | Failure, Returned | None, None]


@dataclass(frozen=True, slots=True)
class _Report:
    ok: bool
    text: str


_ToolUse = Generator[Call, Returned | None, _Report]
_Result = Generator[Call, Returned | None, Outcome]


def play(steps: Iterable[Step], history: tuple[Item, ...], offered: Tools) -> Script:
    reports: list[_Report] = []
    only_thought = False
    for step in steps:
        if isinstance(step, (Write, Append, Read, Run)):
            reports.append((yield from _use_tool(step, offered)))
        elif isinstance(step, Unknown):
            reports.append(_Report(ok=False, text=f'I did not understand "{step.text}"'))
        else:
            yield _say(step, history)
        only_thought = isinstance(step, Think)
    if reports:
        yield Text(_closing(reports))
    elif only_thought:
        yield Text("Done thinking.")  # a turn without an answer looks broken in every harness


def bounded(text: str, limit: int) -> str:
    left_out = len(text) - limit
    return text if left_out <= 0 else f"{text[:limit]} [… {left_out} characters left out]"


def recall(history: Iterable[Item]) -> str:
    """What was said and what the tools gave back, verbatim, as far as this request tells."""
    lines = list(_recalled(history))
    if not lines:
        return "Nothing was said before this."
    return bounded("Earlier in this conversation:\n" + "\n".join(lines), _MAX_RECALL)


def _recalled(history: Iterable[Item]) -> Iterator[str]:
    names: dict[str, str] = {}
    for item in history:
        if isinstance(item, Called):
            names[item.call_id] = item.name
        elif isinstance(item, Returned):
            name = names.get(item.call_id, "a tool")
            yield f"- {name} returned: {bounded(without_context(item.text), _MAX_OUTPUT)}"
        elif item.role == "user":
            words = without_context(item.text)
            if words:
                yield f"- you said: {words}"


def _say(
    step: Say | Remember | Recall | Wait | Words | Think | Fail, history: tuple[Item, ...]
) -> Part | Failure:
    match step:
        case Say(text):
            return Text(text)
        case Remember(text):
            return Text(f"I will remember: {text}")
        case Recall():
            return Text(recall(history))
        case Wait(seconds):
            return Ticks(seconds)
        case Words(count):
            return ManyWords(count)
        case Think(text):
            return Thinking(text)
        case Fail(status):
            return Failure(status, f"The prompt asked the scripted model to fail with {status}.")


def _use_tool(step: Write | Append | Read | Run, offered: Tools) -> _ToolUse:
    match step:
        case Write(text, path):
            result = yield from _write(text, path, offered)
            return _changed("wrote", "write", path, result)
        case Append(text, path):
            result = yield from _call(tools.append_call(offered, path, text), offered)
            return _changed("appended to", "append to", path, result)
        case Read(path):
            return (yield from _read(path, offered))
        case Run(command, ask):
            result = yield from _call(tools.shell_call(offered, command, ask=ask), offered)
            return _ran(command, result)


def _write(text: str, path: str, offered: Tools) -> _Result:
    result = yield from _call(tools.write_call(offered, path, text), offered)
    if tools.needs_read(result):
        yield from _call(tools.read_call(offered, path), offered)
        result = yield from _call(tools.write_call(offered, path, text), offered)
    return result


def _read(path: str, offered: Tools) -> _ToolUse:
    call = tools.read_call(offered, path)
    result = yield from _call(call, offered)
    if tools.is_stub(result):
        call = tools.cat_call(offered, path)
        result = yield from _call(call, offered)
    if not result.ok or tools.is_file_error(result):
        return _Report(ok=False, text=f"could not read {path}:{_quote(result.output)}")
    numbered = call is not None and tools.numbers_lines(call)
    content = tools.file_text(result.output, numbered=numbered).removesuffix("\n")
    return _Report(
        ok=True, text=f"{path} holds:{_quote(content)}" if content else f"{path} is empty"
    )


def _call(call: Call | None, offered: Tools) -> _Result:
    if call is None:
        return Outcome(ok=False, output="this harness offers no tool for it")
    result = yield from _send(call)
    for _ in range(_MAX_POLLS):
        poll = None if result.running is None else tools.poll_call(offered, result.running)
        if poll is None:
            break
        so_far = result.output
        result = yield from _send(poll)
        result = Outcome(
            ok=result.ok,
            output=so_far + result.output,
            exit_code=result.exit_code,
            running=result.running,
        )
    return result


def _send(call: Call) -> _Result:
    returned = yield call
    assert returned is not None  # the replay stops at a call that has no result
    return tools.outcome(returned)


def _changed(done: str, verb: str, path: str, result: Outcome) -> _Report:
    if result.ok and not tools.is_file_error(result):
        return _Report(ok=True, text=f"{done} {path}")
    return _Report(ok=False, text=f"could not {verb} {path}:{_quote(result.output)}")


def _ran(command: str, result: Outcome) -> _Report:
    shown = bounded(command, 200)
    printed = f"printed:{_quote(result.output)}" if result.output else "printed nothing"
    if result.ok:
        return _Report(ok=True, text=f"`{shown}` {printed}")
    code = "" if result.exit_code is None else f" with exit code {result.exit_code}"
    return _Report(ok=False, text=f"`{shown}` failed{code} and {printed}")


def _quote(output: str) -> str:
    text = bounded(output, _MAX_OUTPUT)
    return f"\n{text}" if "\n" in text else f" {text}"


def _closing(reports: list[_Report]) -> str:
    lead = "Done" if all(report.ok for report in reports) else "Not all of it worked"
    return f"{lead}: " + "; ".join(report.text for report in reports)
