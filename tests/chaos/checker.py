"""Is everything that was ever shown or promised there? Asked with clients of its own.

It speaks to PostgreSQL and to S3 by itself and shares no code with the product: the product's own
proof is what is doubted here.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aioboto3
import asyncpg
from botocore.exceptions import ClientError

from tests.chaos.follower import Event, Follower
from tests.chaos.report import Kind, Violation
from tests.chaos.script import LOG, Absent, Expected, Holds, Links, history_path

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client

ENDS = {
    "turn.completed": "completed",
    "turn.failed": "failed",
    "turn.cancelled": "cancelled",
    "turn.interrupted": "interrupted",
}
STATE_BUCKET = "state"
ASK_SECONDS = 5.0
TURNS_BY_PROMPT = "SELECT id, prompt #>> '{}' AS prompt FROM turns WHERE session_id = $1"


@dataclass(frozen=True)
class Stored:
    size: int
    etag: str
    modified: datetime


class Checker:
    def __init__(self, conn: asyncpg.Connection[Any], s3: S3Client, bucket: str) -> None:
        self._conn = conn
        self._s3 = s3
        self._bucket = bucket
        # what an object's bytes hash to, by its key and everything that changes with a write
        self._hashes: dict[tuple[str, Stored], str] = {}

    async def session_ids(self) -> set[str]:
        return {str(row["id"]) for row in await self._conn.fetch("SELECT id FROM sessions")}

    async def last_seq(self, session_id: str) -> int:
        return int(
            await self._conn.fetchval("SELECT last_seq FROM sessions WHERE id = $1", session_id)
        )

    async def latest_turn(self, session_id: str) -> dict[str, Any]:
        row = await self._conn.fetchrow(
            "SELECT * FROM turns WHERE session_id = $1 ORDER BY epoch DESC NULLS LAST LIMIT 1",
            session_id,
        )
        assert row is not None
        return _plain(row)

    async def transcript(self, follower: Follower) -> list[Violation]:
        """Stored once, in order, without a gap, byte for byte what was shown; turns are whole."""
        rows = await self._conn.fetch(
            "SELECT seq, turn_id, body::text AS body FROM events WHERE session_id = $1"
            " ORDER BY seq",
            follower.session_id,
        )
        found = [Violation("event lost", wrong) for wrong in follower.wrong]
        stored = {row["seq"]: row["body"].encode() for row in rows}
        if list(stored) != list(range(1, len(stored) + 1)):
            missing = sorted(set(range(1, max(stored, default=0) + 1)) - set(stored))
            found.append(Violation("event lost", f"seq has gaps: {missing[:5]}", len(missing)))
        last = await self.last_seq(follower.session_id)
        if last != max(stored, default=0):
            found.append(Violation("event lost", f"last_seq is {last}, stored {len(stored)}"))
        for seq, line in follower.shown.items():
            if stored.get(seq) != line:
                what = "is not stored" if seq not in stored else "is stored with other bytes"
                found.append(Violation("event lost", f"event {seq} was shown and {what}"))
        unseen = len(stored.keys() - follower.shown.keys())
        if unseen:
            found.append(Violation("event lost", f"{unseen} events were never shown", unseen))
        return found + await self._turns(follower.session_id, rows)

    async def _turns(self, session_id: str, rows: list[Any]) -> list[Violation]:
        turns = await self._conn.fetch("SELECT * FROM turns WHERE session_id = $1", session_id)
        events: dict[str, list[Event]] = defaultdict(list)
        for row in rows:
            events[str(row["turn_id"])].append(json.loads(row["body"]))
        return [
            violation
            for turn in map(_plain, turns)
            for violation in check_turn(turn, events[str(turn["id"])])
        ]

    async def workspace(self, session_id: str, expected: Expected) -> list[Violation]:
        """The latest receipt's manifest, and all that earlier turns were told was done."""
        stored = await self._list(f"{session_id}/")
        turn = await self.latest_turn(session_id)
        manifest = None
        found: list[Violation] = []
        if turn["receipt"] is not None:
            manifest, wrong = await self._manifest(session_id, turn)
            found += wrong
        if manifest is not None:
            found += await self._compare(session_id, manifest, stored, turn["ended_at"])
        return found + await self._expected(session_id, expected, stored, manifest)

    async def history(self, session_id: str, number: int, commits: set[str]) -> list[Violation]:
        """What git says was committed, against what finished tools and receipts said."""
        said = await self._get(f"{session_id}/{history_path(number)}") or b""
        missing = sorted(commits - set(said.decode().splitlines()))
        if not missing:
            return []
        what = f"{session_id}: after round {number} git has not {missing[:5]}"
        return [Violation("bytes lost", what, len(missing))]

    async def empty(self, session_id: str) -> list[Violation]:
        """After a session's deletion."""
        left = await self._list(f"{session_id}/")
        state = await self._list(f"{session_id}/", bucket=STATE_BUCKET)
        rows = await self._conn.fetchval(
            "SELECT count(*) FROM events WHERE session_id = $1", session_id
        )
        if not left and not state and not rows:
            return []
        what = f"a deleted session left {len(left)} files, {len(state)} objects of state"
        return [Violation("leak", f"{what}, {rows} events: {[*left, *state][:5]}")]

    async def _manifest(
        self, session_id: str, turn: dict[str, Any]
    ) -> tuple[dict[str, Any] | None, list[Violation]]:
        key = f"{session_id}/manifests/{turn['id']}.json"
        raw = await self._get(key, bucket=STATE_BUCKET)
        if raw is None:
            return None, [Violation("bytes lost", f"turn {turn['id']} has a receipt, no manifest")]
        body = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        told = turn["receipt"]
        manifest: dict[str, Any] = json.loads(body)
        files = [entry for entry in manifest["entries"] if entry["kind"] == "file"]
        facts = (
            len(files),
            sum(entry["size"] for entry in files),
            hashlib.sha256(body).hexdigest(),
        )
        if facts != (told["files"], told["bytes"], told["manifest_sha256"]):
            what = f"turn {turn['id']}: receipt {told} is not of its manifest {facts}"
            return manifest, [Violation("bytes lost", what)]
        return manifest, []

    async def _compare(
        self,
        session_id: str,
        manifest: dict[str, Any],
        stored: dict[str, Stored],
        ended: datetime,
    ) -> list[Violation]:
        """What differs, told apart: lost, or written by someone who went on after the turn."""
        found = []
        # the store knows seconds only, and the barrier ran just before the end
        end = ended.replace(microsecond=0)
        late = {path for path, item in stored.items() if item.modified >= end}
        where = f"turn {manifest['turn_id']}"
        for entry in manifest["entries"]:
            if entry["kind"] != "file":
                continue
            path = entry["path"]
            if path not in stored:
                what = f"{where}: {path} is not in the store"
            elif stored[path].size != entry["size"]:
                what = f"{where}: {path} has {stored[path].size} of {entry['size']} bytes"
            else:
                wrong = await self._wrong(f"{session_id}/{path}", stored[path], entry["sha256"])
                if not wrong:
                    continue
                what = f"{where}: {path} {wrong}"
            kind: Kind = "late write" if path in late else "bytes lost"
            found.append(Violation(kind, what, max(1, entry["size"])))
        named = {entry["path"] for entry in manifest["entries"]}
        for path in sorted(stored.keys() - named):
            kind = "late write" if path in late else "bytes lost"
            found.append(Violation(kind, f"{where}: {path} is only in the store"))
        return found

    async def _expected(
        self,
        session_id: str,
        expected: Expected,
        stored: dict[str, Stored],
        manifest: dict[str, Any] | None,
    ) -> list[Violation]:
        found = []
        links = {
            entry["path"]: entry.get("target")
            for entry in (manifest["entries"] if manifest is not None else [])
        }
        for path, effect in expected.files.items():
            wrong = ""
            if isinstance(effect, Absent):
                wrong = "was deleted and is there" if path in stored else ""
            elif path not in stored:
                wrong = "was made and is not there"
            elif isinstance(effect, Links) and manifest is not None:
                wrong = "" if links.get(path) == effect.target else "is another link, or none"
            elif isinstance(effect, Holds):
                wanted = hashlib.sha256(effect.content).hexdigest()
                wrong = await self._wrong(f"{session_id}/{path}", stored[path], wanted)
            if wrong:
                size = len(effect.content) if isinstance(effect, Holds) else 1
                found.append(Violation("bytes lost", f"{session_id}/{path} {wrong}", size))
        log = (await self._get(f"{session_id}/{LOG}")) or b"" if expected.lines else b""
        for line in sorted(expected.lines - set(log.split(b"\n"))):
            what = f"{session_id}/{LOG} lacks {line.decode()}"
            found.append(Violation("bytes lost", what, len(line)))
        return found

    async def _list(self, prefix: str, bucket: str | None = None) -> dict[str, Stored]:
        found = {}
        pages = self._s3.get_paginator("list_objects_v2")
        async for page in pages.paginate(Bucket=bucket or self._bucket, Prefix=prefix):
            for item in page.get("Contents", []):
                if not item["Key"].endswith("/"):
                    found[item["Key"].removeprefix(prefix)] = Stored(
                        item["Size"], item.get("ETag", ""), item["LastModified"]
                    )
        return found

    async def _wrong(self, key: str, stored: Stored, wanted: str) -> str:
        """What is wrong with an object, in words; nothing when it has the bytes that are wanted."""
        try:
            return "" if await self._hash(key, stored) == wanted else "has other bytes"
        except ClientError as error:
            return f"cannot be read: {error}"

    async def _hash(self, key: str, stored: Stored) -> str:
        known = self._hashes.get((key, stored))
        if known is None:
            known = hashlib.sha256(await self._get(key) or b"").hexdigest()
            self._hashes[key, stored] = known
        return known

    async def _get(self, key: str, bucket: str | None = None) -> bytes | None:
        try:
            answer = await self._s3.get_object(Bucket=bucket or self._bucket, Key=key)
        except self._s3.exceptions.NoSuchKey:
            return None
        return await answer["Body"].read()


