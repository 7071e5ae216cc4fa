"""What nobody owns any more: processes from /proc, and the product's own list."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import httpx

from tests.chaos.census import take_census
from tests.chaos.checker import Checker
from tests.chaos.report import Violation

# the product's own reaper and reconciler get this long before something counts as leaked
LEAK_SECONDS = 25.0


async def find_leaks(
    data_dir: Path, checker: Checker, http: httpx.AsyncClient, *, boxes_are_kept: bool
) -> list[Violation]:
    """What is still left over after a while, while no turn runs."""
    deadline = time.monotonic() + LEAK_SECONDS
    while True:
        left = await left_over(data_dir, await checker.session_ids(), boxes_are_kept)
        answer = await http.get("/leaks")
        told = answer.json()["leaks"] if answer.is_success else [f"/leaks: {answer.status_code}"]
        if not left and not told:
            return []
        if time.monotonic() > deadline:
            return [Violation("leak", what) for what in left] + [
                Violation("leak", f"GET /leaks tells {leak}") for leak in told
            ]
        await asyncio.sleep(0.5)


async def left_over(data_dir: Path, sessions: set[str], boxes_are_kept: bool) -> list[str]:
    """What lives now and should not, asked while no turn runs."""
    census = await asyncio.to_thread(take_census, data_dir)
    state = json.loads((data_dir / "state.json").read_text())
    sidecar = next(part["pid"] for part in state["parts"] if part["name"] == "sidecar")
    left = [
        f"no session {session}: {word}"
        for session, words in census.of_sessions().items()
        if session not in sessions
        for word in words
    ]
    left += [
        f"walker {walker.pid} of {session} is not the sidecar's"
        for session, walkers in census.walkers.items()
        for walker in walkers
        if walker.parent != sidecar
    ]
    left += [f"{session} has rivals: {living}" for session, living in census.rivals()]
    left += [f"keeper without a box: {box}" for box in census.keepers.keys() - census.boxes.keys()]
    if not boxes_are_kept:
        left += [f"box {box} is kept after its time" for box in census.boxes]
        left += [f"mount of {session} is kept after its time" for session in census.mounts]
    return left
