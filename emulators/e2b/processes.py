"""envd's service `process.Process`: commands in a box. No terminals."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from connectrpc.code import Code
from connectrpc.errors import ConnectError
from connectrpc.request import RequestContext
from e2b.envd.process import process_connect
from e2b.envd.process import process_pb as pb
from protobuf import Oneof

from emulators.boxes import Box, BoxNotRunning
from emulators.e2b import events
from emulators.e2b.commands import Command
from emulators.e2b.users import BadPath, resolved, user_of

PING_HEADER = "keepalive-ping-interval"
PING_SECONDS = 90.0
# Who connects late is still told how a command ended.
ENDS_KEPT = 64
SIGNALS = {pb.Signal.SIGKILL: 9, pb.Signal.SIGTERM: 15}


# the same thing for every call, where the generated types have one for each
Context = RequestContext[Any, Any]


class Processes(process_connect.Process):
    """The commands of one box."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._commands: dict[int, Command] = {}
        self._ended: OrderedDict[int, Command] = OrderedDict()
        self._watchers: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Forget every command; the box ends them, or has."""
        for command in list(self._commands.values()):
            await command.give_up()
        if self._watchers:
            await asyncio.wait(self._watchers)

    async def list(self, request: pb.ListRequest, ctx: Context, /) -> pb.ListResponse:
        return pb.ListResponse(
            processes=[
                pb.ProcessInfo(config=command.config, pid=command.pid, tag=command.tag)
                for command in self._commands.values()
            ]
        )

    async def start(
        self, request: pb.StartRequest, ctx: Context, /
    ) -> AsyncIterator[pb.StartResponse]:
        command = await self._started(request, ctx)
        async with contextlib.aclosing(self._events(command, ctx)) as told:
            async for event in told:
                yield pb.StartResponse(event=event)

    async def connect(
        self, request: pb.ConnectRequest, ctx: Context, /
    ) -> AsyncIterator[pb.ConnectResponse]:
        try:
            command = self._found(request.process)
        except ConnectError:
            selector = request.process.selector if request.process else None
            match selector:
                case Oneof(field="pid", value=int(pid)) if pid in self._ended:
                    command = self._ended[pid]
                case _:
                    raise
        async with contextlib.aclosing(self._events(command, ctx)) as told:
            async for event in told:
                yield pb.ConnectResponse(event=event)

    async def send_input(
        self, request: pb.SendInputRequest, ctx: Context, /
    ) -> pb.SendInputResponse:
        await _feed(self._found(request.process), request.input)
        return pb.SendInputResponse()

    async def stream_input(
        self, request: AsyncIterator[pb.StreamInputRequest], ctx: Context, /
    ) -> pb.StreamInputResponse:
        command: Command | None = None
        async for message in request:
            match message.event:
                case Oneof(field="start", value=pb.StreamInputRequest.StartEvent() as start):
                    command = self._found(start.process)
                case Oneof(field="data", value=pb.StreamInputRequest.DataEvent() as data):
                    if command is None:
                        raise ConnectError(Code.INVALID_ARGUMENT, "data before start")
                    await _feed(command, data.input)
                case _:
                    pass  # a keepalive
        return pb.StreamInputResponse()

    async def close_stdin(
        self, request: pb.CloseStdinRequest, ctx: Context, /
    ) -> pb.CloseStdinResponse:
        self._found(request.process).close_input()
        return pb.CloseStdinResponse()

    async def send_signal(
        self, request: pb.SendSignalRequest, ctx: Context, /
    ) -> pb.SendSignalResponse:
        command = self._found(request.process)
        number = SIGNALS.get(request.signal)
        if number is None:
            raise ConnectError(Code.UNIMPLEMENTED, f"invalid signal: {request.signal}")
        command.send(number)
        return pb.SendSignalResponse()

    async def _started(self, request: pb.StartRequest, ctx: Context) -> Command:
        if request.has_field("pty"):
            raise ConnectError(Code.UNIMPLEMENTED, "terminals are not emulated")
        config = request.process or pb.ProcessConfig()
        user = user_of(ctx.request_headers)
        try:
            cwd = resolved(config.cwd if config.has_field("cwd") else "", user)
            process = await self._box.exec(
                [config.cmd, *config.args], cwd=cwd, env=dict(config.envs), user=user
            )
        except (BadPath, OSError) as error:
            raise ConnectError(Code.INVALID_ARGUMENT, _said(error)) from error
        except BoxNotRunning as error:
            raise ConnectError(Code.UNAVAILABLE, str(error)) from error
        command = Command(
            config,
            request.tag if request.has_field("tag") else None,
            process,
            stdin=request.stdin if request.has_field("stdin") else True,
        )
        self._commands[command.pid] = command
        self._ended.pop(command.pid, None)
        watcher = asyncio.create_task(self._watch(command, _left(ctx)))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        return command

    async def _watch(self, command: Command, seconds: float | None) -> None:
        """Its time runs also when nobody listens."""
        try:
            async with asyncio.timeout(seconds):
                await command.ended()
        except TimeoutError:
            command.late = True
            command.send(9)
            await command.ended()
        if self._commands.get(command.pid) is command:
            del self._commands[command.pid]
            self._ended[command.pid] = command
            while len(self._ended) > ENDS_KEPT:
                self._ended.popitem(last=False)

    async def _events(self, command: Command, ctx: Context) -> AsyncGenerator[pb.ProcessEvent]:
        left = _left(ctx)
        deadline = None if left is None else time.monotonic() + left
        ping = _seconds(ctx.request_headers.get(PING_HEADER, ""))
        with command.listening() as listener:
            yield events.started(command.pid)
            if command.end is not None:
                yield command.end
                return
            while True:
                within = ping if deadline is None else min(ping, deadline - time.monotonic())
                event = await listener.next(max(within, 0))
                if deadline is not None and (command.late or time.monotonic() >= deadline):
                    raise ConnectError(Code.DEADLINE_EXCEEDED, "context deadline exceeded")
                yield event or events.ping()
                if event is not None and event is command.end:
                    return

    def _found(self, selector: pb.ProcessSelector | None) -> Command:
        """Raises: ConnectError."""
        match selector.selector if selector else None:
            case Oneof(field="pid", value=int(pid)):
                if pid in self._commands:
                    return self._commands[pid]
                raise ConnectError(Code.NOT_FOUND, f"process with pid {pid} not found")
            case Oneof(field="tag", value=str(tag)):
                for command in self._commands.values():
                    if command.tag == tag:
                        return command
                raise ConnectError(Code.NOT_FOUND, f"process with tag {tag} not found")
            case _:
                raise ConnectError(Code.UNIMPLEMENTED, "invalid selector")


async def _feed(command: Command, given: pb.ProcessInput | None) -> None:
    """Raises: ConnectError."""
    match given.input if given else None:
        case Oneof(field="stdin", value=bytes(data)):
            try:
                await command.write(data)
            except BrokenPipeError as error:
                raise ConnectError(Code.INTERNAL, f"error writing to stdin: {error}") from error
        case _:
            raise ConnectError(Code.UNIMPLEMENTED, "terminals are not emulated")


def _said(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"'{error.filename}' does not exist"
    return str(error)


def _left(ctx: Context) -> float | None:
    """The seconds that the caller gives it."""
    left: float | None = ctx.timeout_ms
    return None if left is None else left / 1000


def _seconds(given: str) -> float:
    return float(given) if given.isdigit() and int(given) else PING_SECONDS