def check_turn(turn: dict[str, Any], events: list[Event]) -> list[Violation]:
    """An ended turn: one start, one end behind everything, no tool twice, a reason or a proof."""
    name = f"turn {turn['id']}"
    found = []
    gap = any(event["type"] == "run.gap" for event in events)
    if gap and turn["state"] == "completed":
        found.append(Violation("event lost", f"{name} has a gap, and is completed"))
    # a gap says that what happened then may be told twice
    for kind in () if gap else ("tool.call", "tool.result"):
        ids = Counter(event["tool_call_id"] for event in events if event["type"] == kind)
        doubled = [call for call, count in ids.items() if count > 1]
        if doubled:
            what = f"{name}: {kind} of {doubled[:3]} is there twice"
            found.append(Violation("event doubled", what, len(doubled)))
    if turn["state"] not in ENDS.values():
        return found
    ends = [event["type"] for event in events if event["type"] in ENDS]
    if len(ends) != 1 or events[-1]["type"] not in ENDS or ENDS[ends[0]] != turn["state"]:
        what = f"{name} is {turn['state']}, its events end with {events[-1]['type']}: {ends}"
        found.append(Violation("event lost", what))
    if [event["type"] for event in events].count("turn.started") != 1:
        found.append(Violation("event doubled", f"{name} has not exactly one start"))
    if turn["state"] == "completed" and turn["receipt"] is None:
        found.append(Violation("no receipt", f"{name} is completed without a receipt"))
    if turn["state"] == "cancelled" and not turn["cancel_requested"]:
        found.append(Violation("no reason", f"{name} is cancelled, and nobody asked for it"))
    error = turn["error"] or {}
    explained = error.get("code") and error.get("message")
    if turn["state"] in ("failed", "interrupted") and not explained:
        found.append(Violation("no reason", f"{name} is {turn['state']} and does not say why"))
    return found


