"""What a turn is asked to do, in the scripted model's language, and what must be true afterwards.

A step claims its effects only when its tool said that it was done, and a claim counts only for a
turn with a receipt. Shell steps write by `dd conv=fsync` and print a mark behind it: a shell says
nothing of an error that only close() is told, and a later fsync of another descriptor knows nothing
of what was lost then.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]
LOG = "log.txt"
REPO = "repo"
DATED = "dated.txt"
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True)
class Holds:
    path: str
    content: bytes


@dataclass(frozen=True)
class HasLine:
    path: str
    line: bytes


@dataclass(frozen=True)
class Absent:
    path: str


@dataclass(frozen=True)
class Links:
    path: str
    target: str


@dataclass(frozen=True)
class Committed:
    path: str
    subject: str


Effect = Holds | HasLine | Absent | Links | Committed


@dataclass(frozen=True)
class Step:
    """`token` stands in its tool call, `mark` in its result. `synced`: it waited for the store."""

    phrase: str
    token: str = ""
    mark: str = ""
    synced: bool = False
    effects: tuple[Effect, ...] = ()


@dataclass(frozen=True)
class Script:
    number: int
    steps: tuple[Step, ...]

    @property
    def prompt(self) -> str:
        return "\n".join(step.phrase for step in self.steps)

    @property
    def last_words(self) -> str:
        return f"fin-{self.number}-end"

    def done(self, events: Iterable[Event]) -> list[Step]:
        """The steps whose tools said that they were done."""
        calls: dict[str, str] = {}
        results: dict[str, Event] = {}
        for event in events:
            if event["type"] in ("tool.call", "tool.update"):
                known = calls.get(event["tool_call_id"], "")
                calls[event["tool_call_id"]] = known + json.dumps(
                    [event.get("title"), event.get("input"), event.get("paths")]
                )
            elif event["type"] == "tool.result" and event["status"] == "completed":
                results[event["tool_call_id"]] = event
        return [
            step
            for step in self.steps
            if step.token
            and any(
                step.token in calls.get(call, "") and step.mark in result.get("output", "")
                for call, result in results.items()
            )
        ]


@dataclass
class Expected:
    """What a session's files must be. What a turn without a receipt touched is not known."""

    files: dict[str, Effect] = field(default_factory=dict)
    lines: set[bytes] = field(default_factory=set)
    commits: set[str] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.files) + len(self.lines) + len(self.commits)

    def after(
        self, script: Script, done: Sequence[Step], *, receipt: bool, remounted: bool
    ) -> None:
        """Take a turn into account. `remounted`: what had not been fsynced may be lost."""
        for step in script.steps:
            sure = receipt and step in done and (step.synced or not remounted)
            for effect in step.effects:
                if isinstance(effect, HasLine):
                    self.lines |= {effect.line} if sure else set()
                elif isinstance(effect, Committed):
                    self.commits |= {effect.subject} if sure else set()
                elif sure:
                    self.files[effect.path] = effect
                else:
                    self.files.pop(effect.path, None)


def write_script(number: int, earlier: Sequence[int], chance: random.Random) -> Script:
    """The script of round `number`; `earlier` are rounds of the same session."""
    makers = [_large, _append, _rename, _link, _commit, _delete, _write, _backdate]
    steps = [_write(number, 0, earlier, chance)]
    for place, make in enumerate(chance.sample(makers, chance.randint(3, 5)), start=1):
        steps.append(make(number, place, earlier, chance))
    pause = Step(f"wait {chance.choice((1, 1.5, 2))} seconds")
    steps.insert(chance.randint(1, len(steps)), pause)
    script = Script(number, tuple(steps))
    return Script(number, (*script.steps, Step(f"say {script.last_words}")))


def history_path(number: int) -> str:
    """Where the turn after round `number` writes down what git has."""
    return f"plain/{number}.log"


def plain_script(number: int) -> Script:
    """The turn right after a round of faults: it must succeed."""
    content = f"after round {number}"
    path = f"plain/{number}.txt"
    write = Step(f'write "{content}" to {path}', path, effects=(Holds(path, content.encode()),))
    # into a file: codex's adapter now and then drops the first piece of a command's output
    history = f": plain-{number}; git -C {REPO} log --format=%s > {history_path(number)}; true"
    return Script(
        number,
        (write, Step(f"run: {history}", f"plain-{number};"), Step(f"say fin-{number}-end")),
    )


