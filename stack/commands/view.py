"""A transcript on a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from rich.console import Console
from rich.filesize import decimal

from contracts.bodies import NotDurableBody, ReceiptBody, Totals
from contracts.events import (
    TURN_ENDS,
    Egress,
    ErrorInfo,
    Event,
    Message,
    ModelFailed,
    MountLost,
    MountReady,
    MountRestored,
    PermissionAnswered,
    PermissionAsked,
    Plan,
    Quota,
    Receipt,
    ReceiptFailed,
    Resume,
    RunAdopted,
    RunGap,
    SandboxAttached,
    SandboxCreating,
    SandboxDestroyed,
    SandboxGone,
    SandboxReady,
    StateFailed,
    Thought,
    ToolCall,
    ToolResult,
    ToolUpdate,
    TurnCancelled,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnStarted,
    Usage,
    WorkspaceRestored,
    WorkspaceSwept,
    WorkspaceVerified,
)
from stack.commands.terminal import INTERRUPTED, one_line, safe, styled
from stack.commands.usage import plus, used

# A tool's output is there to be recognised, not read: `--json` has all of it.
OUTPUT_LINES = 12
OUTPUT_COLUMNS = 160
OUTPUT_CHARS = 64_000
SHOWN_FILES = 50


# What tools call the one argument that tells what they do, in order of how much it tells.
TELLING = ("command", "cmd", "file_path", "filePath", "path", "query", "pattern", "url")


@dataclass
class _Tool:
    title: str = ""
    detail: str = ""
    shown: bool = False


class TranscriptView:
    """Shows events as they come; pieces of one message run on in one paragraph."""

    def __init__(self, out: Console, *, prompts: bool = True) -> None:
        self._out = out
        self._prompts = prompts
        self._speaker = ""
        self._tools: dict[str, _Tool] = {}
        self._proven: set[UUID | None] = set()
        self._judged: set[UUID | None] = set()
        self._used: dict[UUID | None, Totals] = {}
        self.exit_code: int | None = None

    def show(self, event: Event) -> None:
        """Shows one event; sets `exit_code` at the end of a turn."""
        if isinstance(event, Message | Thought):
            self._speech(event)
        elif isinstance(event, ToolCall | ToolUpdate | ToolResult):
            self._tool(event)
        elif isinstance(event, Receipt | ReceiptFailed):
            self._verdict(event)
        elif isinstance(event, Usage):
            self._used[event.turn_id] = plus(self._used.get(event.turn_id, Totals()), event)
        elif isinstance(event, TURN_ENDS):
            self._end(event)
        elif said := remark(event):
            self._line(*said)

    def close(self) -> None:
        """Ends a paragraph that is still open."""
        if self._speaker:
            self._out.print()
            self._speaker = ""

    def _line(self, text: str, style: str = "") -> None:
        self.close()
        self._out.print(styled(text, style))

    def _speech(self, event: Message | Thought) -> None:
        speaker = event.role if isinstance(event, Message) else "thought"
        if speaker == "user":
            if self._prompts:
                self._line("> " + safe(event.text).replace("\n", "\n> "), "bold")
            return
        text = event.text
        if speaker != self._speaker:
            self.close()
            text = text.lstrip("\n")
        if text:
            self._speaker = speaker
            style = "dim italic" if speaker == "thought" else ""
            self._out.print(styled(text, style), end="")

    def _tool(self, event: ToolCall | ToolUpdate | ToolResult) -> None:
        tool = self._tools.setdefault(event.tool_call_id, _Tool())
        if isinstance(event, ToolResult):
            self._headline(tool)
            if event.status == "failed":
                self._line("  ✗ failed", "red")
            for line in bounded(event.output):
                self._line(f"  {line}", "dim")
            return
        tool.title = event.title or tool.title
        tool.detail = detail(event.input) or tool.detail
        # Harnesses announce a call before they know its input: "Terminal", "Preparing file…".
        if tool.detail:
            self._headline(tool)

    def _headline(self, tool: _Tool) -> None:
        if not tool.shown:
            tool.shown = True
            told = tool.title if tool.detail in tool.title else f"{tool.title} {tool.detail}"
            self._line(f"● {one_line(told.strip() or 'tool')}", "cyan")

    def _verdict(self, event: Receipt | ReceiptFailed) -> None:
        self._judged.add(event.turn_id)
        if isinstance(event, ReceiptFailed):
            self._proven.discard(event.turn_id)
            for line in not_durable(event):
                self._line(line, "red")
            return
        self._proven.add(event.turn_id)
        self._line(receipt(event), "green")
        if event.lost:
            self._line(f"  {one_line(event.lost)}", "yellow")

    def _end(self, event: TurnCompleted | TurnFailed | TurnCancelled | TurnInterrupted) -> None:
        proven = event.turn_id in self._proven
        if isinstance(event, TurnFailed | TurnInterrupted):
            self._error(
                "turn failed" if isinstance(event, TurnFailed) else "turn interrupted", event.error
            )
            self.exit_code = 1
        elif isinstance(event, TurnCancelled):
            self._line("turn cancelled" + (f": {event.reason}" if event.reason else ""), "yellow")
            self.exit_code = INTERRUPTED
        else:
            if event.stop_reason != "end_turn":
                self._line(f"turn ended: {event.stop_reason}", "yellow")
            # Completed, yet nothing proves that its work is kept: that is no success.
            self.exit_code = 0 if proven else 1
        totals = self._used.pop(event.turn_id, None)
        if totals is not None:
            self._line(used(totals), "dim")
        if event.turn_id not in self._judged:
            self._line("✗ no receipt: what this turn left is not proven to be in the store", "red")

    def _error(self, what: str, error: ErrorInfo) -> None:
        self._line(f"✗ {what}: {error.message} ({error.code})", "red")
        if error.hint:
            self._line(f"  {error.hint}")


def receipt(proof: Receipt | ReceiptBody) -> str:
    """A receipt in one line."""
    return (
        f"✓ receipt: {proof.files} {plural(proof.files, 'file')}, {decimal(proof.bytes)} in"
        f" the store by {proof.engine}, manifest {proof.manifest_sha256[:12]},"
        f" {proof.took:.1f} s" + (f", copied every {proof.window:.0f} s" if proof.window else "")
    )


def egress(event: Egress) -> str:
    """What went out of the sandbox, or was not let out, in one line."""
    where = f"{event.host or 'hosts'}{'' if event.port is None else f':{event.port}'}"
    times = "" if event.connections < 2 else f" {event.connections} times"
    if event.verdict == "refused":
        return f"egress refused{times}: {one_line(where)}: {one_line(event.reason)}"
    moved = f"{decimal(event.bytes_up)} up, {decimal(event.bytes_down)} down"
    why = f" ({one_line(event.reason)})" if event.reason else ""
    return f"egress{times}: {one_line(where)}, {moved}{why}"


def not_durable(why: ReceiptFailed | NotDurableBody) -> list[str]:
    """What is not proven to be in the store, with the reason for each file."""
    lines = [f"✗ not durable ({why.engine}): {one_line(why.reason)}"]
    files = list(why.files.items())
    lines += [f"    {one_line(path)}: {one_line(reason)}" for path, reason in files[:SHOWN_FILES]]
    if len(files) > SHOWN_FILES:
        lines.append(f"    … {len(files) - SHOWN_FILES} more files")
    return lines


def detail(given: Any) -> str:
    """The argument of a tool call that tells most; empty when there is none yet."""
    if not isinstance(given, dict):
        return ""
    for name in TELLING:
        value = given.get(name)
        if isinstance(value, list):
            value = " ".join(map(str, value))
        if isinstance(value, str) and value:
            return value
    return ""


def bounded(output: str) -> list[str]:
    """The first lines of a tool's output, and how much was left out."""
    lines = safe(output[:OUTPUT_CHARS]).rstrip().split("\n")
    if lines == [""]:
        return []
    shown = [
        line if len(line) <= OUTPUT_COLUMNS else line[: OUTPUT_COLUMNS - 1] + "…"
        for line in lines[:OUTPUT_LINES]
    ]
    if len(output) > OUTPUT_CHARS:
        shown.append(f"… {len(output)} characters in all")
    elif len(lines) > OUTPUT_LINES:
        left = len(lines) - OUTPUT_LINES
        shown.append(f"… {left} more {plural(left, 'line')}")
    return shown


