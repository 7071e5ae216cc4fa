"""`emulate`: a cloud on this machine, for the clouds' own SDKs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from contracts.errors import HoldfastError
from stack.clouds import ACCOUNTS, TITLES, Cloud, environment, module, running
from stack.commands.options import Json
from stack.commands.terminal import command, console, styled
from stack.embedded.ports import GRPC_OFFSET, LOOPBACK, is_free
from stack.errors import PartFailed, PortTaken
from stack.install.binaries import find_node
from stack.install.bubblewrap import runnable_bwrap
from stack.install.geesefs import find_geesefs
from stack.install.tree import find_tree, harness_tree
from stack.screen import put_json
from stack.settings import Settings, load_settings

# The same ones at every start: their addresses are written down in .env.
PORTS = {Cloud.E2B: 7001, Cloud.DAYTONA: 7002, Cloud.MODAL: 7003}
# For the gateway and the store, where .env has none yet.
SUGGESTED = range(8790, 8890)
IMAGE = "holdfast-sandbox:latest"
STOP_SECONDS = 60
REACHED = ("gateway_port", "gateway_url", "store_port", "store_url")


class Backend(StrEnum):
    AUTO = "auto"
    CONTAINER = "container"
    PROCESS = "process"


@command
async def emulate(
    name: Annotated[Cloud, typer.Argument(help="Which cloud.")],
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="0: any free one.")
    ] = None,
    reach: Annotated[
        list[int] | None,
        typer.Option("--reach", help="A loopback port that sandboxes reach too; repeatable."),
    ] = None,
    backend: Annotated[
        Backend, typer.Option("--backend", help="What a sandbox is; auto: a container if it can.")
    ] = Backend.AUTO,
    image: Annotated[
        str | None, typer.Option("--image", help="The image of container sandboxes.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Emulate a cloud here, for its own SDK, until Ctrl-C; says what to put into .env.

    Sandboxes are real: containers, or processes in namespaces. They reach the stack's model
    gateway and store, and nothing else.
    """
    settings = load_settings()
    gateway, store = _ports(settings)
    image = image or settings.sandbox_image or IMAGE
    arguments = (
        *(name.value, "--port", str(PORTS[name] if port is None else port)),
        *("--backend", backend.value, "--image", image),
        *("--reach", *map(str, (gateway, store, *(reach or ())))),
        *_programs(settings),
    )
    with tempfile.TemporaryDirectory(prefix="holdfast-emulate-") as place:
        argv = (*_dying_with_us(Path(place)), *module("emulators", *arguments))
        async with running(argv, {}) as process:
            assert process.stdout is not None
            with _until_told(process):
                line = await process.stdout.readline()
                if line:
                    told = json.loads(line)
                    lines = _lines(name, told, image, gateway, store)
                    _say(settings, name, told, lines, as_json=as_json)
                code = await process.wait()
    if code > 0:
        raise PartFailed(f"the {TITLES[name]} emulator ended by itself", hint=HINTS[backend])
    return 0


HINTS = {
    Backend.AUTO: "docs/clouds.md says what it needs; --port 0 takes any free port",
    Backend.CONTAINER: "`holdfast doctor` says whether Docker and its image are there",
    Backend.PROCESS: "it needs root and bubblewrap; `holdfast doctor` looks for both",
}


def _ports(settings: Settings) -> tuple[int, int]:
    """Where the gateway and the store are to listen: as .env has it, else a suggestion.

    Raises: PortTaken.
    """
    free = (
        port
        for port in SUGGESTED
        # SeaweedFS takes a second one
        if port not in (settings.gateway_port, settings.store_port)
        and is_free(port)
        and is_free(port + GRPC_OFFSET)
    )
    found = [
        given if given is not None else next(free, None)
        for given in (settings.gateway_port, settings.store_port)
    ]
    if found[0] is None or found[1] is None:
        raise PortTaken(
            f"no free port from {SUGGESTED.start} to {SUGGESTED.stop - 1}",
            hint="set HOLDFAST_GATEWAY_PORT and HOLDFAST_STORE_PORT",
        )
    return found[0], found[1]


def _programs(settings: Settings) -> list[str]:
    """What sandboxes that are no containers need, and a geesefs for all: as far as it is there."""
    found: dict[str, Path | None] = {
        "--engine": settings.docker_socket,
        "--geesefs": find_geesefs(settings).path,
        "--harness-dir": find_tree(harness_tree(), settings.cache_root),
    }
    with suppress(HoldfastError):
        found["--node-dir"] = find_node(settings).path.resolve().parent.parent
    with suppress(HoldfastError):
        found["--bwrap"] = runnable_bwrap(settings)
    return [
        word for option, path in found.items() if path is not None for word in (option, str(path))
    ]


def _dying_with_us(place: Path) -> tuple[str, ...]:
    """A start of whatever follows that gets SIGTERM when we are killed."""
    return (
        *module("stack.embedded.launch", str(place / "pid"), str(int(signal.SIGTERM))),
        *(str(STOP_SECONDS), str(os.getpid()), "--"),
    )


@contextmanager
def _until_told(process: asyncio.subprocess.Process) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the emulator, which removes its sandboxes first."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        with suppress(ProcessLookupError):
            process.terminate()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _lines(
    name: Cloud, told: Mapping[str, Any], image: str, gateway: int, store: int
) -> dict[str, str]:
    """What .env has to say for the stack to use this emulator."""
    url = told["url"]
    if name is Cloud.E2B:
        own = {
            "E2B_API_KEY": told["api_key"],
            "E2B_API_URL": url,
            "E2B_SANDBOX_URL": url,
            "HOLDFAST_E2B_TEMPLATE": "holdfast-sandbox",
        }
    elif name is Cloud.DAYTONA:
        own = {
            "DAYTONA_API_KEY": told["api_key"],
            "DAYTONA_API_URL": url,
            "HOLDFAST_DAYTONA_SNAPSHOT": told["snapshot"],
        }
    else:
        own = {
            "MODAL_TOKEN_ID": told["token_id"],
            "MODAL_TOKEN_SECRET": told["token_secret"],
            "MODAL_SERVER_URL": url,
            "HOLDFAST_MODAL_IMAGE": image,
        }
    return own | {
        "HOLDFAST_GATEWAY_PORT": str(gateway),
        "HOLDFAST_GATEWAY_URL": f"http://{LOOPBACK}:{gateway}",
        "HOLDFAST_STORE_PORT": str(store),
        "HOLDFAST_STORE_URL": f"http://{LOOPBACK}:{store}",
    }


def _say(
    settings: Settings,
    name: Cloud,
    told: Mapping[str, Any],
    lines: Mapping[str, str],
    *,
    as_json: bool,
) -> None:
    if as_json:
        put_json({"name": name.value, **told, "settings": dict(lines)})
        return
    out = console()
    out.print(styled(f"{TITLES[name]} is emulated at {told['url']}", "bold"))
    out.print(styled("Ctrl-C ends it, and every sandbox that it made.\n"))
    set_already = environment(settings, (*ACCOUNTS[name], *REACHED))
    if lines.items() <= set_already.items():
        out.print(styled("The stack is set up for it already.", "green"))
        return
    out.print(styled("Put this into .env, and start the stack (again):\n"))
    for variable, value in lines.items():
        out.print(styled(f"{variable}={value}"))
    out.print(styled(f"\nThen: holdfast doctor --provider {name.value}", "dim"))
