"""`python -m emulators NAME`: one emulator, until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from emulators.boxes import Boxes, BoxFailed, open_boxes
from emulators.faults import Faults
from emulators.lending import lending
from emulators.options import Options, Ready, Way

NAMES = ("e2b", "daytona", "modal")
Serve = Callable[[Options, Boxes, Faults], AbstractAsyncContextManager[Ready]]


def _way(text: str) -> Way:
    try:
        return Way.read(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


_MANY_WAYS: Any = {
    "type": _way,
    "nargs": "+",
    "action": "extend",
    "default": [],
    "metavar": "PORT[=HOST:PORT]",
}


def parse(argv: Sequence[str]) -> tuple[str, Options]:
    default = Options()
    parser = argparse.ArgumentParser(prog="python -m emulators", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--host", default=default.host)
    parser.add_argument("--port", type=int, default=default.port, help="0: any free one")
    parser.add_argument("--control-port", type=int, default=default.control_port)
    parser.add_argument("--api-key", default=default.api_key, help="the one that is accepted")
    parser.add_argument(
        "--reach",
        **_MANY_WAYS,
        help="ports of a box's loopback that lead to the same ones of ours, or to HOST:PORT",
    )
    parser.add_argument(
        "--lend",
        **_MANY_WAYS,
        help="the same for the loopback of the container that --lend-to names",
    )
    parser.add_argument(
        "--lend-to",
        nargs="+",
        default=[],
        metavar="LABEL=VALUE",
        help="the labels of that container",
    )
    parser.add_argument("--backend", choices=("auto", "container", "process"), default="auto")
    parser.add_argument("--engine", type=Path, default=default.engine, help="Docker's socket")
    parser.add_argument("--image", default=default.image)
    parser.add_argument("--harness-dir", type=Path, help="the installed harness tree")
    parser.add_argument("--node-dir", type=Path, help="where bin/node is")
    parser.add_argument("--boxd-dir", type=Path, default=default.boxd_dir)
    parser.add_argument("--bwrap", type=Path)
    parser.add_argument("--geesefs", type=Path)
    given = vars(parser.parse_args(argv))
    name = given.pop("name")
    if bool(given["lend"]) != bool(given["lend_to"]):
        parser.error("--lend and --lend-to go together")
    lists = {each: tuple(given[each]) for each in ("reach", "lend", "lend_to")}
    return name, Options(**{**given, **lists})


@contextlib.asynccontextmanager
async def running(name: str, options: Options) -> AsyncIterator[Ready]:
    """An emulator with its boxes. Raises: BoxFailed, OSError."""
    serve: Serve = importlib.import_module(f"emulators.{name}").serve
    async with (
        open_boxes(options) as boxes,
        serve(options, boxes, Faults()) as ready,
        lending(options),
    ):
        yield ready


async def until_told(emulator: AbstractAsyncContextManager[Ready]) -> None:
    """Run it, say when it is ready, and leave it at SIGTERM or SIGINT."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    # before the first box: a signal while it is being made must not leave it behind
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    async with emulator as ready:
        line = {"url": ready.url, "control": ready.control, **ready.more}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        await ended.wait()


def main() -> int:
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    name, options = parse(sys.argv[1:])
    try:
        asyncio.run(until_told(running(name, options)))
    except (BoxFailed, OSError) as error:
        sys.stderr.write(f"the {name} emulator cannot run: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
