"""The `holdfast` command: operates the stack here, and hands the rest to the user commands."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from contracts.errors import HoldfastError
from stack.cloud_names import Cloud
from stack.commands.json_option import Json
from stack.commands.registry import LazyGroup
from stack.commands.terminal import console, put_error

NOT_RUNNING = 3

app = typer.Typer(
    name="holdfast",
    cls=LazyGroup,
    help="Durable coding-agent sessions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.command()
def up(
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when ready.")] = False,
    as_json: Json = False,
) -> None:
    """Start the stack: installs what is missing, prints the URL with the login token."""
    from stack.operate import up as run

    run(detach=detach, as_json=as_json)


@app.command()
def down(as_json: Json = False) -> None:
    """Stop the stack; its data stays."""
    from stack.operate import down as run

    run(as_json=as_json)


@app.command()
def status(as_json: Json = False) -> None:
    """Show the parts of the stack. Exit code 3 when it is not running."""
    from stack.status import status as run

    if not run(as_json=as_json):
        raise typer.Exit(NOT_RUNNING)


@app.command()
def logs(
    part: Annotated[
        str | None, typer.Argument(help="stack, api, sidecar, …; all if left out.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Stay and show new lines.")
    ] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many old lines.")] = 100,
    as_json: Json = False,
) -> None:
    """Show what the parts printed."""
    from stack.operate import show_logs

    show_logs(part, follow=follow, lines=lines, as_json=as_json)


@app.command()
def doctor(
    provider: Annotated[
        Cloud | None, typer.Option("--provider", help="Check this cloud instead.")
    ] = None,
    box: Annotated[
        bool, typer.Option("--box", help="Make a sandbox there too, which the cloud bills.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check this machine, or a cloud: what was found, and what to do.

    Exit code 1 when something must be done.
    """
    if provider is not None:
        from stack.commands.cloud_doctor import examine_cloud

        examine_cloud(provider, box=box, as_json=as_json)
    if box:
        raise typer.BadParameter("--box goes with --provider")
    from stack.doctor import examine
    from stack.screen import findings_table, put_json
    from stack.settings import load_settings

    findings = examine(load_settings())
    if as_json:
        put_json({"checks": [asdict(finding) for finding in findings]})
    else:
        rows = [(item.level, item.check, item.found, item.advice) for item in findings]
        console().print(findings_table(rows))
    if any(finding.level == "fail" for finding in findings):
        raise typer.Exit(1)


@app.command()
def install(as_json: Json = False) -> None:
    """Install the harnesses into the cache; `up` does it too."""
    from stack.operate import install as run

    run(as_json=as_json)


@app.command()
def backup(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A new file, a tar.")],
    wait: Annotated[
        float, typer.Option("--wait", min=0, help="Seconds to wait for running turns to end.")
    ] = 300.0,
    as_json: Json = False,
) -> None:
    """Copy all sessions, transcripts and files into one file, also while the stack works.

    Exit code 4 when it is written but a session in it is not whole.
    """
    from stack.backup import backup as run

    run(path, wait=wait, as_json=as_json)


@app.command()
def restore(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="What `backup` wrote.")],
    only_check: Annotated[
        bool, typer.Option("--check", help="Only read the file and see that it is whole.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Bring a backup back into an empty stack; nothing is ever overwritten."""
    from stack.backup import check
    from stack.backup import restore as run

    if only_check:
        check(path, as_json=as_json)
    run(path, as_json=as_json)


@app.command("clean-data")
def clean_data(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Remove all sessions, files and logs of this stack, for good."""
    from stack.operate import clean_data as run

    run(yes=yes, as_json=as_json)


def main() -> None:
    """The entry point; an error is two lines, never a stack trace."""
    try:
        app()
    except HoldfastError as error:
        put_error(error)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