def plural(count: int, word: str) -> str:
    if count == 1:
        return word
    return f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"


def remark(event: Event) -> tuple[str, str] | None:
    """What is said in passing: text and style. None for what only `--json` shows."""
    match event:
        case TurnStarted():
            egress_mode = "" if event.egress == "off" else f"egress {event.egress}"
            choice = " ".join(filter(None, (event.model, event.reasoning, egress_mode)))
            return f"── {event.harness} on {event.provider} {choice}".rstrip(), "dim"
        case PermissionAsked():
            return f"? asks: {one_line(event.title)}", "yellow"
        case PermissionAnswered():
            return f"  answered {event.option_id or 'nothing'} by {event.by}", "dim"
        case Plan():
            return "\n".join(["plan:", *(f"  {_entry(each)}" for each in event.entries)]), "dim"
        case ModelFailed():
            status = f" ({event.status})" if event.status else ""
            return f"the model API failed{status}: {one_line(event.message)}", "yellow"
        case Egress():
            return egress(event), "yellow" if event.verdict == "refused" else "dim"
        case MountLost():
            return f"workspace lost ({event.engine}): {one_line(event.reason)}", "red"
        case Quota():
            return one_line(event.message), "yellow"
        case RunGap():
            lines = f"{event.lines} {plural(event.lines, 'line')}"
            return f"the sidecar lost {lines} of the turn's journal", "yellow"
        case _:
            said = _machinery(event)
            return None if said is None else (one_line(said), "dim")


