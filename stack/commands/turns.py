"""`turns`, `receipt`, `leaks`."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated

import typer
from pydantic import BaseModel
from rich.table import Table
from rich.text import Text

from client import Holdfast
from contracts.bodies import NotDurableBody, ReceiptBody, Session, Turn, TurnPage
from contracts.errors import InvalidInput, TurnNotFound
from stack.commands import options as opt
from stack.commands.connect import connect
from stack.commands.terminal import command, console, one_line, put_json, safe, styled
from stack.commands.view import not_durable, plural
from stack.commands.view import receipt as receipt_line

STYLES = {"running": "yellow", "queued": "dim", "completed": "", "cancelled": "yellow"}


class Verified(BaseModel):
    """`receipt --json`; `differs` is null when nothing was compared."""

    turn_id: str
    receipt: ReceiptBody | None
    not_durable: NotDurableBody | None
    differs: dict[str, str] | None


@command
async def turns(session: opt.SessionRef, as_json: opt.Json = False) -> None:
    """List a session's turns, and which of them are proven to be in the store."""
    async with connect() as hf:
        found = await hf.sessions.resolve(session)
        listed = [turn async for turn in hf.turns.list(found.id)]
    if as_json:
        put_json(TurnPage(turns=listed))
    elif listed:
        console().print(_table(listed))


@command
async def receipt(
    session: opt.SessionRef,
    turn: Annotated[
        str | None, typer.Argument(help="Id or a unique prefix; the last that ended if left out.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file from the store and compare it.")
    ] = False,
    as_json: opt.Json = False,
) -> int:
    """Show a turn's receipt. Exit code: 0 when it has one and, with --verify, nothing differs."""
    async with connect() as hf:
        found = await hf.sessions.resolve(session)
        chosen = await _choose(hf, found, turn)
        differs: dict[str, str] | None = None
        if verify and chosen.receipt is not None:
            async with aclosing(hf.verify(chosen)) as all_of_them:
                differs = {each.path: each.problem async for each in all_of_them}
    if as_json:
        put_json(
            Verified(
                turn_id=str(chosen.id),
                receipt=chosen.receipt,
                not_durable=chosen.not_durable,
                differs=differs,
            )
        )
    else:
        _print(chosen, differs)
    return 0 if chosen.receipt is not None and not differs else 1


@command
async def leaks(as_json: opt.Json = False) -> int:
    """List sandboxes that live and that nothing answers for. Exit code 1 when there are any."""
    async with connect() as hf:
        found = await hf.leaks()
    if as_json:
        put_json(found)
    elif not found.leaks:
        console().print(styled("no leaks", "green"))
    for leak in [] if as_json else found.leaks:
        since = leak.since.astimezone().strftime("%Y-%m-%d %H:%M:%S") if leak.since else "?"
        told = f"{leak.provider} {leak.sandbox_id or 'no id'} of session {leak.session_id or '?'}"
        console().print(styled(f"{told} since {since}: {one_line(leak.reason)}", "red"))
    return 1 if found.leaks else 0


async def _choose(hf: Holdfast, session: Session, ref: str | None) -> Turn:
    """Raises: TurnNotFound, InvalidInput when several match."""
    listed = [turn async for turn in hf.turns.list(session.id)]
    if ref is None:
        ended = [turn for turn in listed if turn.ended_at is not None]
        if not ended:
            raise TurnNotFound("no turn of this session has ended yet", hint="holdfast run")
        return ended[-1]
    wanted = ref.lower().replace("-", "")
    matching = [turn for turn in listed if turn.id.hex.startswith(wanted)]
    if len(matching) > 1:
        raise InvalidInput(f"{len(matching)} turns start with {ref!r}", hint="give more of it")
    if not matching:
        raise TurnNotFound(f"no turn starts with {ref!r}", hint=f"holdfast turns {session.id}")
    return matching[0]


def _print(turn: Turn, differs: dict[str, str] | None) -> None:
    out = console()
    out.print(styled(f"turn {turn.id} {turn.state}", "dim"))
    for line, style in _verdict(turn):
        out.print(styled(line, style))
    for path, problem in (differs or {}).items():
        out.print(styled(f"✗ {safe(path)}: {problem}".replace("✗ : ", "✗ "), "red"))
    if differs is not None and not differs:
        out.print(styled("✓ every file is in the store as the manifest says", "green"))
    elif differs:
        count = len(differs)
        out.print(styled(f"{count} {plural(count, 'difference')} to the store", "red"))


def _verdict(turn: Turn) -> list[tuple[str, str]]:
    if turn.receipt is not None:
        return [(receipt_line(turn.receipt), "green")]
    if turn.not_durable is not None:
        return [(line, "red") for line in not_durable(turn.not_durable)]
    if turn.ended_at is None:
        return []
    return [("✗ no receipt: what this turn left is not proven to be in the store", "red")]


def _table(listed: list[Turn]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("turn", no_wrap=True)
    for name in ("prompt", "harness", "state", "in the store"):
        table.add_column(name, overflow="fold" if name == "in the store" else "ellipsis")
    for turn in listed:
        verdict = Text("\n").join(styled(line, style) for line, style in _verdict(turn))
        table.add_row(
            str(turn.id),
            styled(one_line(turn.prompt, 40)),
            styled(turn.harness),
            styled(turn.state, STYLES.get(turn.state, "red")),
            verdict,
        )
    return table
