"""The handoff: what a harness must know of turns that are not in its own memory.

Built from the transcript, within a budget; what did not fit is said, in the text and in an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.bodies import PastTurn

BUDGET_CHARS = 24_000
GOAL_CHARS = 2_000
LINE_CHARS = 400
VERBATIM_TURNS = 3
VERBATIM_CHARS = 10_000
MOST_FILES = 60
MOST_TOOLS = 12

# The prompt itself follows this line.
MARK = "--- prompt ---"

TAKING_OVER = (
    "You are taking over a coding session that another agent, or you in another process, has "
    "worked on. The files in the working directory are as it left them. What follows was put "
    "together from the session's transcript; trust the files over it."
)
MEANWHILE = (
    "Since your own last message in this session, the following happened without you. The files "
    "in the working directory are as it left them; trust the files over this summary."
)
ENDINGS = {
    "failed": "ended with an error",
    "cancelled": "was cancelled by the user",
    "interrupted": "was cut off before its end",
}


@dataclass(frozen=True)
class Briefing:
    """A text to put before the prompt, and in words what it carries and what it leaves out."""

    text: str
    carried: str
    dropped: str

    def before(self, prompt: str) -> str:
        return f"{self.text}\n\n{MARK}\n{prompt}"


def briefing(turns: Sequence[PastTurn], turns_before: int, *, known_epoch: int) -> Briefing | None:
    """What happened in turns after `known_epoch` (0: nothing is known); None if nothing did.

    `turns` are the last of the session's `turns_before` turns, oldest first.
    """
    unknown = [turn for turn in turns if turn.epoch > known_epoch]
    if not unknown:
        return None
    never_sent = 0 if known_epoch else turns_before - len(turns)
    parts = [MEANWHILE if known_epoch else TAKING_OVER]
    if not known_epoch:
        parts.append(f"# Goal\n{_cut(unknown[0].prompt, GOAL_CHARS)}")
    tail = [_files(unknown), _open_points(unknown), _verbatim(unknown)]
    room = BUDGET_CHARS - sum(map(len, parts)) - sum(map(len, tail))
    done, left_out = _done(unknown, room)
    dropped = _dropped(left_out + never_sent, unknown)
    if dropped:
        tail.append(f"# Left out of this summary\n{dropped}")
    text = "\n\n".join(part for part in [*parts, done, *tail] if part)
    first, last = unknown[0].epoch, unknown[-1].epoch
    span = f"turn {first}" if first == last else f"turns {first} to {last}"
    return Briefing(text, f"a summary of {span} from the transcript", dropped)


def _done(turns: Sequence[PastTurn], room: int) -> tuple[str, int]:
    """A line per turn, the newest that fit; how many did not."""
    lines: list[str] = []
    for turn in reversed(turns):
        line = _line(turn)
        if lines and sum(map(len, lines)) + len(line) > room:
            break
        lines.insert(0, line)
    return "# What was done, oldest first\n" + "\n".join(lines), len(turns) - len(lines)


def _line(turn: PastTurn) -> str:
    words = [f"- turn {turn.epoch} ({turn.harness}), asked: {_one_line(turn.prompt)}"]
    if turn.tools:
        tools = "; ".join(_one_line(tool, 120) for tool in turn.tools[-MOST_TOOLS:])
        words.append(f"  did: {tools}")
    if turn.said:
        words.append(f"  answered: {_one_line(turn.said)}")
    if turn.state in ENDINGS:
        words.append(f"  it {ENDINGS[turn.state]}")
    return "\n".join(words)


def _files(turns: Sequence[PastTurn]) -> str:
    paths = list(dict.fromkeys(path for turn in turns for path in turn.paths))
    if not paths:
        return ""
    more = f"\n- and {len(paths) - MOST_FILES} more" if len(paths) > MOST_FILES else ""
    return "# Files touched\n" + "\n".join(f"- {path}" for path in paths[-MOST_FILES:]) + more


def _open_points(turns: Sequence[PastTurn]) -> str:
    last = turns[-1]
    points = []
    if last.state in ENDINGS:
        why = f" ({_one_line(last.error)})" if last.error else ""
        points.append(
            f"- the last turn {ENDINGS[last.state]}{why}: what it was asked may be done in part; "
            "look before you repeat it"
        )
    plan = next((turn.plan for turn in reversed(turns) if turn.plan), [])
    points += [
        f"- planned: {_one_line(str(entry.get('content', entry)))} ({entry.get('status', 'open')})"
        for entry in plan
        if entry.get("status") != "completed"
    ]
    return "# Open points\n" + "\n".join(points) if points else ""


def _verbatim(turns: Sequence[PastTurn]) -> str:
    """The last messages as they were; of a long one the end."""
    said: list[str] = []
    for turn in turns[-VERBATIM_TURNS:]:
        said.append(f"user: {turn.prompt}")
        if turn.said:
            said.append(f"assistant ({turn.harness}): {turn.said}")
    each = VERBATIM_CHARS // max(len(said), 1)
    return "# The last messages, verbatim\n" + "\n\n".join(_cut_head(text, each) for text in said)


def _dropped(turns_left_out: int, turns: Sequence[PastTurn]) -> str:
    left_out = []
    if turns_left_out:
        left_out.append(f"{turns_left_out} earlier turns")
    if any(turn.cut for turn in turns):
        left_out.append("parts of long messages, and tools beyond the last of a turn")
    long_ones = sum(len(turn.prompt) + len(turn.said) for turn in turns[-VERBATIM_TURNS:])
    if long_ones > VERBATIM_CHARS:
        left_out.append("the beginnings of the longest of the last messages")
    if any(turn.tools for turn in turns):
        left_out.append("what tools returned")
    return "; ".join(left_out)


def _one_line(text: str, most: int = LINE_CHARS) -> str:
    return _cut(" ".join(text.split()), most)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _cut_head(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    who, _, words = text.partition(": ")
    return f"{who}: …{words[-(most - len(who) - 3) :]}"
