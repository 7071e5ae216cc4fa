"""Stacks to back up and to restore into: the api with a database and buckets of its own."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from uuid_utils.compat import uuid7

from api.backup.create import Report, create
from api.backup.session import OnObject, ignore_object
from api.settings import Settings
from tests.support import names
from tests.support.api import rows
from tests.support.api.fault_injector import FaultInjector, FaultyRun, numbered, planned
from tests.support.api.serving import Api, make_settings, serve_api, served
from tests.support.services import Postgres, SeaweedFS, until

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client

    from tests.support.api.database import NewDatabase

# What another stack must not take over: its sandboxes, and who carried its turns.
OF_THE_STACK = {"sandboxes", "leases", "migrations", "holds"}


def silent(_: str) -> None:
    """Nobody watches."""


@dataclass
class Stack:
    """The parts of a stack that a backup is of."""

    settings: Settings
    s3: S3Client

    async def rows(self) -> dict[str, list[str]]:
        """Every row of every table as text, by a client of its own."""
        async with rows.connect(self.settings) as conn:
            return {name: await rows.dump_rows(conn, name) for name in await rows.list_tables(conn)}

    async def objects(self) -> dict[tuple[str, str], tuple[str, dict[str, str]]]:
        """Every object's sha256 and metadata."""
        found = {}
        for bucket in ("s3_bucket", "s3_state_bucket"):
            name = getattr(self.settings, bucket)
            pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=name)
            keys = [item["Key"] async for page in pages for item in page.get("Contents", [])]
            for key in keys:
                answer = await self.s3.get_object(Bucket=name, Key=key)
                content = hashlib.sha256(await answer["Body"].read()).hexdigest()
                found[bucket, key] = (content, answer["Metadata"])
        return found

    async def put(self, key: str, data: bytes, *, state: bool = False, **more: Any) -> None:
        bucket = self.settings.s3_state_bucket if state else self.settings.s3_bucket
        await self.s3.put_object(Bucket=bucket, Key=key, Body=data, **more)


@contextlib.asynccontextmanager
async def buckets_of(s3: S3Client) -> AsyncIterator[dict[str, str]]:
    """Two buckets that go again: each takes volumes of the store, which has so many."""
    tag = uuid7().hex
    names = {"s3_bucket": f"files-{tag}", "s3_state_bucket": f"state-{tag}"}
    for name in names.values():
        await s3.create_bucket(Bucket=name)
    try:
        yield names
    finally:
        for name in names.values():
            pages = s3.get_paginator("list_objects_v2").paginate(Bucket=name)
            async for key in (
                item["Key"] async for page in pages for item in page.get("Contents", [])
            ):
                await s3.delete_object(Bucket=name, Key=key)
            await s3.delete_bucket(Bucket=name)


@pytest.fixture
async def busy(
    new_database: NewDatabase, store_service: SeaweedFS, s3: S3Client
) -> AsyncIterator[tuple[Api, Stack]]:
    """An api with a database and buckets of its own."""
    injector = FaultInjector()
    async with served(injector.app()) as sidecar_url, buckets_of(s3) as more:
        settings = make_settings(await new_database(), store_service, sidecar_url, **more)
        async with serve_api(settings, injector) as running:
            yield running, Stack(settings, s3)


@pytest.fixture
async def empty(
    postgres_server: Postgres, store_service: SeaweedFS, s3: S3Client
) -> AsyncIterator[Stack]:
    url = await rows.create_database(postgres_server)
    async with buckets_of(s3) as more:
        yield Stack(make_settings(url, store_service, "http://127.0.0.1:1", **more), s3)


async def turn_with_files(api: Api, stack: Stack, sid: UUID, files: dict[str, bytes]) -> UUID:
    """A turn whose receipt is of these files, which are in the store when it has ended."""
    documents: dict[UUID, bytes] = {}

    def plan(run: FaultyRun) -> None:
        entries = [
            {"path": path, "kind": "file", "sha256": hashlib.sha256(data).hexdigest()}
            for path, data in sorted(files.items())
        ]
        plain = {"v": 1, "turn_id": str(run.request.turn_id), "entries": entries}
        document = documents[run.request.turn_id] = json.dumps(plain).encode()
        receipt = {
            "engine": "weed",
            "files": len(files),
            "bytes": sum(map(len, files.values())),
            "manifest_sha256": hashlib.sha256(document).hexdigest(),
            "took": 0.1,
        }
        run.journal.extend(
            numbered(
                (names.SANDBOX_READY, {"provider": "local", "sandbox_id": "box-1", "took": 0.2}),
                ("message", {"role": "assistant", "text": "line\nbreak\ttab \\N \u0000 ü"}),
                ("receipt", receipt),
                (names.TURN_COMPLETED, {"stop_reason": "end_turn"}),
            )
        )

    with planned(api.injector, plan):
        turn = await api.start(sid, "go\\N\n")
        for path, data in files.items():
            await stack.put(f"{sid}/{path}", data)
        await until(lambda: turn.id in documents, "the run starts")
        await stack.put(f"{sid}/manifests/{turn.id}.json", documents[turn.id], state=True)
        assert (await api.ended(turn)).state == "completed"
    return turn.id


async def backed_up(
    stack: Stack, *, wait: float = 20.0, on_object: OnObject = ignore_object
) -> tuple[Report, io.BytesIO]:
    file = io.BytesIO()
    report = await create(stack.settings, file, wait=wait, say=silent, on_object=on_object)
    file.seek(0)
    return report, file


def endless(run: FaultyRun) -> None:
    run.say(names.SANDBOX_CREATING, provider="local")
