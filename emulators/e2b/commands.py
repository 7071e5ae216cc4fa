"""A command that envd has started. It goes on when nobody listens, and anybody may listen again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from e2b.envd.process.process_pb import ProcessConfig, ProcessEvent

from emulators.boxes import BoxProcess
from emulators.e2b import events

CHUNK_BYTES = 32 << 10
# A listener that reads slowly slows the command down, as envd's channel of this size does.
UNREAD_EVENTS = 64


class Listener:
    """Who reads the events of a command, until it leaves."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[ProcessEvent] = asyncio.Queue(UNREAD_EVENTS)
        self._left = False

    async def tell(self, event: ProcessEvent) -> None:
        if not self._left:
            await self._events.put(event)

    async def next(self, within: float | None) -> ProcessEvent | None:
        """The next event; None if there is none for so many seconds."""
        try:
            async with asyncio.timeout(within):
                return await self._events.get()
        except TimeoutError:
            return None

    def leave(self) -> None:
        """Whoever waits to tell something goes on."""
        self._left = True
        while not self._events.empty():
            self._events.get_nowait()


class Command:
    """One command with its output and its end. `end` is set before the listeners are told; `late`
    says that its time had run out."""

    def __init__(
        self, config: ProcessConfig, tag: str | None, process: BoxProcess, *, stdin: bool
    ) -> None:
        self.config = config
        self.tag = tag
        self.pid = process.pid
        self.end: ProcessEvent | None = None
        self.late = False
        self._process = process
        self._listeners: list[Listener] = []
        self._signalled = asyncio.Event()
        self._takes_input = stdin
        if not stdin:
            process.stdin.close()
        self._running = asyncio.create_task(self._run())

    @contextlib.contextmanager
    def listening(self) -> Iterator[Listener]:
        """From now on; what was written before is told to nobody."""
        listener = Listener()
        self._listeners.append(listener)
        try:
            yield listener
        finally:
            self._listeners.remove(listener)
            listener.leave()

    async def write(self, data: bytes) -> None:
        """Raises: BrokenPipeError."""
        if not self._takes_input:
            raise BrokenPipeError("stdin not enabled or closed")
        self._process.stdin.write(data)
        try:
            await self._process.stdin.drain()
        except ConnectionError as error:
            raise BrokenPipeError(f"nobody reads it: {error}") from error

    def close_input(self) -> None:
        self._takes_input = False
        self._process.stdin.close()

    def send(self, number: int) -> None:
        """A signal, to the command alone: what it has started lives on, as with the real envd."""
        self._signalled.set()
        self._process.signal(number)

    async def ended(self) -> None:
        await asyncio.wait({self._running})

    async def give_up(self) -> None:
        """Stop looking after it; the box is about to be gone."""
        self._running.cancel()
        await asyncio.wait({self._running})

    async def _run(self) -> None:
        pumps = {
            asyncio.create_task(self._pump(self._process.stdout, _stdout)),
            asyncio.create_task(self._pump(self._process.stderr, _stderr)),
        }
        signalled = asyncio.create_task(self._signalled.wait())
        try:
            # What the command left in the background keeps the output open, and so the command
            # unfinished; a signal ends the patience.
            while not signalled.done() and (reading := {p for p in pumps if not p.done()}):
                await asyncio.wait({*reading, signalled}, return_when=asyncio.FIRST_COMPLETED)
            code = await self._process.wait()
        finally:
            for task in (*pumps, signalled):
                task.cancel()
            await asyncio.wait({*pumps, signalled})
        self._process.stdin.close()
        self.end = events.ended(code)
        for listener in list(self._listeners):
            await listener.tell(self.end)

    async def _pump(
        self, stream: asyncio.StreamReader, wrote: Callable[[bytes], ProcessEvent]
    ) -> None:
        while data := await stream.read(CHUNK_BYTES):
            event = wrote(data)
            for listener in list(self._listeners):
                await listener.tell(event)


def _stdout(data: bytes) -> ProcessEvent:
    return events.wrote(events.Out("stdout", data))


def _stderr(data: bytes) -> ProcessEvent:
    return events.wrote(events.Err("stderr", data))
