"""The checker must be able to fail: each thing that it watches for is done to it once."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest
from uuid_utils.compat import uuid7

from api.db.migrate import migrate
from api.db.pool import open_database
from tests.chaos.checker import STATE_BUCKET, Checker, check_turn
from tests.chaos.follower import Follower
from tests.chaos.report import Violation
from tests.chaos.script import Absent, Expected, Holds, Links, history_path
from tests.support import names
from tests.support.s3 import open_s3
from tests.support.services import Postgres, SeaweedFS, postgres, short_directory

BUCKET = "sessions"
FILES = {"a.txt": b"alpha", "deep/b.txt": b"beta", "log.txt": b"one\ntwo\n"}


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[Postgres]:
    with short_directory() as directory:
        async with postgres(directory) as started:
            async with open_database(started.url()) as database, database.connection() as conn:
                await migrate(conn)
            yield started


@dataclass
class Fixed:
    """A session with one completed turn of four events, three files and a link."""

    checker: Checker
    conn: Any
    s3: Any
    session_id: str = field(default_factory=lambda: str(uuid7()))
    turn_id: str = field(default_factory=lambda: str(uuid7()))

    @property
    def follower(self) -> Follower:
        return Follower("http://127.0.0.1:1", "", self.session_id)

    async def shown(self, *sequence: int) -> Follower:
        follower = self.follower
        for seq in sequence:
            await follower.take(self.line(seq))
        return follower

    def line(self, seq: int) -> bytes:
        kinds = {
            1: names.TURN_STARTED,
            2: names.TOOL_CALL,
            3: names.TOOL_RESULT,
            4: names.TURN_COMPLETED,
        }
        event = {"seq": seq, "turn_id": self.turn_id, "type": kinds[seq], "tool_call_id": "t"}
        return json.dumps(event, separators=(",", ":")).encode()

    async def fill(self) -> None:
        await self.conn.execute(
            "INSERT INTO sessions (id, title, harness, provider, permissions, epoch, last_seq)"
            " VALUES ($1, '', 'pi', 'local', 'auto', 1, 4)",
            self.session_id,
        )
        manifest = await self._store()
        receipt = {
            "engine": "weed",
            "files": len(FILES),
            "bytes": sum(map(len, FILES.values())),
            "manifest_sha256": hashlib.sha256(manifest).hexdigest(),
        }
        await self.conn.execute(
            "INSERT INTO turns (id, session_id, epoch, state, prompt, harness, provider,"
            " permissions, first_seq, last_seq, receipt, ended_at)"
            " VALUES ($1, $2, 1, 'completed', '\"x\"', 'pi', 'local', 'auto', 1, 4, $3,"
            " now() + interval '1 hour')",
            self.turn_id,
            self.session_id,
            json.dumps(receipt),
        )
        for seq in range(1, 5):
            await self.insert(seq, self.line(seq))

    async def insert(self, seq: int, line: bytes) -> None:
        await self.conn.execute(
            "INSERT INTO events (session_id, seq, turn_id, at, type, size, body)"
            " VALUES ($1, $2, $3, now(), 'x', $4, $5)",
            self.session_id,
            seq,
            self.turn_id,
            len(line),
            line.decode(),
        )

    async def forget(self, seq: int) -> None:
        delete = "DELETE FROM events WHERE session_id = $1 AND seq = $2"
        await self.conn.execute(delete, self.session_id, seq)

    async def put(self, path: str, content: bytes) -> None:
        await self.s3.put_object(Bucket=BUCKET, Key=f"{self.session_id}/{path}", Body=content)

    async def _store(self) -> bytes:
        entries: list[dict[str, Any]] = [
            {
                "path": path,
                "kind": "file",
                "size": len(content),
                "sha256": hashlib.sha256(content).hexdigest(),
            }
            for path, content in FILES.items()
        ]
        entries.append({"path": "link", "kind": "symlink", "target": "a.txt"})
        for path, content in (*FILES.items(), ("link", b"")):
            await self.put(path, content)
        manifest = json.dumps({"turn_id": self.turn_id, "entries": entries}).encode()
        key = f"{self.session_id}/manifests/{self.turn_id}.json"
        await self.s3.put_object(Bucket=STATE_BUCKET, Key=key, Body=manifest)
        return manifest

    async def files(self, expected: Expected | None = None) -> list[Violation]:
        return await self.checker.workspace(self.session_id, expected or Expected())


@pytest.fixture
async def fixed(server: Postgres, store_service: SeaweedFS) -> AsyncIterator[Fixed]:
    conn = await asyncpg.connect(server.url())
    try:
        async with open_s3(store_service) as s3:
            for bucket in (BUCKET, STATE_BUCKET):
                with contextlib.suppress(s3.exceptions.BucketAlreadyOwnedByYou):
                    await s3.create_bucket(Bucket=bucket)
            made = Fixed(Checker(conn, s3, BUCKET), conn, s3)
            await made.fill()
            yield made
    finally:
        await conn.close()


def only(found: list[Violation]) -> Violation:
    assert len(found) == 1, found
    return found[0]


async def test_a_whole_session_is_found_whole(fixed: Fixed) -> None:
    expected = Expected(
        {"a.txt": Holds("a.txt", b"alpha"), "gone": Absent("gone"), "link": Links("link", "a.txt")},
        {b"one", b"two"},
    )
    assert await fixed.checker.transcript(await fixed.shown(1, 2, 3, 4)) == []
    assert await fixed.files(expected) == []


async def test_an_event_that_was_shown_and_is_not_stored_is_lost(fixed: Fixed) -> None:
    await fixed.forget(4)
    found = await fixed.checker.transcript(await fixed.shown(1, 2, 3, 4))
    assert "event 4 was shown and is not stored" in [violation.what for violation in found]


async def test_a_gap_in_the_stored_sequence_is_a_lost_event(fixed: Fixed) -> None:
    await fixed.forget(2)
    found = await fixed.checker.transcript(fixed.follower)
    assert any("seq has gaps: [2]" in violation.what for violation in found)


async def test_a_session_that_counts_other_events_than_it_has_is_found(fixed: Fixed) -> None:
    await fixed.conn.execute("UPDATE sessions SET last_seq = 5 WHERE id = $1", fixed.session_id)
    found = only(await fixed.checker.transcript(await fixed.shown(1, 2, 3, 4)))
    assert found.what == "last_seq is 5, stored 4"


async def test_an_event_that_was_stored_with_other_bytes_is_lost(fixed: Fixed) -> None:
    await fixed.conn.execute(
        "UPDATE events SET body = $2 WHERE session_id = $1 AND seq = 2",
        fixed.session_id,
        fixed.line(2).decode().replace('"t"', '"u"'),
    )
    found = only(await fixed.checker.transcript(await fixed.shown(1, 2, 3, 4)))
    assert found == Violation("event lost", "event 2 was shown and is stored with other bytes")


async def test_an_event_that_the_follower_was_never_shown_is_lost(fixed: Fixed) -> None:
    found = only(await fixed.checker.transcript(await fixed.shown(1, 2, 3)))
    assert found.what == "1 events were never shown"


@pytest.mark.parametrize("sequence", [(1, 2, 2, 3, 4), (1, 3, 4)])
async def test_a_follower_that_is_shown_an_event_twice_or_not_at_all_tells(
    fixed: Fixed, sequence: tuple[int, ...]
) -> None:
    follower = await fixed.shown(*sequence)
    assert len(follower.wrong) == 1
    assert await fixed.checker.transcript(follower) != []


async def test_a_result_that_is_stored_twice_is_a_doubled_event(fixed: Fixed) -> None:
    again = fixed.line(3).replace(b'"seq":3', b'"seq":4')
    events = [json.loads(line) for line in (fixed.line(2), fixed.line(3), again)]
    found = only(check_turn({"id": "1", "state": "running"}, events))
    assert found.kind == "event doubled"


async def test_a_completed_turn_without_a_receipt_is_no_success(fixed: Fixed) -> None:
    await fixed.conn.execute("UPDATE turns SET receipt = NULL WHERE id = $1", fixed.turn_id)
    assert only(await fixed.checker.transcript(await fixed.shown(1, 2, 3, 4))).kind == "no receipt"


@pytest.mark.parametrize(
    "kinds",
    [
        [names.TURN_STARTED, names.TURN_COMPLETED, "message"],
        [names.TURN_STARTED, names.TURN_COMPLETED, names.TURN_COMPLETED],
        [names.TURN_STARTED, names.TURN_FAILED],
        [names.TURN_STARTED, "message"],
        [names.TURN_STARTED, names.TURN_STARTED, names.TURN_COMPLETED],
    ],
)
def test_a_completed_turn_has_one_start_and_one_end_and_nothing_after_it(kinds: list[str]) -> None:
    turn: dict[str, Any] = {"id": "1", "state": "completed", "receipt": {}, "error": None}
    whole = [{"type": names.TURN_STARTED}, {"type": names.TURN_COMPLETED}]
    assert check_turn(turn, whole) == []
    assert len(check_turn(turn, [{"type": kind} for kind in kinds])) == 1


def test_a_gap_excuses_what_is_told_twice_and_forbids_to_complete() -> None:
    call = {"type": names.TOOL_CALL, "tool_call_id": "t"}
    error = {"code": "x", "message": "why"}
    turn: dict[str, Any] = {"id": "1", "state": "interrupted", "receipt": {}, "error": error}
    start, gap, end = {"type": names.TURN_STARTED}, {"type": names.RUN_GAP}, names.TURN_INTERRUPTED
    assert check_turn(turn, [start, call, gap, call, {"type": end}]) == []
    assert only(check_turn(turn, [start, call, call, {"type": end}])).kind == "event doubled"
    turn["state"] = "completed"
    completed = [start, gap, {"type": names.TURN_COMPLETED}]
    assert only(check_turn(turn, completed)).kind == "event lost"


def test_a_turn_that_nobody_cancelled_is_not_cancelled() -> None:
    events = [{"type": names.TURN_STARTED}, {"type": names.TURN_CANCELLED}]
    turn = {"id": "1", "state": "cancelled", "receipt": None, "error": None}
    assert only(check_turn({**turn, "cancel_requested": False}, events)).kind == "no reason"
    assert check_turn({**turn, "cancel_requested": True}, events) == []


@pytest.mark.parametrize("error", [None, {}, {"code": "x", "message": ""}])
def test_an_interrupted_turn_says_why(error: dict[str, str] | None) -> None:
    events = [{"type": names.TURN_STARTED}, {"type": names.TURN_INTERRUPTED}]
    turn = {"id": "1", "state": "interrupted", "receipt": None, "error": error}
    assert only(check_turn(turn, events)).kind == "no reason"
    turn["error"] = {"code": "x", "message": "why"}
    assert check_turn(turn, events) == []


async def test_a_changed_byte_in_the_store_is_found(fixed: Fixed) -> None:
    assert await fixed.files() == []
    await fixed.put("a.txt", b"alphA")
    found = only(await fixed.files())
    assert (found.kind, found.amount) == ("bytes lost", 5)
    assert "a.txt has other bytes" in found.what


async def test_what_is_written_after_the_turn_is_told_apart_from_what_is_lost(fixed: Fixed) -> None:
    an_hour_ago = "UPDATE turns SET ended_at = now() - interval '1 hour' WHERE id = $1"
    await fixed.conn.execute(an_hour_ago, fixed.turn_id)
    await fixed.put("a.txt", b"alpha and more")
    assert only(await fixed.files()).kind == "late write"


async def test_a_file_that_the_store_has_not_or_should_not_have_is_found(fixed: Fixed) -> None:
    await fixed.s3.delete_object(Bucket=BUCKET, Key=f"{fixed.session_id}/deep/b.txt")
    await fixed.put("extra", b"")
    told = sorted(violation.what for violation in await fixed.files())
    assert [words.split(": ")[1] for words in told] == [
        "deep/b.txt is not in the store",
        "extra is only in the store",
    ]


async def test_a_receipt_needs_its_manifest_and_no_other(fixed: Fixed) -> None:
    key = f"{fixed.session_id}/manifests/{fixed.turn_id}.json"
    body = await (await fixed.s3.get_object(Bucket=STATE_BUCKET, Key=key))["Body"].read()
    await fixed.s3.put_object(Bucket=STATE_BUCKET, Key=key, Body=body + b" ")
    assert "is not of its manifest" in only(await fixed.files()).what
    await fixed.s3.delete_object(Bucket=STATE_BUCKET, Key=key)
    assert "no manifest" in only(await fixed.files()).what


@pytest.mark.parametrize(
    ("expected", "wrong"),
    [
        (Expected({"a.txt": Holds("a.txt", b"other")}), "a.txt has other bytes"),
        (Expected({"new": Holds("new", b"")}), "was made and is not there"),
        (Expected({"a.txt": Absent("a.txt")}), "was deleted and is there"),
        (Expected({"link": Links("link", "b")}), "is another link, or none"),
        (Expected(lines={b"three"}), "lacks three"),
    ],
)
async def test_what_a_finished_tool_did_must_be_in_the_store(
    fixed: Fixed, expected: Expected, wrong: str
) -> None:
    assert wrong in only(await fixed.files(expected)).what


async def test_a_deleted_session_leaves_nothing(fixed: Fixed) -> None:
    assert only(await fixed.checker.empty(fixed.session_id)).kind == "leak"
    assert await fixed.checker.empty(str(uuid7())) == []


async def test_a_commit_that_git_does_not_have_is_lost(fixed: Fixed) -> None:
    key = f"{fixed.session_id}/{history_path(7)}"
    await fixed.s3.put_object(Bucket=BUCKET, Key=key, Body=b"second\nfirst\n")
    assert await fixed.checker.history(fixed.session_id, 7, {"first", "second"}) == []
    (lost,) = await fixed.checker.history(fixed.session_id, 7, {"first", "third"})
    assert (lost.kind, lost.amount) == ("bytes lost", 1)
    assert "third" in lost.what
