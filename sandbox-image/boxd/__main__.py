"""The hands of the sidecar in a sandbox, and its way in and out.

As the first process of a container, which has no network, by unix sockets in two directories that
are bound in:

- `gateway/sock`, the model gateway's: what connects to port 8080 in here ends up there.
- `box/agent.sock`, made here: what connects to it ends up at sandbox-agent's port in here.
- `box/control.sock`, made here: one request per connection, a line of JSON and as many bytes as
  its `size` says; the answer has the same shape. A connection that closes takes its command with
  it, and ends a freeze.

In a cloud's box, as any process, by one HTTP port (`--port`, see over_http.py): the same requests,
and sandbox-agent's own.

Runs as the agent's user, with the standard library alone.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import resource
import signal
from pathlib import Path

import ports
from asked import Request
from freezing import Holder
from over_http import Door
from work import Work

RUN = Path("/run/holdfast")
AGENT_UID = 1000
LONGEST_LINE = 4 << 20
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36


class Control:
    """What is asked by unix socket."""

    def __init__(self, work: Work) -> None:
        self._work = work

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request. Who asked may leave: then what was asked for is given up."""
        work: asyncio.Future[None] | None = None
        try:
            request = json.loads(await reader.readline() or b"null")
            if request is None:
                return
            body = await reader.readexactly(request.get("size", 0))
            work = asyncio.ensure_future(self._answer(request, body, writer))
            left = asyncio.ensure_future(reader.read(1))
            await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
            if request["op"] == "freeze" and work.done():
                await left
            left.cancel()
        except (ConnectionError, asyncio.IncompleteReadError, ValueError):
            pass
        finally:
            if work is not None:
                work.cancel()
                await asyncio.wait({work})  # who hung up waits for this
            writer.close()

    async def _answer(self, request: Request, body: bytes, writer: asyncio.StreamWriter) -> None:
        holder = Holder()
        try:
            head, data = await self._work.answer(request, body, holder)
            writer.write(json.dumps({**head, "size": len(data)}).encode() + b"\n" + data)
            await writer.drain()
            if request["op"] == "freeze" and "error" not in head:
                await asyncio.Event().wait()  # until the connection closes
        finally:
            self._work.freezer.thaw(holder)


async def main(port: int, token_file: Path | None) -> None:
    token = _taken(token_file) if token_file else ""
    if os.geteuid() == 0:  # some clouds start everything as root
        os.setgroups([])
        os.setgid(AGENT_UID)
        os.setuid(AGENT_UID)
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # for all that is started in here
    kernel = ctypes.CDLL(None)
    # Nobody in here may look into this process or take it over by ptrace.
    kernel.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    # What loses its parent stays below this process, where it is found.
    kernel.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    work = Work()
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGCHLD, work.children.reap)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    if port:
        # On every address: a provider's proxy comes from outside the box. And first of all: where a
        # boxd is at work already, this one ends, and leaves alone what the other has started.
        listener = ports.listening_on("0.0.0.0", port)  # noqa: S104
        await work.children.reader.kill_strays()
        await Door(work, token).open(listener)
    else:
        await ports.carry_both(RUN / "gateway" / "sock", RUN / "box" / "agent.sock")
        # Last: who can connect to it finds everything else in place.
        await asyncio.start_unix_server(
            Control(work).serve,
            sock=ports.listening(RUN / "box" / "control.sock"),
            limit=LONGEST_LINE,
        )
    await ended.wait()


def _taken(token_file: Path) -> str:
    """The token, which from now on nobody else can read."""
    token = token_file.read_text().strip()
    token_file.unlink()
    if not token:
        raise SystemExit(f"{token_file} is empty")
    return token


if __name__ == "__main__":
    parser = argparse.ArgumentParser("boxd")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token-file", type=Path)
    given = parser.parse_args()
    if bool(given.port) != bool(given.token_file):
        parser.error("--port and --token-file go together")
    asyncio.run(main(given.port, given.token_file))
