"""`images build`: what a cloud makes sandboxes of."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from stack.clouds import ACCOUNTS, TITLES, Cloud, environment, module, running
from stack.commands.options import Json
from stack.commands.terminal import command, console, styled
from stack.errors import Misconfigured
from stack.install.binaries import version_of
from stack.screen import put_json
from stack.settings import load_settings, project_root

WITHOUT = (
    "without geesefs: workspaces there will be copied (checkpoint). To have them mounted, put its"
    " binary at sandbox-image/geesefs first"
)

images = typer.Typer(help="Images that clouds make sandboxes of.", no_args_is_help=True)


@images.callback()
def group() -> None:
    """So that `build` is a word of the command although it is the only one."""


@images.command()
@command
async def build(
    name: Annotated[Cloud, typer.Argument(help="The cloud that builds and keeps it.")],
    as_json: Json = False,
) -> int:
    """Build a cloud's template, snapshot or image from sandbox-image/; what is there stays."""
    checkout = project_root()
    if not (checkout / "sandbox-image" / "Dockerfile").is_file():
        raise Misconfigured(
            f"{checkout} has no sandbox-image/Dockerfile", hint="run this in a checkout"
        )
    geesefs = checkout / "sandbox-image" / "geesefs"
    arguments = ["--checkout", str(checkout)]
    if geesefs.is_file():
        version = version_of(str(geesefs), "--version")
        if not version:
            raise Misconfigured(f"{geesefs} does not run", hint="replace it, or remove it")
        arguments += ["--build-arg", f"GEESEFS={version.split()[-1]}"]
    elif not as_json:
        console(stderr=True).print(styled(WITHOUT, "yellow"))
    argv = module("sidecar.images", name.value, *arguments)
    # the one account, and by environment: a command line can be seen by anyone
    async with running(argv, environment(load_settings(), ACCOUNTS[name])) as process:
        said, _ = await process.communicate()
    if process.returncode != 0:
        return 1
    made = json.loads(said)
    if as_json:
        put_json(made)
        return 0
    out = console()
    out.print(styled(f"{TITLES[name]} has {made['image']}", "green"))
    out.print(styled("Put this into .env, unless it is there:\n"))
    for variable, value in made["settings"].items():
        out.print(styled(f"{variable}={value}"))
    return 0
