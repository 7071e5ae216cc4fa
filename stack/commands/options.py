"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from contracts.bodies import Durability, Permissions
from contracts.egress import Egress
from stack.commands.json_option import Json as Json

SessionRef = Annotated[
    str, typer.Argument(metavar="SESSION", help="Id, a unique prefix of one, or `last`.")
]
Harness = Annotated[str | None, typer.Option("--harness", help="claude, codex, opencode or pi.")]
Provider = Annotated[str | None, typer.Option("--provider", help="Where the sandbox runs.")]
Model = Annotated[str | None, typer.Option("--model", help="A model the harness knows.")]
Reasoning = Annotated[str | None, typer.Option("--reasoning", help="Effort: low, medium, …")]
DurabilityMode = Annotated[
    Durability | None,
    typer.Option("--durability", help="Mounted as usual, or copied from the sandbox's disk."),
]
EgressMode = Annotated[
    Egress | None,
    typer.Option("--egress", help="What the sandbox may reach: nothing, a list, or all."),
]
EgressHosts = Annotated[
    list[str] | None,
    typer.Option("--egress-host", help="With `allow`, one more host: example.org, *.example.org."),
]
PermissionMode = Annotated[
    Permissions | None, typer.Option("--permissions", help="Whether tools ask first.")
]
LiveView = Annotated[
    bool, typer.Option("--live", help="As the sandbox sees it now, not as the store has it.")
]
