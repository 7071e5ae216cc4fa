"""The little language of the scripted model."""

from __future__ import annotations

import gc
import re
import time

import pytest

from sidecar.gateway.scripted.language import (
    MAX_WAIT,
    MAX_WORDS,
    PHRASES,
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
    parse,
)
from tests.support.paths import ROOT

ONE_STEP: list[tuple[str, Step]] = [
    ("write hello to a.txt", Write("hello", "a.txt")),
    ("WRITE Hello There TO a.txt", Write("Hello There", "a.txt")),
    ("Write Hello There to a.txt", Write("Hello There", "a.txt")),
    ("please write hello to the file a.txt.", Write("hello", "a.txt")),
    ("write hello into src/a.txt", Write("hello", "src/a.txt")),
    ("write a letter to mother to a.txt", Write("a letter to mother", "a.txt")),
    ('write "a; b then c" to a.txt', Write("a; b then c", "a.txt")),
    (r'write "one\ntwo\t\"three\" \\ \d" to a.txt', Write('one\ntwo\t"three" \\ \\d', "a.txt")),
    (r"write `a\nb` to `my file.txt`", Write(r"a\nb", "my file.txt")),
    ('write "a\nb" to a.txt', Write("a\nb", "a.txt")),
    ('write 5" pipe to a.txt', Write('5" pipe', "a.txt")),
    ("write it's to a.txt", Write("it's", "a.txt")),
    ("write a letter to my mother", Unknown("write a letter to my mother")),
    ("append more to a.txt", Append("more", "a.txt")),
    ("append ` more` to a.txt", Append(" more", "a.txt")),
    ("read a.txt", Read("a.txt")),
    ("read a.txt back", Read("a.txt")),
    ("read back a.txt!", Read("a.txt")),
    ('read "my file.txt" back', Read("my file.txt")),
    ("read the news of today", Unknown("read the news of today")),
    ("run: ls -la; echo $HOME", Run("ls -la; echo $HOME")),
    ("run: if true; then echo yes; fi", Run("if true; then echo yes; fi")),
    ("run: echo `date`", Run("echo `date`")),
    ("run `make test`", Run("make test")),
    ("run:`a; b`", Run("a; b")),
    ("run away", Unknown("run away")),
    ("ask to run: touch x", Run("touch x", ask=True)),
    ("Ask to run `touch x`.", Run("touch x", ask=True)),
    ("say hello", Say("hello")),
    ('say "one; two then three"', Say("one; two then three")),
    ('say "a" is a letter', Say('"a" is a letter')),
    ("remember the code is 7", Remember("the code is 7")),
    ("recall", Recall()),
    ("What did I say?", Recall()),
    ("what was said earlier?", Recall()),
    ("recall the vote", Unknown("recall the vote")),
    ("think it over", Think("it over")),
    ("wait 3 seconds", Wait(3)),
    ("wait 0.5 seconds.", Wait(0.5)),
    ("answer slowly for 1 second", Wait(1)),
    (f"wait {MAX_WAIT + 1:g} seconds", Unknown(f"wait {MAX_WAIT + 1:g} seconds")),
    ("answer with 200 words", Words(200)),
    ("200 words", Words(200)),
    (f"{MAX_WORDS + 1} words", Unknown(f"{MAX_WORDS + 1} words")),
    ("fail with 529", Fail(529)),
    ("fail with 200", Unknown("fail with 200")),
    ("1. say hello", Say("hello")),
    ("- say hello", Say("hello")),
]


@pytest.mark.parametrize(("prompt", "step"), ONE_STEP, ids=[prompt for prompt, _ in ONE_STEP])
def test_a_phrase_is_one_step(prompt: str, step: Step) -> None:
    assert parse(prompt) == (step,)


MANY_STEPS: list[tuple[str, tuple[Step, ...]]] = [
    ("say a; say b", (Say("a"), Say("b"))),
    ("say a then say b", (Say("a"), Say("b"))),
    ("say a, and then say b", (Say("a"), Say("b"))),
    ("say a\n\n\nsay b\n", (Say("a"), Say("b"))),
    ("run: a; b then c\nsay d", (Run("a; b then c"), Say("d"))),
    ("run `a; b` then say d", (Run("a; b"), Say("d"))),
    ("run: `a; b`; say d", (Run("a; b"), Say("d"))),
    ("say a; run: b; say c", (Say("a"), Run("b; say c"))),
    ("1. write a to b\n2. run: ls", (Write("a", "b"), Run("ls"))),
    ("dear model; say a", (Unknown("dear model"), Say("a"))),
    ('say "unclosed; say b', (Say('"unclosed'), Say("b"))),
    ("", ()),
    (" ;\n; ", ()),
]


@pytest.mark.parametrize(("prompt", "steps"), MANY_STEPS, ids=[prompt for prompt, _ in MANY_STEPS])
def test_separators_divide_a_prompt_into_steps(prompt: str, steps: tuple[Step, ...]) -> None:
    assert parse(prompt) == steps


@pytest.mark.parametrize(
    "unit", ["\n", " ", ";", '"', ' "a', "`", "then ", " to ", "please ", 'say "', "run: ", "read "]
)
def test_parsing_takes_time_in_proportion_to_the_prompt(unit: str) -> None:
    """A prompt may have a million characters; ten times more of it must not take a hundred."""
    small, large = (_seconds(unit * (size // len(unit))) for size in (10_000, 100_000))
    assert large < 40 * small + 0.1


def _seconds(prompt: str) -> float:
    """Of CPU, the least of three, without collecting the garbage that other tests have left."""
    spent = []
    gc.disable()
    try:
        for _ in range(3):
            started = time.thread_time()
            parse(prompt)
            spent.append(time.thread_time() - started)
    finally:
        gc.enable()
    return min(spent)


def test_every_phrase_is_documented_and_understood() -> None:
    page = (ROOT / "docs" / "scripted-model.md").read_text()
    for phrase in PHRASES:
        assert f"`{phrase}`" in page
        example = re.sub(r"<n>", "3", phrase.replace("<status>", "500"))
        [step] = parse(re.sub(r"<\w+>", "x", example))
        assert not isinstance(step, Unknown), phrase
