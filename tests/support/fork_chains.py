"""Programs in C that fork faster than anybody can list them, and their freezes."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contracts.errors import Unreachable
from sidecar.providers.base import Command, Sandbox
from tests.support.requirements import missing

HERE = Path(__file__).parent
PLACE = "/tmp/fork-chains"
PROGRAM = "/tmp/fork_chain"
WITHIN = 60.0
# Enough for a chain that runs to count.
A_MOMENT = "0.1"


def build(name: str, directory: Path) -> bytes:
    """A program that runs on any Linux of this machine's kind. Skips where none can be made."""
    compiler = shutil.which("cc")
    if compiler is None:
        missing("cc", "no C compiler on PATH")
    program = directory / name
    command = [compiler, "-static", "-O2", "-o", str(program), str(HERE / f"{name}.c")]
    subprocess.run(command, check=True, timeout=60)
    return program.read_bytes()


def build_chain(directory: Path) -> bytes:
    return build("fork_chain", directory)


@dataclass(frozen=True)
class Chains:
    """They end by themselves after so many seconds: a test that is killed cannot stop them."""

    sandbox: Sandbox
    count: int
    seconds: int = 120

    async def start(self, program: bytes, *, sessions: bool = False) -> None:
        await self.sandbox.write(PROGRAM, program, 0o755)
        await self.sandbox.exec(Command(["mkdir", "-p", PLACE], cwd="/"))
        more = ["sessions"] if sessions else []
        argv = [PROGRAM, PLACE, str(self.count), str(self.seconds), *more]
        await self.sandbox.spawn(Command(argv, cwd="/"))
        await self.wait_for_more([0] * self.count)

    async def stop(self) -> None:
        await self.sandbox.write(f"{PLACE}/stop", b"")
        async with asyncio.timeout(WITHIN):
            while any("fork_chain" in each.argv[0] for each in await self.sandbox.processes()):
                await asyncio.sleep(0.05)
        await self.sandbox.exec(Command(["rm", "-rf", PLACE, PROGRAM], cwd="/"))

    async def read(self, pause: str = "0") -> list[int]:
        """How far each has counted, after so many seconds in the sandbox."""
        shown = await self.sandbox.exec(
            Command(["sh", "-c", f"sleep {pause}; cat {PLACE}/[0-9]*"], cwd="/")
        )
        return [int(line) for line in shown.stdout.split()]

    async def wait_for_more(self, than: Sequence[int]) -> None:
        """Until every chain has counted further. Raises: TimeoutError."""
        async with asyncio.timeout(WITHIN):
            while True:
                now = await self.read()
                if len(now) == self.count and all(a > b for a, b in zip(now, than, strict=True)):
                    return
                await asyncio.sleep(0.01)


@dataclass
class Tries:
    """What became of some freezes."""

    tries: int = 0
    refused: int = 0
    wrote: int = 0
    stuck: int = 0

    async def freeze(self, chains: Chains) -> None:
        """Freeze once, look whether it is, and whether everything goes on afterwards."""
        self.tries += 1
        try:
            await chains.sandbox.freeze()
        except Unreachable:
            self.refused += 1
            stood = await chains.read()
        else:
            try:
                stood = await chains.read()
                self.wrote += await chains.read(A_MOMENT) != stood
            finally:
                await chains.sandbox.thaw()
        try:
            await chains.wait_for_more(stood)
        except TimeoutError:
            self.stuck += 1