def _plain(row: asyncpg.Record) -> dict[str, Any]:
    """A turn's row; its JSON columns come as text."""
    turn = dict(row)
    for column in ("receipt", "error"):
        if isinstance(turn[column], str):
            turn[column] = json.loads(turn[column])
    return turn


def database_url(data_dir: Path) -> str:
    """From PostgreSQL's own lock file: its fifth line is the directory of its socket."""
    lines = (data_dir / "postgres" / "postmaster.pid").read_text().splitlines()
    return f"postgresql://postgres@/holdfast?host={lines[4]}"


async def find_turn(data_dir: Path, session_id: str, prompt: str) -> str | None:
    """The turn with this prompt; None when there is none, or nobody can tell right now."""
    try:
        async with asyncio.timeout(ASK_SECONDS):
            conn = await asyncpg.connect(database_url(data_dir))
            try:
                rows = await conn.fetch(TURNS_BY_PROMPT, session_id)
            finally:
                await conn.close()
    except (OSError, TimeoutError, asyncpg.PostgresError, IndexError):
        return None
    return next((str(row["id"]) for row in rows if row["prompt"] == prompt), None)


@contextlib.asynccontextmanager
async def checking(data_dir: Path) -> AsyncIterator[Checker]:
    """A checker of the stack in `data_dir`, past every proxy."""
    access = json.loads((data_dir / "store.json").read_text())
    conn = await asyncpg.connect(database_url(data_dir))
    try:
        async with aioboto3.Session().client(
            "s3",
            endpoint_url=access["endpoint"],
            aws_access_key_id=access["access_key"],
            aws_secret_access_key=access["secret_key"],
            region_name="us-east-1",
        ) as s3:
            yield Checker(conn, s3, access["bucket"])
    finally:
        await conn.close()