def _text(chance: random.Random, size: int) -> str:
    return "".join(chance.choices(ALPHABET, k=size))


def _dd(path: str) -> str:
    """A command that writes its input to a file and fails when it is not stored."""
    return f"dd of={path} conv=fsync status=none"


def _shell(
    number: int,
    place: int,
    command: str,
    *effects: Effect,
    nap: float = 0,
    synced: bool = True,
) -> Step:
    token = f"step-{number}-{place}"
    wait = f"sleep {nap} && " if nap else ""
    # the mark is put together by printf, so that it cannot be found in the command itself
    return Step(
        f"run: : {token} && {wait}{command} && printf '%s%s\\n' ok- {number}-{place}",
        token,
        f"ok-{number}-{place}",
        synced=synced,
        effects=effects,
    )


def _write(number: int, place: int, _earlier: Sequence[int], chance: random.Random) -> Step:
    path = f"r{number}/w{place}.txt"
    content = _text(chance, chance.choice((12, 200, 4000)))
    return Step(f'write "{content}" to {path}', path, effects=(Holds(path, content.encode()),))


def _large(number: int, place: int, _earlier: Sequence[int], chance: random.Random) -> Step:
    path, count = f"r{number}/large{place}", chance.choice((2_000, 60_000, 300_000))
    word = _text(chance, 8)
    content = "".join(f"{word}{n}\n" for n in range(1, count + 1)).encode()
    command = f"mkdir -p r{number} && seq -f {word}%.0f 1 {count} | {_dd(path)} bs=256K"
    return _shell(number, place, command, Holds(path, content))


def _append(number: int, place: int, _earlier: Sequence[int], chance: random.Random) -> Step:
    line = f"line-{number}-{place}-{_text(chance, 20)}"
    command = f"echo {line} | dd of={LOG} oflag=append conv=notrunc,fsync status=none"
    return _shell(number, place, command, HasLine(LOG, line.encode()), nap=chance.choice((0, 0.8)))


def _backdate(number: int, place: int, _earlier: Sequence[int], chance: random.Random) -> Step:
    """Other bytes, but the size and the time of change that the file has always had."""
    content = f"{number:06d}-{place}-{_text(chance, 20)}"
    command = f"echo {content} | {_dd(DATED)}"
    command += f" && touch -d 2001-02-03T04:05:06Z {DATED} && sync {DATED}"
    return _shell(number, place, command, Holds(DATED, f"{content}\n".encode()))


def _rename(number: int, place: int, _earlier: Sequence[int], chance: random.Random) -> Step:
    word, new = _text(chance, 30), f"r{number}/renamed{place}"
    old = f"r{number}/old{place}"
    command = f"mkdir -p r{number} && echo {word} | {_dd(old)} && mv {old} {new}"
    command += f" && sync {new}"
    return _shell(number, place, command, Holds(new, f"{word}\n".encode()), Absent(old), nap=0.3)


def _link(number: int, place: int, _earlier: Sequence[int], chance: random.Random) -> Step:
    path, target = f"r{number}/link{place}", f"w0.txt.{chance.randint(0, 9)}"
    command = f"mkdir -p r{number} && ln -s {target} {path} && sync r{number}"
    return _shell(number, place, command, Links(path, target), synced=False)


def _commit(number: int, place: int, _earlier: Sequence[int], chance: random.Random) -> Step:
    subject, word = f"commit-{number}-{place}", _text(chance, 40)
    command = (
        f"mkdir -p {REPO} && git -C {REPO} init -q && echo {word} > {REPO}/f{number}.txt"
        f" && git -C {REPO} add -A && git -C {REPO} -c user.name=a -c user.email=a@b.example"
        f" -c core.fsync=all commit -qm {subject}"
    )
    return _shell(number, place, command, Committed(REPO, subject), synced=False)


def _delete(number: int, place: int, earlier: Sequence[int], chance: random.Random) -> Step:
    path = f"r{chance.choice(earlier)}/w0.txt" if earlier else f"r{number}/never"
    return _shell(number, place, f"rm -f {path}", Absent(path), synced=False)
