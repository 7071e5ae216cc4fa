"""What an append to a long transcript costs, against `seq = count(*) + 1` for every event.

    uv run python -m bench.append [--events 20000] [--json]

Starts its own PostgreSQL (from the wheel, fsync on) and appends through `api.db`. The last 1,000
events of a long transcript, the first 1,000 of a new one and the naive way (on a transcript that
is as long) take turns, one append each, so that whatever else the machine does hits all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from uuid import UUID

from uuid_utils.compat import uuid7

from api.db import sessions, transcript, turns
from api.db.migrate import migrate
from api.db.pool import Database, open_database
from contracts.events import Message
from tests.support.services import postgres, short_directory

STRETCH = 1_000
# Big batches are few, so they are measured over several transcripts.
ROUNDS = {1: 1, 50: 5}
FILL_BATCH = 200
EPOCH = 1
TEXT = "The quick brown fox jumps over the lazy dog. " * 4

NAIVE = """
INSERT INTO events (session_id, turn_id, seq, source, at, type, size, body)
SELECT $1, $2, count(*) + 1, NULL, $3, $4, octet_length($5::json::text), $5::json
FROM events WHERE session_id = $1
"""
DENSE = "SELECT count(*) = max(seq) AND min(seq) = 1 FROM events WHERE session_id = $1"


@dataclass
class Transcript:
    """A session with one turn that is appended to."""

    database: Database
    session_id: UUID = field(default_factory=uuid7)
    turn_id: UUID = field(default_factory=uuid7)
    length: int = 0

    async def create(self, length: int = 0) -> Transcript:
        session = sessions.NewSession(
            self.session_id, "bench", "claude", "local", None, None, "auto"
        )
        turn = turns.NewTurn(
            self.turn_id, self.session_id, "go", "claude", "local", None, None, "auto"
        )
        async with self.database.transaction() as conn:
            await sessions.insert(conn, session)
            await turns.insert(conn, turn, 1)
            await sessions.start_turn(conn, self.session_id, EPOCH, "bench")
            await turns.start(conn, self.turn_id, EPOCH, 1)
        while self.length < length:
            await self.append(min(FILL_BATCH, length - self.length))
        return self

    async def append(self, size: int) -> None:
        numbers = range(self.length + 1, self.length + 1 + size)
        events = [transcript.prepare(Message(role="assistant", text=TEXT), n) for n in numbers]
        async with self.database.transaction() as conn:
            place = await transcript.lock(conn, self.turn_id, EPOCH)
            assert place is not None
            stored = await transcript.append(conn, self.turn_id, place, events)
        assert len(stored) == size
        self.length += size

    async def append_naively(self) -> None:
        self.length += 1
        event = transcript.prepare(Message(role="assistant", text=TEXT))
        body = transcript.placed(event, self.session_id, self.turn_id, self.length)
        async with self.database.transaction() as conn:
            await conn.execute(NAIVE, self.session_id, self.turn_id, event.at, event.type, body)

    async def check(self) -> None:
        """What was measured must also be right."""
        async with self.database.connection() as conn:
            assert await conn.fetchval(DENSE, self.session_id)


@dataclass
class Measured:
    """Seconds and events of each of the three that take turns."""

    batch: int
    first: float = 0.0
    last: float = 0.0
    events: int = 0
    naive: float = 0.0
    naive_events: int = 0

    def row(self) -> dict[str, float]:
        per_event = self.last / self.events
        return {
            "batch": self.batch,
            "first_1000_s": round(self.first / self.events * STRETCH, 3),
            "last_1000_s": round(self.last / self.events * STRETCH, 3),
            "ratio": round(self.last / self.first, 2),
            "last_us_per_event": round(per_event * 1e6, 1),
            "naive_us_per_event": round(self.naive / self.naive_events * 1e6, 1),
            "faster_than_naive": round(self.naive / self.naive_events / per_event, 1),
        }


async def timed(work: Awaitable[None]) -> float:
    started = time.perf_counter()
    await work
    return time.perf_counter() - started


async def measure(database: Database, batch: int, total: int) -> Measured:
    measured = Measured(batch)
    naive = await Transcript(database).create(total)
    for _ in range(ROUNDS[batch]):
        new = await Transcript(database).create()
        long = await Transcript(database).create(total - STRETCH)
        for _ in range(STRETCH // batch):
            measured.first += await timed(new.append(batch))
            measured.last += await timed(long.append(batch))
            measured.naive += await timed(naive.append_naively())
            measured.naive_events += 1
        measured.events += STRETCH
        for each in (new, long):
            await each.check()
    await naive.check()
    return measured


async def run(total: int) -> dict[str, object]:
    with short_directory() as directory:
        async with postgres(directory) as server, open_database(server.url()) as database:
            async with database.connection() as conn:
                await migrate(conn)
            rows = [(await measure(database, batch, total)).row() for batch in ROUNDS]
    return {"events": total, "append": rows}


def table(rows: list[dict[str, float]], total: int) -> str:
    lines = [f"batch  first 1,000  last 1,000 of {total:,}  ratio  µs/event  naive  faster"]
    lines += [
        f"{row['batch']:5}  {row['first_1000_s']:9.3f} s  {row['last_1000_s']:18.3f} s"
        f"  {row['ratio']:5.2f}  {row['last_us_per_event']:8.0f}"
        f"  {row['naive_us_per_event']:5.0f}  {row['faster_than_naive']:5.1f}x"
        for row in rows
    ]
    lines.append(
        f"naive: µs per event with one count(*) and one commit each, on {total:,} events and more"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="What an append to a long transcript costs.")
    parser.add_argument("--events", type=int, default=20_000, help="length of the transcript")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.events < 2 * STRETCH:
        parser.error(f"--events must be at least {2 * STRETCH}")
    result = asyncio.run(run(options.events))
    rows = result["append"]
    assert isinstance(rows, list)
    text = json.dumps(result) if options.json else table(rows, options.events)
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
