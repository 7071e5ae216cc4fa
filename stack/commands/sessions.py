"""`new`, `ls`, `show`, `kill`, `destroy`, `rm`."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from contracts.bodies import Session, SessionPage, SessionState
from stack.commands import options as opt
from stack.commands.connect import connect
from stack.commands.terminal import command, console, one_line, put_json, styled
from stack.commands.usage import BudgetCost, BudgetTokens, given, session_lines
from stack.commands.view import TranscriptView, plural


@command
async def new(
    title: Annotated[str, typer.Option("--title")] = "",
    harness: opt.Harness = None,
    provider: opt.Provider = None,
    model: opt.Model = None,
    reasoning: opt.Reasoning = None,
    permissions: opt.PermissionMode = None,
    durability: opt.DurabilityMode = None,
    egress: opt.EgressMode = None,
    egress_host: opt.EgressHosts = None,
    budget_tokens: BudgetTokens = None,
    budget_cost: BudgetCost = None,
    as_json: opt.Json = False,
) -> None:
    """Make a session and print its id."""
    budget = given(budget_tokens, budget_cost)
    async with connect() as hf:
        session = await hf.sessions.create(
            title=title,
            harness=harness,
            provider=provider,
            model=model,
            reasoning=reasoning,
            permissions=permissions,
            durability=durability,
            egress=egress,
            egress_hosts=egress_host,
            budget=budget,
        )
    if as_json:
        put_json(session)
    else:
        typer.echo(str(session.id))


@command
async def ls(
    archived: Annotated[bool, typer.Option("--archived", help="The archived ones.")] = False,
    state: Annotated[
        SessionState | None, typer.Option("--state", help="Only those in this state.")
    ] = None,
    search: Annotated[
        str | None, typer.Option("--search", help="Words of the title or of the transcript.")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """List the sessions."""
    async with connect() as hf:
        listed = hf.sessions.list(archived=archived, state=state, q=search)
        sessions = [session async for session in listed]
    if as_json:
        put_json(SessionPage(sessions=sessions))
        return
    if not sessions:
        none = "no such session" if state or search else 'no session yet: holdfast run "…"'
        console(stderr=True).print(styled(none, "dim"))
        return
    console().print(_table(sessions))


@command
async def show(
    session: opt.SessionRef,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for what comes next.")
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Show a session's transcript, and what it has used."""
    async with connect() as hf:
        found = await hf.sessions.resolve(session)
        view = TranscriptView(console())
        async with aclosing(hf.events(found.id, follow=follow)) as events:
            async for event in events:
                if as_json:
                    put_json(event)
                else:
                    view.show(event)
        view.close()
        if not as_json:
            for line in session_lines(await hf.sessions.get(found.id)):
                console().print(styled(line, "dim"))


@command
async def kill(session: opt.SessionRef, as_json: opt.Json = False) -> None:
    """Kill a session's sandbox with SIGKILL; files and transcript stay."""
    async with connect() as hf:
        found = await hf.sessions.resolve(session)
        killed = await hf.sessions.kill(found.id)
    if as_json:
        put_json(killed)
    elif killed.killed:
        console().print(styled(f"killed sandbox {killed.sandbox_id}"))
    else:
        console().print(styled("the session has no sandbox", "dim"))


@command
async def destroy(session: opt.SessionRef, as_json: opt.Json = False) -> None:
    """End a session's sandbox in an orderly way; files and transcript stay."""
    async with connect() as hf:
        found = await hf.sessions.resolve(session)
        destroyed = await hf.sessions.destroy(found.id)
    if as_json:
        put_json(destroyed)
    else:
        console().print(styled(f"ended sandbox {destroyed.sandbox_id}: {destroyed.proof}"))


@command
async def rm(
    session: opt.SessionRef,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Remove a session: its sandbox, its files, its transcript."""
    async with connect() as hf:
        found = await hf.sessions.resolve(session)
        if not yes:
            name = f"{found.id} {one_line(found.title)}".strip()
            typer.confirm(f"Remove session {name} and all its files?", abort=True, err=True)
        gone = await hf.sessions.delete(found.id)
    if as_json:
        put_json(gone)
        return
    counts = (
        (gone.sandboxes, "sandbox" if gone.sandboxes == 1 else "sandboxes"),
        (gone.objects, plural(gone.objects, "object")),
        (gone.state_objects, plural(gone.state_objects, "state object")),
        (gone.turns, plural(gone.turns, "turn")),
        (gone.events, plural(gone.events, "event")),
    )
    told = ", ".join(f"{count} {word}" for count, word in counts)
    console().print(styled(f"removed {gone.session_id}: {told}"))


# What is known of the last turn that ended.
DURABLE = {True: ("yes", "green"), False: ("NO", "red"), None: ("", "")}


def _state(session: Session) -> Text:
    if session.running_turn is None:
        return styled("idle", "dim")
    queued = f", {session.queued} queued" if session.queued else ""
    return styled(f"{'asks' if session.waiting else 'running'}{queued}", "yellow")


def _table(sessions: list[Session]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("session", no_wrap=True)
    for name in ("title", "harness", "provider", "state", "durable", "used"):
        table.add_column(name, overflow="ellipsis", no_wrap=True)
    for session in sessions:
        table.add_row(
            str(session.id),
            styled(one_line(session.title, 60)),
            styled(session.harness),
            styled(session.provider),
            _state(session),
            styled(*DURABLE[session.durable]),
            session.updated_at.astimezone().strftime("%Y-%m-%d %H:%M"),
        )
    return table
