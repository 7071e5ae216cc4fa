"""boxd as it is in a cloud's box: any process there, asked by one HTTP port."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest

from emulators.boxes import Box, Boxes, BoxProcess, User, open_boxes
from emulators.options import Options
from sidecar.providers.base import Endpoint
from sidecar.providers.boxd_http import TOKEN_HEADER, ByHttp
from sidecar.providers.cloud import BOXD_COMMAND, BOXD_PORT, TOKEN_FILE
from tests.support.emulators.fixtures import backend_options
from tests.support.emulators.fixtures import root as root
from tests.support.emulators.in_box import WITHIN, processes, run

STARTS_WITHIN = 30.0
# Before anything of boxd is imported by itself: what it imports then is what we have changed.
IN_A_HURRY = (
    "import runpy, sys; sys.path.insert(0, '/opt/holdfast/boxd'); import over_http;"
    "over_http.BEAT_SECONDS = 0.02; sys.argv[0] = 'boxd';"
    "runpy.run_path('/opt/holdfast/boxd', run_name='__main__')"
)
BOXD_IN_A_HURRY = ("python3", "-I", "-S", "-c", IN_A_HURRY, *BOXD_COMMAND[4:])


@pytest.fixture(scope="session")
def options(request: pytest.FixtureRequest) -> Options:
    """Of a backend that works here, a container's if there is an engine."""
    try:
        return backend_options("container", request)
    except pytest.skip.Exception:
        return backend_options("process", request)


@pytest.fixture(scope="session")
async def boxes(options: Options) -> AsyncIterator[Boxes]:
    async with open_boxes(options) as opened:
        yield opened


@dataclass(frozen=True)
class Boxd:
    """A running boxd: the box it is in, how to reach it, and what the sidecar asks it by."""

    box: Box
    url: str
    token: str
    process: BoxProcess

    @property
    def link(self) -> ByHttp:
        return ByHttp(Endpoint(self.url), self.token)

    @property
    def headers(self) -> dict[str, str]:
        return {TOKEN_HEADER: self.token}

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await self.box.connect(BOXD_PORT)

    async def exec(
        self, *argv: str, stdin: bytes = b"", bound: float | None = WITHIN
    ) -> tuple[int, bytes]:
        """The exit code, and both outputs, the one behind the other."""
        request = {"argv": argv, "cwd": "/", "env": {}, "timeout": 60}
        head, output = await self.link.call("exec", stdin, bound=bound, **request)
        return head["exit_code"], output

    async def running(self) -> list[str]:
        """The command lines of all that it has started."""
        head, _ = await self.link.call("processes")
        return [" ".join(each["argv"][:-1]) for each in head["processes"]]

    async def kill(self) -> None:
        """SIGKILL, to boxd alone, as a cloud's memory limit would."""
        pids = await processes(self.box, "[/]opt/holdfast/boxd")
        await run(self.box, "kill", "-KILL", *pids, user="root")
        async with asyncio.timeout(STARTS_WITHIN):
            await self.process.wait()


async def put_token(box: Box, token: str, user: User) -> None:
    await box.write(TOKEN_FILE, token.encode(), user, 0o600)


@contextlib.asynccontextmanager
async def started(
    box: Box, argv: tuple[str, ...] = BOXD_COMMAND, user: User = "agent"
) -> AsyncIterator[Boxd]:
    """boxd in this box, with a port of ours that leads to its port."""
    token = secrets.token_hex(16)
    await put_token(box, token, user)
    process = await box.exec(argv, user=user)
    async with carried(box) as url:
        boxd = Boxd(box, url, token, process)
        await answering(boxd)
        yield boxd
        await process.kill()


async def answering(boxd: Boxd) -> None:
    async with (
        asyncio.timeout(STARTS_WITHIN),
        httpx.AsyncClient(trust_env=False) as http,
    ):
        while True:
            with contextlib.suppress(httpx.TransportError):
                if (await http.get(boxd.url, headers=boxd.headers)).status_code == 404:
                    return
            if boxd.process.exit_code is not None:
                pytest.fail(f"boxd ended: {await boxd.process.stderr.read()!r}")
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def carried(box: Box) -> AsyncIterator[str]:
    """boxd's port as a URL. Bytes are carried as they are, and each end's leaving is told."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await box.connect(BOXD_PORT)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@pytest.fixture(scope="session")
async def box(boxes: Boxes) -> Box:
    return await boxes.create("boxd", {})


@pytest.fixture(scope="session")
async def shared(box: Box) -> AsyncIterator[Boxd]:
    """For tests that leave it as it is."""
    async with started(box, BOXD_IN_A_HURRY) as boxd:
        yield boxd


@pytest.fixture
async def other_box(boxes: Boxes) -> AsyncIterator[Box]:
    """For tests that start and end boxd themselves."""
    made = await boxes.create(f"boxd-{secrets.token_hex(4)}", {})
    yield made
    await made.destroy()
