"""A backup of a stack at work, brought back into an empty one, and looked at by somebody else: the
checks here use a PostgreSQL and an S3 client of their own, and nothing of the backup's code."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import aioboto3
import asyncpg
import pytest

from client import Holdfast
from contracts.bodies import Session
from tests.e2e.conftest import of_type, output, run
from tests.support.light_agent.tree import LIGHT
from tests.support.ports import free_port
from tests.support.running_stack import RunningStack, running_stack
from tests.support.services import short_directory

pytestmark = [pytest.mark.stack, pytest.mark.harness]

LANES = 2
ENDED = ("completed", "failed", "cancelled", "interrupted")


@dataclass(frozen=True)
class Kept:
    """What is kept of every session, as other programs see it."""

    sessions: dict[UUID, dict[str, Any]]
    turns: dict[UUID, dict[str, Any]]
    events: dict[UUID, list[tuple[Any, ...]]]
    files: dict[str, str]
    state: dict[str, str]


async def kept(data_dir: Path, run_dir: Path) -> Kept:
    """Read a stack's database and buckets."""
    conn = await asyncpg.connect(f"postgresql://postgres@/holdfast?host={run_dir}/postgres")
    try:
        async with conn.transaction(isolation="repeatable_read", readonly=True):
            sessions = {row["id"]: dict(row) for row in await conn.fetch("SELECT * FROM sessions")}
            turns = {row["id"]: dict(row) for row in await conn.fetch("SELECT * FROM turns")}
            events: dict[UUID, list[tuple[Any, ...]]] = {sid: [] for sid in sessions}
            for row in await conn.fetch("SELECT * FROM events ORDER BY session_id, seq"):
                events[row["session_id"]].append(tuple(row))
    finally:
        await conn.close()
    access = json.loads((data_dir / "store.json").read_text())
    async with aioboto3.Session().client(
        "s3",
        endpoint_url=access["endpoint"],
        aws_access_key_id=access["access_key"],
        aws_secret_access_key=access["secret_key"],
        region_name="us-east-1",
    ) as s3:
        files = await hashes(s3, access["bucket"])
        state = await hashes(s3, "state")
    return Kept(sessions, turns, events, files, state)


async def hashes(s3: Any, bucket: str) -> dict[str, str]:
    """Every object's sha256."""
    found = {}
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    keys = [item["Key"] async for page in pages for item in page.get("Contents", [])]
    for key in keys:
        if not key.endswith("/"):
            answer = await s3.get_object(Bucket=bucket, Key=key)
            found[key] = hashlib.sha256(await answer["Body"].read()).hexdigest()
    return found


async def manifest_of(data_dir: Path, session_id: UUID, turn_id: UUID) -> bytes:
    access = json.loads((data_dir / "store.json").read_text())
    async with aioboto3.Session().client(
        "s3",
        endpoint_url=access["endpoint"],
        aws_access_key_id=access["access_key"],
        aws_secret_access_key=access["secret_key"],
        region_name="us-east-1",
    ) as s3:
        key = f"{session_id}/manifests/{turn_id}.json"
        answer = await s3.get_object(Bucket="state", Key=key)
        return bytes(await answer["Body"].read())


