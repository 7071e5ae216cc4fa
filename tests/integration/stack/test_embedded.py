"""PostgreSQL, SeaweedFS and the gateway under the real supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import aioboto3
import asyncpg
import pytest
from botocore.exceptions import ClientError

from stack.embedded.control import mounts_under
from stack.embedded.part import PartState
from stack.embedded.postgres import database_url
from stack.embedded.stack import ALL_PARTS
from tests.support.paths import ROOT
from tests.support.stack.parts import exists
from tests.support.stack.running import Place, place, processes_of, wait

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client

STORES = ("postgres", "seaweedfs")

pytestmark = [pytest.mark.stack, pytest.mark.usefixtures("harness_dir")]


@contextlib.asynccontextmanager
async def s3(stack: Place, **other: str) -> AsyncIterator[S3Client]:
    store = json.loads((stack.data / "store.json").read_text()) | other
    async with aioboto3.Session().client(
        "s3",
        endpoint_url=store["endpoint"],
        aws_access_key_id=store["access_key"],
        aws_secret_access_key=store["secret_key"],
        region_name="us-east-1",
    ) as client:
        yield client


async def write_something(stack: Place, text: str) -> None:
    connection = await asyncpg.connect(database_url(stack.layout))
    await connection.execute("CREATE TABLE notes (note text)")
    await connection.execute("INSERT INTO notes VALUES ($1)", text)
    await connection.close()
    async with s3(stack) as client:
        await client.put_object(Bucket="sessions", Key="note", Body=text.encode())


async def read_something(stack: Place) -> tuple[str, str]:
    connection = await asyncpg.connect(database_url(stack.layout))
    row = await connection.fetchval("SELECT note FROM notes")
    await connection.close()
    async with s3(stack) as client:
        answer = await client.get_object(Bucket="sessions", Key="note")
        return row, (await answer["Body"].read()).decode()


def part_pids(stack: Place) -> dict[str, int]:
    state = stack.state
    assert state is not None
    return {part.name: part.pid for part in state.parts if part.pid is not None}


async def test_two_stacks_run_side_by_side_and_keep_what_they_were_given(stack_dir: Path) -> None:
    one, two = place(stack_dir / "one"), place(stack_dir / "two")
    for stack in (one, two):
        stack.home.mkdir()
    with one.running(*STORES), two.running(*STORES):
        for stack in (one, two):
            await write_something(stack, stack.home.name)
        for stack in (one, two):
            assert await read_something(stack) == (stack.home.name, stack.home.name)
        theirs = json.loads((two.data / "store.json").read_text())
        async with s3(one, access_key=theirs["access_key"]) as stranger:
            with pytest.raises(ClientError, match=r"InvalidAccessKeyId|AccessDenied"):
                await stranger.list_buckets()
        async with s3(one) as client:
            names = {item["Name"] for item in (await client.list_buckets())["Buckets"]}
        assert names == {"sessions", "state"}
    for stack in (one, two):
        assert processes_of(stack) == []
        assert mounts_under(stack.home) == []
        assert not stack.layout.run.exists()
    with one.running(*STORES):
        assert await read_something(one) == ("one", "one")


@pytest.mark.xdist_group("running-stack")
def test_no_secret_is_in_an_argument_a_log_or_a_file_that_others_can_read(
    running_stack: Place,
) -> None:
    stack = running_stack
    secrets = {(stack.data / "token").read_text().strip()}
    for name in ("sidecar", "gateway"):
        secrets.add((stack.data / "secrets" / name).read_text().strip())
    keys = json.loads((stack.data / "secrets" / "s3.json").read_text())
    secrets |= {keys["access_key"], keys["secret_key"]}
    lines = processes_of(stack)
    assert len(lines) >= len(ALL_PARTS)
    assert not [line for line in lines for secret in secrets if secret in line]
    holders = {path for path in stack.data.rglob("*") if _holds(path, secrets)}
    assert {path.relative_to(stack.data).as_posix() for path in holders} == {
        "token",
        "store.json",
        "secrets/sidecar",
        "secrets/gateway",
        "secrets/s3.json",
        "secrets/seaweedfs.json",
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in holders} == {0o600}


def _holds(path: Path, secrets: set[str]) -> bool:
    if not path.is_file():
        return False
    content = path.read_bytes()
    return any(secret.encode() in content for secret in secrets)


async def test_stores_that_are_killed_come_back_with_their_data(stack_dir: Path) -> None:
    stack = place(stack_dir)
    with stack.running(*STORES) as supervisor:
        await write_something(stack, "kept")
        before = part_pids(stack)
        for pid in before.values():
            os.kill(pid, signal.SIGKILL)
        wait(lambda: before.keys() == part_pids(stack).keys() and not _shared(before, stack), 30)
        wait(lambda: all(part.state == "ready" for part in _parts(stack)), 60)
        assert await read_something(stack) == ("kept", "kept")
        assert supervisor.poll() is None
    assert processes_of(stack) == []


def _parts(stack: Place) -> list[PartState]:
    state = stack.state
    return state.parts if state is not None else []


def _shared(before: dict[str, int], stack: Place) -> bool:
    return bool(set(before.values()) & set(part_pids(stack).values()))


async def test_after_the_supervisor_was_killed_the_next_start_is_clean(stack_dir: Path) -> None:
    stack = place(stack_dir)
    with stack.running(*STORES) as first:
        await write_something(stack, "kept")
        before = part_pids(stack)
        first.kill()
        first.wait(10)
        with stack.running(*STORES):
            assert not any(map(exists, before.values()))
            assert await read_something(stack) == ("kept", "kept")
    assert processes_of(stack) == []


@pytest.mark.xdist_group("running-stack")
def test_a_second_supervisor_of_the_same_data_is_refused(running_stack: Place) -> None:
    before = part_pids(running_stack)
    answer = subprocess.run(
        (sys.executable, "-m", "stack.embedded"),
        cwd=ROOT,
        env=running_stack.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.returncode == 1
    assert "another holdfast command is at work" in answer.stderr
    assert part_pids(running_stack) == before
    assert all(map(exists, before.values()))


@pytest.mark.xdist_group("running-stack")
def test_the_data_of_a_running_stack_is_not_removed(running_stack: Place) -> None:
    answer = running_stack.command("clean-data", "--yes")
    assert answer.returncode == 1
    assert "the stack is running" in answer.stderr
    assert all(map(exists, part_pids(running_stack).values()))
    assert (running_stack.data / "postgres").is_dir()
