"""The little language: plain words into steps. docs/scripted-model.md describes it to users."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# An answer longer than this tests the tester's patience, not the stack.
MAX_WORDS = 200_000
MAX_WAIT = 3600.0


@dataclass(frozen=True, slots=True)
class Write:
    text: str
    path: str


@dataclass(frozen=True, slots=True)
class Append:
    text: str
    path: str


@dataclass(frozen=True, slots=True)
class Read:
    path: str


@dataclass(frozen=True, slots=True)
class Run:
    command: str
    ask: bool = False


@dataclass(frozen=True, slots=True)
class Say:
    text: str


@dataclass(frozen=True, slots=True)
class Remember:
    text: str


@dataclass(frozen=True, slots=True)
class Recall:
    pass


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float


@dataclass(frozen=True, slots=True)
class Words:
    count: int


@dataclass(frozen=True, slots=True)
class Think:
    text: str


@dataclass(frozen=True, slots=True)
class Fail:
    status: int


@dataclass(frozen=True, slots=True)
class Unknown:
    text: str


Step = Write | Append | Read | Run | Say | Remember | Recall | Wait | Words | Think | Fail | Unknown

PHRASES = (
    "write <text> to <path>",
    "append <text> to <path>",
    "read <path>",
    "run: <command>",
    "ask to run: <command>",
    "say <text>",
    "remember <text>",
    "recall",
    "think <text>",
    "wait <n> seconds",
    "answer with <n> words",
    "fail with <status>",
)

_QUOTED = r'(?:"(?:\\.|[^"\\])*"|`[^`]*`)'
# A quote counts only where an argument can begin and end, so that 5" and don't stay plain text.
_TOKEN = re.compile(
    rf"(?P<quoted>(?<![^\s:]){_QUOTED}(?=[\s;,.!?]|$))"
    r"|(?P<separator>\n|;|,?[ \t](?:and[ \t]+)?then[ \t])",
    re.DOTALL | re.IGNORECASE,
)
_LEAD_IN = re.compile(
    r"(?:(?:[-*•]|\d{1,3}[.)]|please|now|first|next|also|and|then|finally|can you|could you)"
    r"[ \t]+){0,4}",
    re.IGNORECASE,
)
# A bare command is the rest of its line: shells use `;` and `then` themselves.
_BARE_RUN = re.compile(
    rf"[ \t]*{_LEAD_IN.pattern}(?:ask to )?run:[ \t]*(?!`)(?=\S)[^\n]*", re.IGNORECASE
)
_ARGUMENT = re.compile(rf"(?P<quoted>{_QUOTED})(?P<rest>.*)", re.DOTALL)
_TO = re.compile(r"\s+(?:in)?to\s+(?P<path>.+)", re.IGNORECASE | re.DOTALL)
_BARE_TO = re.compile(r"[ \t](?:in)?to[ \t]", re.IGNORECASE)
_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\"": '"', r"\\": "\\"}


def parse(prompt: str) -> tuple[Step, ...]:
    """The steps of a prompt, in order; what fits no phrase becomes `Unknown`."""
    return tuple(_step(piece) for piece in _pieces(prompt) if piece)


def _pieces(prompt: str) -> Iterator[str]:
    start = position = 0
    while position <= len(prompt):
        bare_run = _BARE_RUN.match(prompt, position) if position == start else None
        if bare_run:
            yield _without_lead_in(bare_run.group())
            start = position = bare_run.end() + 1
            continue
        token = _TOKEN.search(prompt, position)
        if token is None:
            break
        position = token.end()
        if token["separator"]:
            yield _without_lead_in(prompt[start : token.start()])
            start = position
    yield _without_lead_in(prompt[start:])


def _without_lead_in(piece: str) -> str:
    piece = piece.strip()
    lead_in = _LEAD_IN.match(piece)
    return piece[lead_in.end() :] if lead_in else piece


def _step(piece: str) -> Step:
    for pattern, build in _PHRASES:
        match = pattern.match(piece)
        if match:
            step = build(match)
            if step is not None:
                return step
    return Unknown(piece)


def _phrase(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.DOTALL)


def _unquote(argument: str) -> str:
    argument = argument.strip()
    match = _ARGUMENT.fullmatch(argument)
    if not match or match["rest"].strip(" .!?"):
        return argument
    quoted = match["quoted"]
    if quoted[0] == "`":
        return quoted[1:-1]
    return re.sub(r'\\[nt"\\]', lambda escape: _ESCAPES[escape.group()], quoted[1:-1])


def _path(argument: str) -> str | None:
    """A path, quoted or a single word; the full stop of a sentence is not part of it."""
    argument = re.sub(r"^(?:the\s+)?file\s+", "", argument.strip(), flags=re.IGNORECASE)
    match = _ARGUMENT.fullmatch(argument)
    path = _unquote(argument) if match else argument.rstrip(".,!?") or argument
    if not path or "\0" in path or (not match and len(path.split()) != 1):
        return None
    return path


def _text_and_path(match: re.Match[str]) -> tuple[str, str] | None:
    argument = match["argument"]
    quoted = _ARGUMENT.fullmatch(argument)
    to = _TO.fullmatch(quoted["rest"]) if quoted else None
    if quoted and to:
        text, target = _unquote(quoted["quoted"]), to["path"]
    else:
        *_, last = [None, *_BARE_TO.finditer(argument)]
        if last is None:
            return None
        text, target = argument[: last.start()].strip(), argument[last.end() :]
    path = _path(target)
    return (text, path) if path else None


def _write(match: re.Match[str]) -> Step | None:
    found = _text_and_path(match)
    return Write(*found) if found else None


def _append(match: re.Match[str]) -> Step | None:
    found = _text_and_path(match)
    return Append(*found) if found else None


def _read(match: re.Match[str]) -> Step | None:
    argument = re.sub(r"^back\s|\sback[.!?]*$", "", match["argument"], flags=re.IGNORECASE)
    path = _path(argument)
    return Read(path) if path else None


def _run(match: re.Match[str]) -> Step | None:
    argument = match["argument"].strip()
    quoted = re.fullmatch(r"`([^`]+)`[.!?]*", argument)
    command = quoted.group(1) if quoted else argument
    if not command or (not quoted and not match["colon"]):
        return None
    return Run(command, ask=bool(match["ask"]))


def _wait(match: re.Match[str]) -> Step | None:
    seconds = float(match["n"])
    return Wait(seconds) if seconds <= MAX_WAIT else None


def _words(match: re.Match[str]) -> Step | None:
    count = int(match["n"])
    return Words(count) if 0 < count <= MAX_WORDS else None


def _fail(match: re.Match[str]) -> Step | None:
    status = int(match["n"])
    return Fail(status) if 400 <= status <= 599 else None


_PHRASES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Step | None]], ...] = (
    (_phrase(r"(?P<ask>ask to )?run(?P<colon>:)?\s*(?P<argument>.+)"), _run),
    (_phrase(r"write:?\s+(?P<argument>.+)"), _write),
    (_phrase(r"append:?\s+(?P<argument>.+)"), _append),
    (_phrase(r"read:?\s+(?P<argument>.+)"), _read),
    (_phrase(r"say:?\s+(?P<argument>.+)"), lambda match: Say(_unquote(match["argument"]))),
    (
        _phrase(r"remember:?\s+(?P<argument>.+)"),
        lambda match: Remember(_unquote(match["argument"])),
    ),
    (_phrase(r"think:?\s+(?P<argument>.+)"), lambda match: Think(_unquote(match["argument"]))),
    (
        _phrase(r"(?:recall|what (?:did i say|was said|do you remember)(?: earlier)?)\s*[.?!]*\Z"),
        lambda _: Recall(),
    ),
    (
        _phrase(
            r"(?:wait|answer slowly)(?: for)? (?P<n>\d{1,5}(?:\.\d{1,3})?)\s*"
            r"(?:s|secs?|seconds?)[.!]?\Z"
        ),
        _wait,
    ),
    (_phrase(r"(?:answer (?:with|in) )?(?P<n>\d{1,7}) words?[.!]?\Z"), _words),
    (_phrase(r"fail with (?:status )?(?P<n>\d{3})[.!]?\Z"), _fail),
)