class Lane:
    """A user who sends one turn after the other, each of which changes the files of all before."""

    def __init__(self, hf: Holdfast, session: Session) -> None:
        self._hf = hf
        self.session = session
        self.turns = 0

    async def work(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self.turns += 1
            prompt = (
                f"run: echo turn {self.turns} > same.txt; echo {self.turns} >> log.txt;"
                f" head -c {self.turns * 1000} /dev/urandom > random; ln -sf same.txt link"
            )
            events = await run(self._hf, self.session, prompt)
            assert events[-1].type == "turn.completed", events[-1]


@contextlib.asynccontextmanager
async def at_work(hf: Holdfast) -> AsyncIterator[list[Lane]]:
    """Turns run one after the other for the time of the block."""
    stop = asyncio.Event()
    lanes = [Lane(hf, await hf.sessions.create(**LIGHT)) for _ in range(LANES)]
    async with asyncio.TaskGroup() as group:
        for lane in lanes:
            group.create_task(lane.work(stop))
        try:
            async with asyncio.timeout(120):
                while any(lane.turns < 2 for lane in lanes):
                    await asyncio.sleep(0.05)
            yield lanes
        finally:
            stop.set()


async def backup_at_work(hf: Holdfast, stack: RunningStack, file: Path) -> list[Lane]:
    """Taken while turns run: some end, begin and wait meanwhile."""
    async with at_work(hf) as lanes:
        before = [lane.turns for lane in lanes]
        said = await stack.command("backup", str(file), "--json")
        report = json.loads(said.splitlines()[-1])
        async with asyncio.timeout(120):
            # the hold is gone: every lane goes on
            while any(now.turns <= then + 1 for now, then in zip(lanes, before, strict=True)):
                await asyncio.sleep(0.05)
    assert report["mid_turn"] == []
    assert report["damaged"] == {}
    assert report["changed"] == {}
    return lanes


@pytest.mark.timeout(600)
async def test_a_busy_stack_comes_back_whole_in_an_empty_one(
    fuse: None, light_settings: dict[str, str]
) -> None:
    with short_directory() as home:
        settings = {**light_settings, "HOLDFAST_RUN_DIR": str(home / "run")}
        file = home / "backup.tar"
        async with running_stack(home / "data", settings) as stack:
            async with Holdfast(stack.url, stack.token) as hf:
                talk = await hf.sessions.create(**LIGHT, title="conversation")
                prompt = (
                    "remember the colour teal\nrun: mkdir -p bin empty; echo '#!/bin/sh' > bin/x"
                )
                await run(hf, talk, f"{prompt}; chmod +x bin/x; ln -s bin/x link")
                await hf.sessions.create(**LIGHT, title="never used")
                await backup_at_work(hf, stack, file)
            original = await kept(stack.data_dir, stack.layout.run)
        assert [path.name for path in home.glob("backup.tar*")] == ["backup.tar"]
        other = RunningStack(
            home / "other",
            {
                **stack.env,
                "HOLDFAST_DATA_DIR": str(home / "other"),
                "HOLDFAST_RUN_DIR": str(home / "orun"),
                "HOLDFAST_API_PORT": str(free_port()),
            },
        )
        await restored_is_equal(other, file, original)
        await the_conversation_goes_on(other, talk)


async def restored_is_equal(other: RunningStack, file: Path, original: Kept) -> None:
    assert "sessions" in await other.command("restore", "--check", str(file))
    await other.command("restore", str(file))
    # nothing but the two storage parts has run there yet
    async with storage(other):
        found = await kept(other.data_dir, other.layout.run)
        assert found.sessions.keys() == original.sessions.keys()
        for sid, events in found.events.items():
            # the original went on after it was copied; up to there it is the same, row for row
            assert events == original.events[sid][: len(events)]
            assert found.sessions[sid]["last_seq"] == len(events)
        compare_turns(found, original)
        await compare_receipts(other, found)
    again = await other.command("restore", str(file), check=False)
    assert "There are rows in" in again


def compare_turns(found: Kept, original: Kept) -> None:
    for turn_id, turn in found.turns.items():
        assert turn["state"] in (*ENDED, "queued"), "no turn was cut in two"
        if turn["state"] != "queued":
            assert turn == original.turns[turn_id], "with its receipt, byte for byte"


async def compare_receipts(other: RunningStack, found: Kept) -> None:
    """Every receipt's manifest is there as it was; the newest one's files are, byte for byte."""
    files = receipts = 0
    for sid in found.sessions:
        proven = [
            turn
            for turn in sorted(found.turns.values(), key=lambda each: each["epoch"] or 0)
            if turn["session_id"] == sid and turn["receipt"] is not None
        ]
        for turn in proven:
            receipts += 1
            wanted = json.loads(turn["receipt"])["manifest_sha256"]
            assert found.state[f"{sid}/manifests/{turn['id']}.json"] == wanted
        if proven:
            manifest = json.loads(await manifest_of(other.data_dir, sid, proven[-1]["id"]))
            listed = {
                f"{sid}/{entry['path']}": entry["sha256"]
                for entry in manifest["entries"]
                if entry["kind"] == "file"
            }
            files += len(listed)
            assert listed.items() <= found.files.items()
    assert receipts >= 2 * LANES + 1
    assert files >= 3 * LANES + 1


@contextlib.asynccontextmanager
async def storage(stack: RunningStack) -> AsyncIterator[None]:
    """PostgreSQL and SeaweedFS of a stack, alone."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "stack.embedded", "postgres", "seaweedfs", env=stack.env
    )
    try:
        async with asyncio.timeout(60):
            while stack.phase != "ready":
                assert process.returncode is None, "it has ended"
                await asyncio.sleep(0.05)
        yield
    finally:
        process.terminate()
        await process.wait()


async def the_conversation_goes_on(other: RunningStack, talk: Session) -> None:
    async with (
        running_stack(other.data_dir, other.env) as stack,
        Holdfast(stack.url, stack.token) as hf,
    ):
        events = await run(hf, talk, "recall\nrun: ls -l link bin/x; test -d empty && echo empty")
        (resume,) = of_type(events, "resume")
        said = "".join(m.text for m in of_type(events, "message") if m.role == "assistant")
        assert resume.rung == "native"
        assert "remember the colour teal" in said
        assert "link -> bin/x" in output(events)
        assert "-rwx" in output(events)
        assert "\nempty" in output(events)
        assert events[-1].type == "turn.completed"
        assert (await hf.leaks()).leaks == []
