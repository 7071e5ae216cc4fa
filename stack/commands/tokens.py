"""`token new`, `ls`, `rm` and `rotate`; `audit`."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Annotated

import typer
from pydantic import BaseModel, SecretStr
from rich.table import Table

from client import Holdfast
from contracts.bodies import AuditEntry, AuditPage, Me, NewToken, Role, TokenList
from contracts.errors import HoldfastError, Unauthenticated
from stack.commands import options as opt
from stack.commands.connect import connect, target
from stack.commands.terminal import command, console, one_line, put_json, safe, styled
from stack.embedded.credentials import kept_token, rotate_token
from stack.embedded.layout import Layout
from stack.embedded.state import running_state
from stack.errors import Misconfigured, PartFailed
from stack.settings import Settings, load_settings

# A running api reads the file with every request: it takes the new token at once, or never.
TAKEN_SECONDS = 5.0
POLL_SECONDS = 0.05
ELSEWHERE = (
    "run this in the checkout whose `holdfast up` runs the stack; that of docker compose gets a new"
    " token by scripts/compose-token-rotate"
)

tokens = typer.Typer(help="Who may use the stack, and as what.", no_args_is_help=True)


class Shown(NewToken):
    """`token new --json`."""

    login_url: str


class Rotated(BaseModel):
    """`token rotate --json`; without an api that runs there is no link yet."""

    token: str
    login_url: str | None


@tokens.command()
@command
async def new(
    name: Annotated[str, typer.Argument(help="Small letters, digits and dashes.")],
    role: Annotated[
        Role, typer.Option("--role", help="read looks, run works with sessions, admin all.")
    ] = "run",
    as_json: opt.Json = False,
) -> None:
    """Make a token and print it: this once, as only a hash of it is kept."""
    async with connect() as hf:
        made = await hf.tokens.create(name, role)
    login_url = _link(target().url, made.token)
    if as_json:
        put_json(Shown(**made.model_dump(), login_url=login_url))
        return
    typer.echo(made.token)
    err = console(stderr=True)
    err.print(styled(f"{made.name} has the role {made.role}; the token is not shown again"))
    err.print(styled(f"in a browser: {login_url}"))


@tokens.command()
@command
async def ls(as_json: opt.Json = False) -> None:
    """List the named tokens; the stack's own, `owner`, is beside them."""
    async with connect() as hf:
        found = await hf.tokens.list()
    if as_json:
        put_json(TokenList(tokens=found))
        return
    if not found:
        console(stderr=True).print(styled("no named token yet: holdfast token new NAME", "dim"))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("name", "role", "made", "by"):
        table.add_column(column, no_wrap=True)
    for each in found:
        made = each.created_at.astimezone().strftime("%Y-%m-%d %H:%M")
        table.add_row(styled(each.name), each.role, made, styled(each.created_by))
    console().print(table)


@tokens.command()
@command
async def rm(name: str, as_json: opt.Json = False) -> None:
    """Revoke a token: it and its logins are refused from now on."""
    async with connect() as hf:
        gone = await hf.tokens.delete(name)
    if as_json:
        put_json(gone)
    else:
        console().print(styled(f"revoked {gone.name} ({gone.role})"))


@tokens.command()
@command
async def rotate(as_json: opt.Json = False) -> None:
    """Replace the token of this checkout's stack; the old one and its logins end at once."""
    settings = load_settings()
    layout = Layout.of(settings)
    old = _old(settings, layout)
    fresh = rotate_token(layout)
    state = running_state(layout)
    if state is not None:
        await _taken(state.url, fresh, old)
    url = None if state is None else _link(state.url, fresh.get_secret_value())
    if as_json:
        put_json(Rotated(token=fresh.get_secret_value(), login_url=url))
    elif url is not None:
        console(stderr=True).print(styled("the old token and its logins are refused from now on"))
        typer.echo(url)
    else:
        console().print(styled("the stack does not run; `holdfast up` prints the new link"))


@command
async def audit(
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="SESSION", help="Only this one: id, prefix or `last`."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many.")] = 50,
    as_json: opt.Json = False,
) -> None:
    """Show who changed what, or was refused, the newest last."""
    entries: list[AuditEntry] = []
    async with connect() as hf:
        sid = None if session is None else await _session(hf, session)
        async with aclosing(hf.tokens.audit(session_id=sid)) as found:
            async for entry in found:
                entries.append(entry)
                if len(entries) == limit:
                    break
    entries.reverse()
    if as_json:
        put_json(AuditPage(entries=entries))
    elif not entries:
        console(stderr=True).print(styled("nothing on record", "dim"))
    else:
        console().print(_table(entries))


async def _session(hf: Holdfast, reference: str) -> str:
    """The id; of a session that was deleted, as it is given: the record is still there."""
    return reference if len(reference) == 36 else str((await hf.sessions.resolve(reference)).id)


def _table(entries: list[AuditEntry]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("when", "who", "role", "with", "what", "status", "session", "about"):
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    for each in entries:
        table.add_row(
            each.at.astimezone().strftime("%Y-%m-%d %H:%M:%S"),
            styled(each.name),
            each.role,
            styled(each.client),
            styled(each.action),
            styled(str(each.status), "" if each.status < 400 else "red"),
            str(each.session_id or ""),
            styled(one_line(each.subject, 60)),
        )
    return table


def _old(settings: Settings, layout: Layout) -> SecretStr:
    """The token that a rotation replaces.

    Raises: Misconfigured where it is not this command's to replace.
    """
    if settings.api_token is not None:
        raise Misconfigured(
            "HOLDFAST_API_TOKEN says which token the stack has",
            hint="change it in the environment or in .env, then `holdfast down` and `holdfast up`",
        )
    old = kept_token(layout)
    if old is None or not layout.api.is_file():
        raise Misconfigured(f"there is no embedded stack in {settings.data}", hint=ELSEWHERE)
    if target().data_dir is None:
        raise Misconfigured(
            "HOLDFAST_URL names a stack whose token is not kept here", hint=ELSEWHERE
        )
    return old


def _link(url: str, token: str) -> str:
    return f"{safe(url)}/?token={token}"


async def _taken(url: str, fresh: SecretStr, old: SecretStr) -> None:
    """Wait until the running api knows the new token, and see that it does not know the old one.

    Raises: PartFailed when it does not take it.
    """
    try:
        async with asyncio.timeout(TAKEN_SECONDS):
            while True:
                if await _who(url, fresh) is not None and await _who(url, old) is None:
                    return
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise PartFailed(
            "the new token is written, and the api that runs has not taken it",
            hint="see `holdfast status`: it may be starting; else `holdfast down` and `up`",
        ) from None


async def _who(url: str, token: SecretStr) -> Me | None:
    """Whose token it is; None when it is refused, or nobody answers now."""
    try:
        async with Holdfast(url, token, name="cli") as hf:
            return await hf.tokens.me()
    except Unauthenticated:
        return None
    except HoldfastError as error:
        if error.retryable:
            return None
        raise
