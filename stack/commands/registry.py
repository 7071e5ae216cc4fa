"""The user commands by name. Each brings the whole client with it, so it is imported when it is
called; `holdfast --help` and the completion of shells show the lines here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True)
class Row:
    module: str
    attribute: str  # a function, or a typer.Typer with commands of its own
    help: str  # the first paragraph of the command's own


USER_COMMANDS = {
    "new": Row("stack.commands.sessions", "new", "Make a session and print its id."),
    "run": Row(
        "stack.commands.run",
        "run",
        "Run a turn and show it. Ctrl-C cancels it; a second one leaves it running.",
    ),
    "ls": Row("stack.commands.sessions", "ls", "List the sessions."),
    "show": Row(
        "stack.commands.sessions", "show", "Show a session's transcript, and what it has used."
    ),
    "files": Row("stack.commands.files", "files", "List files of a session."),
    "cat": Row(
        "stack.commands.files",
        "cat",
        "Print a file of a session; its exact bytes, unless a terminal is looking.",
    ),
    "turns": Row(
        "stack.commands.turns",
        "turns",
        "List a session's turns, and which of them are proven to be in the store.",
    ),
    "receipt": Row(
        "stack.commands.turns",
        "receipt",
        "Show a turn's receipt. Exit code: 0 when it has one and, with --verify, nothing differs.",
    ),
    "leaks": Row(
        "stack.commands.turns",
        "leaks",
        "List sandboxes that live and that nothing answers for. Exit code 1 when there are any.",
    ),
    "budget": Row(
        "stack.commands.usage",
        "budget",
        "Show what a session has used of its budget, or change the budget.",
    ),
    "kill": Row(
        "stack.commands.sessions",
        "kill",
        "Kill a session's sandbox with SIGKILL; files and transcript stay.",
    ),
    "destroy": Row(
        "stack.commands.sessions",
        "destroy",
        "End a session's sandbox in an orderly way; files and transcript stay.",
    ),
    "rm": Row(
        "stack.commands.sessions", "rm", "Remove a session: its sandbox, its files, its transcript."
    ),
    "audit": Row(
        "stack.commands.tokens", "audit", "Show who changed what, or was refused, the newest last."
    ),
    "matrix": Row(
        "matrix_test",
        "matrix",
        "Kill the sandbox in every cell of harnesses x providers and see that nothing is lost.",
    ),
    "emulate": Row(
        "stack.commands.emulate",
        "emulate",
        "Emulate a cloud here, for its own SDK, until Ctrl-C; says what to put into .env.",
    ),
    "token": Row("stack.commands.tokens", "tokens", "Who may use the stack, and as what."),
    "images": Row("stack.commands.images", "images", "Images that clouds make sandboxes of."),
}


class LazyGroup(TyperGroup):
    """A group that has the user commands too, each a placeholder until it is called."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, row in USER_COMMANDS.items():
            self.commands[name] = TyperCommand(name, help=row.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Shells that complete the arguments of a command ask here too."""
        if args[0] in USER_COMMANDS:
            self.commands[args[0]] = load_command(args[0])
        return super().resolve_command(ctx, args)


def load_command(name: str) -> Any:
    """The command itself, as typer builds it."""
    parent = typer.Typer(add_completion=False)
    register(parent, [name])
    return typer.main.get_group(parent).commands[name]


def register(app: typer.Typer, names: Iterable[str] = USER_COMMANDS) -> None:
    """Import these commands and add them to `app`."""
    for name in names:
        row = USER_COMMANDS[name]
        found = getattr(import_module(row.module), row.attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
