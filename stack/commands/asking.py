"""Questions of a harness in the terminal: shown one by one, answered by a line."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from client import Holdfast
from contracts.bodies import PermissionOption, Turn
from contracts.errors import AlreadyAnswered, HoldfastError
from contracts.events import Event, PermissionAnswered, PermissionAsked
from stack.commands.terminal import console, one_line, put_error, styled

ELSEWHERE = "nobody types here: answer in the browser, or let it time out"
LINE_BYTES = 4096


class Asking:
    """Asks whoever sits at the terminal. What is answered elsewhere is not asked any more."""

    def __init__(self, hf: Holdfast, turn: Turn) -> None:
        self._hf = hf
        self._turn = turn
        self._asked: asyncio.Queue[PermissionAsked] = asyncio.Queue()
        self._answered: dict[str, asyncio.Event] = {}
        self._typed: asyncio.Queue[str | None] = asyncio.Queue()
        self._out = console(stderr=True)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Ask for the time of the block."""
        loop = asyncio.get_running_loop()
        fd = sys.stdin.fileno()
        try:
            loop.add_reader(fd, self._read, fd)
        except PermissionError:  # a file, which can be read and not waited for
            self._typed.put_nowait(None)
        try:
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(self._serve())
                try:
                    yield
                finally:
                    task.cancel()
        finally:
            loop.remove_reader(fd)

    def hear(self, event: Event) -> None:
        """Take note of an event of the turn."""
        if isinstance(event, PermissionAsked):
            self._answered[event.permission_id] = asyncio.Event()
            self._asked.put_nowait(event)
        elif isinstance(event, PermissionAnswered) and event.permission_id in self._answered:
            self._answered[event.permission_id].set()

    def _read(self, fd: int) -> None:
        data = os.read(fd, LINE_BYTES)
        for line in data.decode("utf-8", "replace").splitlines():
            self._typed.put_nowait(line)
        if not data:
            asyncio.get_running_loop().remove_reader(fd)
            self._typed.put_nowait(None)

    async def _serve(self) -> None:
        while True:
            asked = await self._asked.get()
            if not self._answered[asked.permission_id].is_set():
                await self._ask(asked)

    async def _ask(self, asked: PermissionAsked) -> None:
        options = [PermissionOption.model_validate(each) for each in asked.options]
        for number, option in enumerate(options, start=1):
            self._out.print(styled(f"    {number}  {one_line(option.name or option.option_id)}"))
        while True:
            self._out.print(styled(f"  answer 1-{len(options)}: ", "yellow"), end="")
            line = await self._line(self._answered[asked.permission_id])
            if line is None:
                return
            if line.strip().isdecimal() and 1 <= int(line) <= len(options):
                break
        await self._answer(asked, options[int(line) - 1])

    async def _line(self, answered: asyncio.Event) -> str | None:
        """What is typed; None when it was answered elsewhere, or nobody can type."""
        typed = asyncio.ensure_future(self._typed.get())
        elsewhere = asyncio.ensure_future(answered.wait())
        try:
            await asyncio.wait({typed, elsewhere}, return_when=asyncio.FIRST_COMPLETED)
            if not typed.done():
                self._out.print()
                return None
            line = typed.result()
        finally:
            typed.cancel()
            elsewhere.cancel()
        if line is None:
            self._typed.put_nowait(None)  # nor will anybody later
            self._out.print(styled(ELSEWHERE, "dim"))
        return line

    async def _answer(self, asked: PermissionAsked, option: PermissionOption) -> None:
        try:
            await self._hf.permissions.answer(
                self._turn.session_id, asked.permission_id, option.option_id
            )
        except AlreadyAnswered as error:
            self._out.print(styled(error.message, "dim"))
        except HoldfastError as error:
            put_error(error)
