"""Followers of a load: what each of them saw, and how late, held against what is stored."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import aiohttp

from contracts.events import TURN_END_TYPES

LINE_BYTES = 8 << 20
SILENT_SECONDS = 60  # the api sends a heartbeat every 15
PAUSE_SECONDS = 0.2
# What the stand-in says of each piece: its number, and when it said it.
PIECE = re.compile(r"^([^:\s]+):(\d+):([0-9.]+) ", re.MULTILINE)


@dataclass
class Seen:
    """What the followers of all sessions have in common."""

    # when an event arrived (epoch), and how long after the sidecar had noted it
    arrived: array[float] = field(default_factory=lambda: array("d"))
    late: array[float] = field(default_factory=lambda: array("d"))
    # the same for the first piece of a message, and how long after the stand-in had said it
    said_late: array[float] = field(default_factory=lambda: array("d"))
    said_arrived: array[float] = field(default_factory=lambda: array("d"))
    ends: defaultdict[str, asyncio.Future[str]] = field(
        default_factory=lambda: defaultdict(asyncio.get_running_loop().create_future)
    )
    reconnects: int = 0

    def take(self, event: Mapping[str, Any], now: float) -> None:
        self.arrived.append(now)
        self.late.append(now - datetime.fromisoformat(event["at"]).timestamp())
        if event["type"] == "message":
            piece = PIECE.search(event["text"])
            if piece is not None:
                self.said_arrived.append(now)
                self.said_late.append(now - float(piece[3]))
        if event["type"] in TURN_END_TYPES:
            end = self.ends[event["turn_id"]]
            if not end.done():
                end.set_result(event["type"])


class Follower:
    """One reader of a session's transcript, from its beginning, over as many connections as it
    takes; keeps a hash of every line."""

    def __init__(self, session_id: UUID, seen: Seen) -> None:
        self.session_id = session_id
        self.hashes = array("q")
        self.problems: list[str] = []
        self._seen = seen
        self.open = asyncio.Event()

    async def run(self, http: aiohttp.ClientSession) -> None:
        """For ever; its task is cancelled at the end."""
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                await self._connection(http)
            self._seen.reconnects += 1
            await asyncio.sleep(PAUSE_SECONDS)

    async def _connection(self, http: aiohttp.ClientSession) -> None:
        path = f"sessions/{self.session_id}/events"
        params = {"follow": "true", "after": str(len(self.hashes))}
        limits = aiohttp.ClientTimeout(total=None, sock_read=SILENT_SECONDS)
        async with http.get(path, params=params, timeout=limits) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                self.open.set()
                if not line.endswith(b"\n"):
                    return  # torn: it is sent again
                if line != b"\n":
                    self.take(line[:-1], time.time())

    def take(self, line: bytes, now: float) -> None:
        """Note a line; one that is not the next is a problem."""
        event = json.loads(line)
        if "error" in event and "seq" not in event:
            return  # the stream ends with it, and is taken up again
        if event["seq"] != len(self.hashes) + 1:
            wanted = len(self.hashes) + 1
            self.problems.append(f"{self.session_id}: event {event['seq']} came for {wanted}")
        self.hashes.append(hash(line))
        self._seen.take(event, now)

    def compare(self, stored: Sequence[bytes]) -> list[str]:
        """How what was seen differs from what is stored, line by line."""
        if len(self.hashes) != len(stored):
            told = f"{len(self.hashes)} events seen, {len(stored)} stored"
            return [*self.problems, f"{self.session_id}: {told}"]
        differing = [
            number
            for number, (seen, line) in enumerate(zip(self.hashes, stored, strict=True), 1)
            if seen != hash(line)
        ]
        if differing:
            return [*self.problems, f"{self.session_id}: event {differing[0]} differs"]
        return self.problems


def check_stored(session_id: UUID, stored: Sequence[bytes], orders: Mapping[str, int]) -> list[str]:
    """What is wrong with a stored transcript: `seq` dense from 1, and of every turn in `orders`
    (name to number of pieces) each piece once and in order."""
    events = [json.loads(line) for line in stored]
    problems = []
    if [event["seq"] for event in events] != list(range(1, len(events) + 1)):
        problems.append(f"{session_id}: the stored seqs are not 1 to {len(events)}")
    said: defaultdict[str, list[int]] = defaultdict(list)
    for event in events:
        if event["type"] == "message" and event.get("role") == "assistant":
            for name, number, _ in PIECE.findall(event["text"]):
                said[name].append(int(number))
    for name, pieces in orders.items():
        if said[name] != list(range(1, pieces + 1)):
            problems.append(f"{session_id}: turn {name} said {pieces} pieces, {said[name]} stored")
    return problems
