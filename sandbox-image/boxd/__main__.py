"""The first process of a container sandbox: its only way in and out, and the hands of the sidecar.

A container has no network. Two directories are bound in, with unix sockets in them:

- `gateway/sock`, the model gateway's: what connects to port 8080 in here ends up there.
- `box/agent.sock`, made here: what connects to it ends up at sandbox-agent's port in here.
- `box/control.sock`, made here: one request per connection, a line of JSON and as many bytes as
  its `size` says; the answer has the same shape. A connection that closes takes its command with
  it, and ends a freeze.

Runs as the agent's user, with the standard library alone.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import files
import living
import ports
from asked import Answer, Refused
from commands import Children

RUN = Path("/run/holdfast")
LONGEST_LINE = 4 << 20
PR_SET_DUMPABLE = 4


class Control:
    def __init__(self) -> None:
        self.children = Children()

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

    async def _answer(
        self, request: dict[str, Any], body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        stopped: list[int] = []
        try:
            head, data = await self._do(request, body, stopped)
        except Refused as refused:
            head, data = {"error": str(refused), "kind": refused.kind}, b""
        except OSError as error:
            kind = "missing" if isinstance(error, FileNotFoundError) else ""
            head, data = {"error": f"{error.strerror}: {error.filename}", "kind": kind}, b""
        try:
            writer.write(json.dumps({**head, "size": len(data)}).encode() + b"\n" + data)
            await writer.drain()
            if request["op"] == "freeze" and "error" not in head:
                await asyncio.Event().wait()  # until the connection closes
        finally:
            living.thaw(stopped)

    async def _do(self, request: dict[str, Any], body: bytes, stopped: list[int]) -> Answer:
        op = request["op"]
        if op == "exec":
            return await self.children.run(request, body)
        if op == "freeze":
            await living.freeze(stopped)
        elif op == "spawn":
            self.children.start(request, subprocess.DEVNULL, {})
        elif op == "kill":
            await living.kill(request["tokens"])
        elif op == "processes":
            return {
                "processes": [living.described(pid, token) for pid, token in living.running()]
            }, b""
        elif op == "held":
            return {"inodes": living.held()}, b""
        else:
            return {}, await asyncio.to_thread(self._file_work, op, request, body)
        return {}, b""

    def _file_work(self, op: str, request: dict[str, Any], body: bytes) -> bytes:
        if op == "read":
            return Path(request["path"]).read_bytes()
        if op == "pack":
            return files.pack(request["kept"], request["left"], request["most_bytes"])
        if op == "write":
            files.write(Path(request["path"]), body, request["mode"])
        elif op == "unpack":
            files.unpack(body)
        else:
            raise Refused(f"there is no {op!r}")
        return b""


async def main() -> None:
    os.umask(0o077)
    # Nobody in here may look into this process or take it over by ptrace.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    control = Control()
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGCHLD, control.children.reap)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    await ports.carry_both(RUN / "gateway" / "sock", RUN / "box" / "agent.sock")
    # Last: who can connect to it finds everything else in place.
    await asyncio.start_unix_server(
        control.serve, sock=ports.listening(RUN / "box" / "control.sock"), limit=LONGEST_LINE
    )
    await ended.wait()


if __name__ == "__main__":
    asyncio.run(main())
