"""A session of the toolbox: one shell in a box, whose directory and variables its commands share.

Each command's outputs are told apart by marks that the shell writes to both after it. The log is
as the daemon keeps it: pieces of output, each behind a prefix that says which one it is of.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import shlex
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from emulators.boxes import Box, BoxProcess
from emulators.daytona.wire import DAEMON, Refused

STDOUT, STDERR = b"\x01\x01\x01", b"\x02\x02\x02"
MARK = b"\x1e"  # record separator
SHELL = ("bash",)
INPUT_SECONDS = 10


@dataclass
class SessionCommand:
    id: str
    command: str
    fifo: str | None
    silent: bool
    log: bytearray = field(default_factory=bytearray)
    exit_code: int | None = None
    grown: asyncio.Event = field(default_factory=asyncio.Event)
    open_streams: int = 2

    @property
    def ended(self) -> bool:
        return self.open_streams == 0

    def add(self, prefix: bytes, data: bytes) -> None:
        if data:
            self.log += prefix + data
            self.grown.set()

    def close_stream(self) -> None:
        self.open_streams -= 1
        self.grown.set()

    async def followed(self) -> AsyncIterator[bytes]:
        """The log from its beginning to the end of the command."""
        sent = 0
        while True:
            self.grown.clear()
            if sent < len(self.log):
                piece = bytes(self.log[sent:])
                sent += len(piece)
                yield piece
            elif self.ended:
                return
            else:
                await self.grown.wait()

    def split(self) -> tuple[str, str]:
        """stdout and stderr."""
        outputs = {STDOUT: b"", STDERR: b""}
        rest = bytes(self.log)
        while rest:
            prefix, rest = rest[:3], rest[3:]
            ends = [at for at in (rest.find(STDOUT), rest.find(STDERR)) if at >= 0]
            end = min(ends, default=len(rest))
            outputs[prefix] += rest[:end]
            rest = rest[end:]
        return outputs[STDOUT].decode(errors="replace"), outputs[STDERR].decode(errors="replace")


class Session:
    def __init__(self, session_id: str, box: Box, shell: BoxProcess) -> None:
        self.id = session_id
        self.commands: dict[str, SessionCommand] = {}
        self._box = box
        self._shell = shell
        self._mark = MARK + secrets.token_hex(8).encode()
        self._reading = (
            asyncio.create_task(self._read(shell.stdout, STDOUT)),
            asyncio.create_task(self._read(shell.stderr, STDERR)),
        )

    @classmethod
    async def open(cls, session_id: str, box: Box, cwd: str) -> Session:
        return cls(session_id, box, await box.exec(SHELL, cwd=cwd))

    async def close(self) -> None:
        """End everything that it runs."""
        await self._shell.kill()
        await self.forget()

    async def forget(self) -> None:
        """Its box is about to end."""
        for task in self._reading:
            task.cancel()
        await asyncio.wait(self._reading)
        for command in self.commands.values():
            command.open_streams = 0
            command.grown.set()

    def find(self, command_id: str) -> SessionCommand:
        """Raises: Refused 404."""
        found = self.commands.get(command_id)
        if found is None:
            raise Refused(404, "command not found", source=DAEMON)
        return found

    async def execute(self, text: str, *, in_background: bool, silent: bool) -> SessionCommand:
        """Begin it when the commands before it have ended. Raises: Refused 410."""
        if self._shell.exit_code is not None:
            raise Refused(410, "session process has exited", code="SESSION_ENDED", source=DAEMON)
        command = SessionCommand(str(uuid.uuid4()), text, None, silent)
        stdin = "</dev/null"
        if in_background:
            command.fifo = f"/tmp/.daytona-{command.id}"  # noqa: S108 - inside the box
            await (await self._box.exec(["mkfifo", "-m", "600", command.fifo])).wait()
            # for reading and writing: it never ends by itself
            stdin = f"0<>{shlex.quote(command.fifo)}"
        self.commands[command.id] = command
        encoded = base64.b64encode(text.encode()).decode()
        mark = self._mark.decode().replace("\x1e", r"\036")
        lines = (
            f'eval "$(printf %s {encoded} | base64 -d)" {stdin}',
            rf"printf '{mark}%d\036' $?; printf '{mark}\036' >&2",
        )
        self._shell.stdin.write(("\n".join(lines) + "\n").encode())
        await self._shell.stdin.drain()
        return command

    async def send(self, command: SessionCommand, data: str) -> None:
        """Raises: Refused 410, 408."""
        if command.ended or command.fifo is None:
            raise Refused(
                410,
                "command has already completed",
                code="COMMAND_ALREADY_COMPLETED",
                source=DAEMON,
            )
        writing = await self._box.exec(["dd", "conv=notrunc", "status=none", f"of={command.fifo}"])
        writing.stdin.write(data.encode())
        writing.stdin.close()
        try:
            async with asyncio.timeout(INPUT_SECONDS):
                await writing.wait()
        except TimeoutError as error:
            await writing.kill()
            raise Refused(408, "the command reads no input yet", source=DAEMON) from error
        if not command.silent:
            command.add(STDOUT, data.encode())

    async def _read(self, stream: asyncio.StreamReader, prefix: bytes) -> None:
        """Deal a stream of the shell out to its commands, one after the other."""
        done = 0
        held = b""
        while True:
            chunk = await stream.read(1 << 16)
            held += chunk
            while (at := held.find(self._mark)) >= 0:
                end = held.find(MARK, at + len(self._mark))
                if end < 0:
                    break
                command = list(self.commands.values())[done]
                command.add(prefix, held[:at])
                if prefix == STDOUT:
                    command.exit_code = int(held[at + len(self._mark) : end])
                command.close_stream()
                done += 1
                held = held[end + 1 :]
            # what may be the beginning of a mark waits for its end
            keep = at if at >= 0 else held.rfind(MARK)
            ready, held = (held[:keep], held[keep:]) if keep >= 0 and chunk else (held, b"")
            running = list(self.commands.values())[done:]
            if running:
                running[0].add(prefix, ready)
            if not chunk:
                break
        code = await self._shell.wait()
        for command in list(self.commands.values())[done:]:
            command.exit_code = code
            command.close_stream()
