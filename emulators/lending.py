"""An emulator's ports on the loopback of another container: what runs in there finds the cloud at
127.0.0.1, as it would beside it on one machine.

Not by a network that both are on: Modal's SDK speaks without TLS to its own loopback alone, and on
a network of an engine every user of the machine could make boxes. Needs root and the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import AsyncIterator, Iterator, Sequence

import aiodocker

from emulators import netns
from emulators.boxes import BoxError
from emulators.containers import is_in_container, open_engine, told
from emulators.options import Options

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2


@contextlib.asynccontextmanager
async def lending(options: Options) -> AsyncIterator[None]:
    """Lend `options.lend` to the container with the labels `options.lend_to`, from whenever it runs
    and again after each of its restarts; what stands against it is logged, and tried again."""
    if not options.lend:
        yield
        return
    task = asyncio.create_task(_lend(options))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _lend(options: Options) -> None:
    known = ""
    async with open_engine(options) as engine:
        while True:
            try:
                with _closing(await _first_process(engine, options.lend_to)) as pidfd:
                    if pidfd is not None:
                        async with netns.reaching(pidfd, options.lend):
                            known = ""
                            await _end_of(pidfd)
            except (BoxError, OSError) as error:
                if str(error) != known:
                    log.warning("no ports are lent to %s: %s", " ".join(options.lend_to), error)
                known = str(error)
            await asyncio.sleep(POLL_SECONDS)


async def _first_process(engine: aiodocker.Docker, labels: Sequence[str]) -> int | None:
    """A pidfd of the container's; None while none runs. Raises: BoxFailed, ProcessLookupError."""
    with told():
        wanted = json.dumps({"label": list(labels), "status": ["running"]})
        found = await engine.containers.list(filters=wanted)
        if not found:
            return None
        shown = await found[0].show()
    pid = int(shown["State"]["Pid"])
    if pid == 0:  # it has ended since it was listed
        return None
    pidfd = os.pidfd_open(pid)
    # The pidfd pins the pid, so that the check is of the process that it stands for.
    if is_in_container(pid, shown["Id"]):
        return pidfd
    os.close(pidfd)
    return None


@contextlib.contextmanager
def _closing(pidfd: int | None) -> Iterator[int | None]:
    try:
        yield pidfd
    finally:
        if pidfd is not None:
            os.close(pidfd)


async def _end_of(pidfd: int) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
