"""Real boxes of both backends, and emulators as processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import pytest

from emulators.boxes import Box, Boxes, open_boxes
from emulators.options import Options
from tests.support.paths import ROOT
from tests.support.requirements import missing

STARTS_WITHIN = 60.0
ENDS_WITHIN = 60.0


@dataclass(frozen=True)
class Emulator:
    """A running one: what its ready line says, and the process."""

    url: str
    control: str
    more: Mapping[str, str]
    process: asyncio.subprocess.Process

    @property
    def pid(self) -> int:
        return self.process.pid


Emulate = Callable[..., AbstractAsyncContextManager[Emulator]]


@pytest.fixture(scope="session")
def root() -> None:
    if os.geteuid() != 0:
        missing("root", "boxes are made and entered by root only")


def backend_options(backend: str, request: pytest.FixtureRequest) -> Options:
    """The options of a backend that works here."""
    request.getfixturevalue("root")
    if backend == "container":
        return Options(backend="container", image=request.getfixturevalue("sandbox_image"))
    return Options(backend="process", bwrap=request.getfixturevalue("bwrap"))


@pytest.fixture(scope="session", params=["container", "process"])
def options(request: pytest.FixtureRequest) -> Options:
    """Of both backends, one after the other."""
    return backend_options(request.param, request)


@pytest.fixture(scope="session")
async def boxes(options: Options) -> AsyncIterator[Boxes]:
    async with open_boxes(options) as opened:
        yield opened


@pytest.fixture(scope="session")
async def shared_box(boxes: Boxes) -> Box:
    """A running box, for tests that leave it as it is."""
    return await boxes.create("shared", {"OF_THE_BOX": "yes", "LANG": "C"})


@pytest.fixture(scope="session")
def arguments(request: pytest.FixtureRequest) -> list[str]:
    """The command line's options of the backend that works here, a container's if there is an
    engine. Where neither works, the skip says what is missing."""
    try:
        return as_arguments(backend_options("container", request))
    except pytest.skip.Exception:
        return as_arguments(backend_options("process", request))


def as_arguments(options: Options) -> list[str]:
    given = ["--backend", options.backend, "--image", options.image]
    return [*given, "--bwrap", str(options.bwrap)] if options.bwrap else given


@pytest.fixture(scope="session")
def emulate(arguments: list[str]) -> Emulate:
    """`emulate(NAME, *more_arguments)`: `python -m emulators NAME` on a free port, ended by
    SIGTERM. The backend is the one of `arguments`, unless another is given."""

    def start(name: str, *more: str) -> AbstractAsyncContextManager[Emulator]:
        return started(["-m", "emulators", name, "--port", "0", *arguments, *more])

    return start


@contextlib.asynccontextmanager
async def started(argv: list[str]) -> AsyncIterator[Emulator]:
    """An emulator as `python ARGV`, ended by its pid; that it ends well is checked."""
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *argv,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield await ready(process, log)
            if process.returncode is None:
                process.terminate()
                async with asyncio.timeout(ENDS_WITHIN):
                    code = await process.wait()
                assert code == 0, said(log)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def ready(process: asyncio.subprocess.Process, log: Any) -> Emulator:
    assert process.stdout is not None
    async with asyncio.timeout(STARTS_WITHIN):
        line = await process.stdout.readline()
    assert line, f"the emulator ended before it was ready: {said(log)}"
    told = json.loads(line)
    return Emulator(told.pop("url"), told.pop("control"), told, process)


def said(log: Any) -> str:
    log.seek(0)
    return str(log.read().decode(errors="replace"))[-4000:]
