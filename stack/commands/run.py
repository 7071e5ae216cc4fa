"""`run`: a turn, from prompt to receipt."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, nullcontext
from typing import Annotated

import typer

from client import Holdfast
from client.sessions import never_ran
from contracts.bodies import Permissions, Turn
from contracts.errors import Conflict, HoldfastError
from stack.commands import options as opt
from stack.commands.asking import Asking
from stack.commands.connect import connect
from stack.commands.terminal import (
    INTERRUPTED,
    command,
    console,
    put_error,
    put_json,
    styled,
)
from stack.commands.usage import BudgetCost, BudgetTokens, given
from stack.commands.view import TranscriptView


class _Detached(Exception):
    """The user pressed Ctrl-C twice."""


@command
async def run(
    prompt: Annotated[str, typer.Argument(help="What the agent shall do.")],
    session: Annotated[
        str | None,
        typer.Option("--session", "-s", help="Id, prefix or `last`; a new one when left out."),
    ] = None,
    harness: opt.Harness = None,
    provider: opt.Provider = None,
    model: opt.Model = None,
    reasoning: opt.Reasoning = None,
    egress: opt.EgressMode = None,
    egress_host: opt.EgressHosts = None,
    ask: Annotated[
        bool, typer.Option("--ask", help="Have the agent ask before it writes or runs something.")
    ] = False,
    queue: Annotated[
        bool, typer.Option("--queue", help="While a turn runs, wait for its end.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Start it and return.")] = False,
    budget_tokens: BudgetTokens = None,
    budget_cost: BudgetCost = None,
    as_json: opt.Json = False,
) -> int:
    """Run a turn and show it. Ctrl-C cancels it; a second one leaves it running.

    Exit code: 0 completed with a receipt, 130 cancelled, 1 anything else.
    """
    permissions: Permissions | None = "ask" if ask else None
    budget = given(budget_tokens, budget_cost)
    if budget is not None and session is not None:
        raise typer.BadParameter("a budget is for a new session: holdfast budget changes it")
    async with connect() as hf:
        if session is None:
            found = await hf.sessions.create(
                harness=harness,
                provider=provider,
                model=model,
                reasoning=reasoning,
                permissions=permissions,
                egress=egress,
                egress_hosts=egress_host,
                budget=budget,
            )
            if not as_json:
                console(stderr=True).print(styled(f"session {found.id}", "dim"))
        else:
            found = await hf.sessions.resolve(session)
            if egress is not None or egress_host is not None:
                await hf.sessions.set_egress(found.id, egress or found.egress, egress_host)
        turn = await hf.turns.start(
            found.id,
            prompt,
            harness=harness,
            provider=provider,
            model=model,
            reasoning=reasoning,
            permissions=permissions,
            queue=queue,
        )
        if detach:
            if as_json:
                put_json(turn)
            else:
                typer.echo(str(turn.id))
            return 0
        return await _attend(hf, turn, as_json)


async def _attend(hf: Holdfast, turn: Turn, as_json: bool) -> int:
    """Shows the turn to its end, with Ctrl-C listened to; returns the exit code."""
    view = TranscriptView(console(quiet=as_json), prompts=False)
    try:
        with _presses() as presses:
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(_obey(hf, turn, presses))
                turn = await _started(hf, turn)
                await _show(hf, turn, view, as_json)
                watch.cancel()
    except* _Detached:
        view.close()
        told = f"the turn goes on; follow it with: holdfast show {turn.session_id} --follow"
        console(stderr=True).print(styled(told, "dim"))
        return_code = INTERRUPTED
    else:
        view.close()
        return_code = 1 if view.exit_code is None else view.exit_code
        if never_ran(turn):
            console(stderr=True).print(styled("turn cancelled before it started", "yellow"))
            return_code = INTERRUPTED
    return return_code


async def _show(hf: Holdfast, turn: Turn, view: TranscriptView, as_json: bool) -> None:
    """Shows the turn as it goes on, and asks what its harness asks."""
    asking = Asking(hf, turn) if turn.permissions == "ask" else None
    async with (
        asking.serve() if asking is not None else nullcontext(),
        aclosing(hf.turns.follow(turn)) as events,
    ):
        async for event in events:
            if as_json:
                put_json(event)
            view.show(event)
            if asking is not None:
                asking.hear(event)


async def _started(hf: Holdfast, turn: Turn) -> Turn:
    if turn.state == "queued":
        console(stderr=True).print(styled("queued: waits for the turns before it", "dim"))
    return await hf.turns.started(turn)


@contextmanager
def _presses() -> Iterator[asyncio.Queue[None]]:
    """Ctrl-C as items of a queue in place of KeyboardInterrupt."""
    presses: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, presses.put_nowait, None)
    try:
        yield presses
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _obey(hf: Holdfast, turn: Turn, presses: asyncio.Queue[None]) -> None:
    err = console(stderr=True)
    await presses.get()
    err.print(styled("cancelling; Ctrl-C again leaves the turn running", "dim"))
    async with asyncio.TaskGroup() as tasks:
        # In a task of its own: an api that hangs must not keep the second press waiting.
        tasks.create_task(_cancel(hf, turn))
        await presses.get()
        raise _Detached


async def _cancel(hf: Holdfast, turn: Turn) -> None:
    try:
        await hf.turns.cancel(turn.session_id, turn.id)
    except Conflict:
        # It ended by itself in the meantime: its end is on the way.
        return
    except HoldfastError as error:
        put_error(error)