def _machinery(event: Event) -> str | None:
    match event:
        case SandboxCreating():
            return f"sandbox on {event.provider} is being made"
        case SandboxReady():
            own = ", with the provider's network" if event.network == "provider" else ""
            return f"sandbox {event.sandbox_id} on {event.provider}, {event.took:.1f} s{own}"
        case SandboxAttached():
            return f"sandbox {event.sandbox_id} on {event.provider}, still warm"
        case SandboxGone():
            return f"sandbox {event.sandbox_id} is gone: {event.reason}".rstrip(": ")
        case SandboxDestroyed():
            return f"sandbox {event.sandbox_id} destroyed"
        case MountReady():
            why = f" ({event.why})" if event.why else ""
            return f"workspace by {event.engine}{why}, {event.took:.1f} s"
        case MountRestored():
            return f"workspace is back by {event.engine}, {event.took:.1f} s"
        case WorkspaceRestored():
            counts = [(event.symlinks, "link"), (event.modes, "mode"), (event.mtimes, "time")]
            counts.append((event.directories, "empty directory"))
            told = ", ".join(f"{n} {plural(n, word)}" for n, word in counts if n)
            return f"put back from the last receipt: {told or 'nothing'}"
        case WorkspaceVerified():
            if event.files == event.of:
                return f"{event.of} {plural(event.of, 'file')} verified: as the last receipt says"
            changed = ", ".join(event.changed)
            return f"{event.files} of {event.of} files as in the last receipt, not: {changed}"
        case WorkspaceSwept():
            return f"removed {', '.join(event.paths)}: {event.reason}"
        case RunAdopted():
            return f"the turn goes on: {event.reason}"
        case StateFailed():
            return f"the memory of {event.harness} was not stored: {event.reason}"
        case Resume():
            carried = f", with {event.carried}" if event.carried else ""
            left_out = f"; left out: {event.dropped}" if event.dropped else ""
            return f"conversation: {event.rung}{carried}{left_out}"
        case _:
            return None


def _entry(entry: Any) -> str:
    if not isinstance(entry, dict):
        return one_line(str(entry))
    done = "x" if entry.get("status") == "completed" else " "
    return f"[{done}] {one_line(str(entry.get('content', '')))}"
