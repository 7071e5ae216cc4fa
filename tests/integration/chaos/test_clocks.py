"""A service's clock is stepped while it runs, and nobody else's."""

from __future__ import annotations

import asyncio
import time

from tests.chaos.clocks import stepped_clocks

SCRIPT = """
import pathlib, sys, time, datetime, sitecustomize
sitecustomize.step_clock(pathlib.Path(sys.prefix) / "clocks" / "api")
for _ in sys.stdin:
    now = datetime.datetime.now(datetime.timezone.utc).timestamp()
    print(time.time(), time.time_ns() / 1e9, now, time.monotonic(), flush=True)
"""


async def test_a_clock_is_stepped_while_its_service_runs() -> None:
    with stepped_clocks() as clocks:
        assert clocks.why_not == ""
        child = await asyncio.create_subprocess_exec(
            clocks.directory / "bin" / "python",
            *("-P", "-c", SCRIPT),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert child.stdin is not None
        assert child.stdout is not None

        async def steps() -> set[int]:
            """How many hours each of its clocks is off."""
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(b"\n")
            async with asyncio.timeout(30):
                *wall, monotonic = map(float, (await child.stdout.readline()).split())
            assert abs(monotonic - time.monotonic()) < 60
            return {round((each - time.time()) / 3600) for each in wall}

        assert await steps() == {0}
        async with clocks.stepped("api", -7200):
            assert await steps() == {-2}
            async with clocks.stepped("sidecar", 7200):
                assert await steps() == {-2}
        assert await steps() == {0}
        child.stdin.close()
        async with asyncio.timeout(30):
            await child.wait()
