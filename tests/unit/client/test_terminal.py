"""What an agent writes must not be able to drive the terminal."""

from __future__ import annotations

import time

import pytest

from contracts.events import RunGap
from stack.commands.terminal import one_line, safe
from stack.commands.view import OUTPUT_COLUMNS, OUTPUT_LINES, bounded, remark

ESC = "\x1b"


@pytest.mark.parametrize(
    ("hostile", "left"),
    [
        (f"{ESC}[31mred{ESC}[0m", "red"),
        (f"{ESC}[2J{ESC}[H{ESC}[?1049hgone", "gone"),
        (f"{ESC}]0;title\x07text", "text"),
        (f"{ESC}]52;c;c3R1ZmY={ESC}\\text", "text"),
        (f"{ESC}]8;;http://evil\x07link{ESC}]8;;\x07", "link"),
        (f"{ESC}P+q544e{ESC}\\text", "text"),
        (f"{ESC}_apc{ESC}\\{ESC}^pm{ESC}\\text", "text"),
        (f"{ESC}c{ESC}7{ESC}(0text", "text"),
        ("\x9b31mred\x9d0;title\x9ctext", "redtext"),
        (f"{ESC}[{ESC}[31mnested", "nested"),
        (f"open {ESC}]0;never closed", "open 0;never closed"),
        (f"end{ESC}", "end"),
        ("bell\x07 back\x08 nul\x00 del\x7f", "bell back nul del"),
        ("over\rwritten\r\nnext", "over\nwritten\nnext"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("abc\u202edef\u2066ghi\u200f", "abcdefghi"),
        ("half \ud83d", "half \ufffd"),
        ("grün 漢字 🪸", "grün 漢字 🪸"),
        ("[bold]markup[/bold]", "[bold]markup[/bold]"),
    ],
)
def test_only_text_is_left(hostile: str, left: str) -> None:
    assert safe(hostile) == left


def test_nothing_a_terminal_obeys_gets_through() -> None:
    every = "".join(chr(n) for n in range(0x2100)) * 2
    kept = safe(every)
    assert not [c for c in kept if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160]
    kept.encode("utf-8")


@pytest.mark.parametrize("piece", [f"{ESC}]", f"{ESC}P", f"{ESC}[", f"{ESC}", f"{ESC}]0;x"])
def test_hostile_text_takes_no_longer_than_plain_text(piece: str) -> None:
    started = time.perf_counter()
    safe(piece * 200_000)
    assert time.perf_counter() - started < 5


def test_output_is_bounded_and_says_what_was_left_out() -> None:
    assert bounded("") == []
    assert bounded("a\nb\n") == ["a", "b"]
    many = bounded("\n".join(str(n) for n in range(100)))
    assert many[:OUTPUT_LINES] == [str(n) for n in range(OUTPUT_LINES)]
    assert many[-1] == f"… {100 - OUTPUT_LINES} more lines"
    (long,) = bounded("x" * 1000)
    assert len(long) == OUTPUT_COLUMNS
    assert bounded("x" * 5_000_000)[-1] == "… 5000000 characters in all"


def test_one_line_is_one_line() -> None:
    assert one_line("a\n b\r\n\tc") == "a b c"
    assert len(one_line("word " * 1000, 50)) == 50
    assert one_line("x" * 50, 50) == "x" * 50


def test_lines_that_the_sidecar_lost_are_told() -> None:
    said = remark(RunGap(lines=1, reason="told twice or not at all"))
    assert said == ("the sidecar lost 1 line of the turn's journal", "yellow")
