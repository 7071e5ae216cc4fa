"""The matrix on the command line: `python matrix_test.py`, `holdfast matrix`. What it does is in
client/matrix.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from client import Holdfast, Target, open_store
from client.matrix import News, Report, run_matrix
from client.settings import read_token
from client.trials import Engine, How
from contracts import errors
from stack.commands import connect
from stack.commands import options as opt
from stack.commands.report import junit, table
from stack.commands.terminal import command, console, put_json


def names(listed: str) -> list[str]:
    return [name for each in listed.split(",") if (name := each.strip())]


@command
async def matrix(
    harnesses: Annotated[str, typer.Option("--harnesses", help="Comma list; all if empty.")] = "",
    providers: Annotated[str, typer.Option("--providers", help="Comma list; all if empty.")] = "",
    engine: Annotated[Engine, typer.Option("--engine", help="What receipts must name.")] = "auto",
    require: Annotated[str, typer.Option("--require", help="Names whose SKIP is a FAIL.")] = "",
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=64, help="Cells at a time.")] = 1,
    cross: Annotated[
        bool, typer.Option("--cross", help="Also move sessions between them in their middle.")
    ] = False,
    junit_file: Annotated[Path | None, typer.Option("--junit", help="Also as JUnit XML.")] = None,
    url: Annotated[str | None, typer.Option("--url", help="A stack elsewhere.")] = None,
    token_file: Annotated[Path | None, typer.Option("--token-file", help="Its token.")] = None,
    as_json: opt.Json = False,
    json_lines: Annotated[
        bool, typer.Option("--json-lines", help="Each step as it begins, as a line of JSON.")
    ] = False,
) -> int:
    """Kill the sandbox in every cell of harnesses x providers and see that nothing is lost."""
    target = find_target(url, token_file)
    store = open_store(target)
    async with Holdfast(target.url, target.token) as hf:
        cells = await run_matrix(
            hf,
            store,
            harnesses=names(harnesses),
            providers=names(providers),
            require=names(require),
            how=How(engine),
            jobs=jobs,
            cross=cross,
            tell=put_json if json_lines else _silent,
        )
    report = Report.of(cells)
    if junit_file is not None:
        junit_file.write_bytes(junit(cells))
    if as_json or json_lines:
        put_json(report)
    else:
        console().print(table(cells))
    return 1 if report.failed else 0


def _silent(_: News) -> None:
    """The table at the end says it all."""


def find_target(url: str | None, token_file: Path | None) -> Target:
    """The stack meant. Its token comes from a file: command lines are there for all to read."""
    if url is None and token_file is None:
        return connect.target()
    if url is None or token_file is None:
        raise errors.InvalidInput("--url and --token-file go together")
    return Target(url, read_token(token_file))


if __name__ == "__main__":
    typer.run(matrix)
