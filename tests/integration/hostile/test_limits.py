"""What one client, one session and one upload may use of the api."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from api.settings import Settings
from contracts.bodies import Session
from tests.support import names
from tests.support.api.database import NewDatabase
from tests.support.api.fault_injector import FaultInjector, FaultyRun, planned, short_run
from tests.support.api.serving import TOKEN, Api, assert_error, make_settings, serve_api, served
from tests.support.names import env_name
from tests.support.s3 import open_s3
from tests.support.services import SeaweedFS, until

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client

MEGABYTE = 1_000_000
# Longer than a reader may be kept from reading by a busy machine.
UNREAD = 3.0


@pytest.fixture(scope="module")
async def api(new_database: NewDatabase, store_service: SeaweedFS) -> AsyncIterator[Api]:
    """The api with small limits."""
    injector = FaultInjector()
    async with served(injector.app()) as sidecar_url:
        settings = make_settings(
            await new_database(),
            store_service,
            sidecar_url,
            body_bytes=100_000,
            prompt_chars=1000,
            upload_bytes=5000,
            zip_files=3,
            zip_bytes=5000,
            session_bytes=3000,
            session_files=4,
            followers=12,
            unread_seconds=UNREAD,
        )
        async with serve_api(settings, injector) as running:
            yield running


@pytest.fixture(scope="module")
async def s3(api: Api, store_service: SeaweedFS) -> AsyncIterator[S3Client]:
    async with open_s3(store_service) as client:
        yield client


async def put(api: Api, session: Session, path: str, size: int, status: int = 201) -> None:
    answer = await api.http.put(f"/sessions/{session.id}/files/{path}", content=b"x" * size)
    assert answer.status_code == status, answer.text


async def test_every_limit_of_a_request_names_its_setting(api: Api) -> None:
    session = await api.new_session()
    turns = f"/sessions/{session.id}/turns"
    long = await api.http.post(turns, json={"prompt": "x" * 1001})
    assert env_name(Settings, "prompt_chars") in assert_error(long, 413, "too_large")["message"]
    invoked = {"data": {"inputs": {"messages": [{"role": "user", "content": "x" * 1001}]}}}
    answer = await api.http.post("/invoke", json=invoked)
    assert env_name(Settings, "prompt_chars") in assert_error(answer, 413, "too_large")["message"]
    big = await api.http.post(turns, content=b"x" * 100_001)
    assert env_name(Settings, "body_bytes") in assert_error(big, 413, "too_large")["message"]
    file = await api.http.put(f"/sessions/{session.id}/files/a", content=b"x" * 5001)
    assert env_name(Settings, "upload_bytes") in assert_error(file, 413, "too_large")["message"]
    assert (await api.http.get(turns)).json()["turns"] == []


async def test_an_upload_over_the_quota_is_refused_until_files_are_deleted(api: Api) -> None:
    session = await api.new_session()
    await put(api, session, "a", 2000)
    answer = await api.http.put(f"/sessions/{session.id}/files/b", content=b"x" * 2000)
    error = assert_error(answer, 409, "over_quota")
    assert "4000 bytes" in error["message"]
    assert env_name(Settings, "session_bytes") in error["hint"]
    assert (await api.http.get(f"/sessions/{session.id}/files/b")).status_code == 404
    assert (await api.http.delete(f"/sessions/{session.id}/files/a")).status_code == 200
    await put(api, session, "b", 2000)


async def test_an_upload_of_too_many_files_is_refused(api: Api) -> None:
    session = await api.new_session()
    for name in "abcd":
        await put(api, session, name, 1)
    answer = await api.http.put(f"/sessions/{session.id}/files/e", content=b"x")
    assert env_name(Settings, "session_files") in assert_error(answer, 409, "over_quota")["hint"]


async def test_a_turn_over_the_quota_keeps_its_receipt_and_the_next_one_is_refused(
    api: Api, s3: S3Client
) -> None:
    session = await api.new_session()
    receipt = {"engine": "weed", "files": 1, "bytes": 4000, "manifest_sha256": "0" * 64}

    def leaves_too_much(run: FaultyRun) -> None:
        run.say("quota", files=1, bytes=4000, most_bytes=3000, message="too much")
        run.say("receipt", **receipt, took=0.1)
        run.say(names.TURN_COMPLETED)

    key = f"{session.id}/big"
    with planned(api.injector, leaves_too_much):
        turn = await api.ended(await api.start(session.id))
    await s3.put_object(Bucket="sessions", Key=key, Body=b"x" * 4000)
    assert turn.state == "completed"
    assert turn.receipt is not None
    assert turn.receipt.bytes == 4000
    assert [event["type"] for event in await api.events(session.id)][-3:] == [
        "quota",
        "receipt",
        names.TURN_COMPLETED,
    ]
    turns = f"/sessions/{session.id}/turns"
    refused = await api.http.post(turns, json={"prompt": "more"})
    error = assert_error(refused, 409, "over_quota")
    assert "4000 bytes" in error["message"]
    assert len((await api.http.get(turns)).json()["turns"]) == 1
    assert (await api.http.delete(f"/sessions/{session.id}/files/big")).status_code == 200
    assert (await api.ended(await api.start(session.id))).state == "completed"


async def test_a_folder_too_large_for_an_archive_is_refused_before_a_byte(
    api: Api, s3: S3Client
) -> None:
    session = await api.new_session()
    for name in ("many/a", "many/b", "many/c", "many/d", "few/a"):
        await s3.put_object(Bucket="sessions", Key=f"{session.id}/{name}", Body=b"x")
    await s3.put_object(Bucket="sessions", Key=f"{session.id}/big/a", Body=b"x" * 6000)
    route = f"/sessions/{session.id}/zip"
    many = await api.http.get(route, params={"path": "many"})
    assert env_name(Settings, "zip_files") in assert_error(many, 413, "too_large")["message"]
    big = await api.http.get(route, params={"path": "big"})
    assert env_name(Settings, "zip_bytes") in assert_error(big, 413, "too_large")["message"]
    assert (await api.http.get(route, params={"path": "few"})).status_code == 200


class Deaf:
    """A client that asks for a stream and never reads."""

    def __init__(self, api: Api, path: str, room: int = 4096) -> None:
        host, _, port = api.url.removeprefix("http://").partition(":")
        self.socket = socket.socket()
        # as little as the kernel allows, so that the rest stays with the server
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        self.socket.connect((host, int(port)))
        lines = [
            f"GET {path} HTTP/1.1",
            "Host: localhost",
            f"Authorization: Bearer {TOKEN}",
            "",
            "",
        ]
        self.socket.sendall("\r\n".join(lines).encode())

    def is_cut(self) -> bool:
        """Read to the end: an orderly end would have the last chunk of the body."""
        self.socket.settimeout(20)
        last = b""
        with contextlib.suppress(ConnectionResetError):
            while data := self.socket.recv(1 << 20):
                last = data
        return not last.endswith(b"0\r\n\r\n")


async def long_turn(api: Api, sid: UUID, events: int) -> FaultyRun:
    _, run = await api.start_run(sid, lambda run: None)
    for number in range(events):
        run.say("message", role="assistant", text=f"{number}:" + "x" * MEGABYTE)
    return run


@pytest.fixture
def dropped(caplog: pytest.LogCaptureFixture) -> Callable[[], int]:
    """How many clients were hung up on."""
    caplog.set_level(logging.INFO, "api.unread")
    return lambda: sum(record.name == "api.unread" for record in caplog.records)


async def test_a_follower_that_does_not_read_is_dropped_and_nobody_else_notices(
    api: Api, dropped: Callable[[], int]
) -> None:
    session = await api.new_session()
    run = await long_turn(api, session.id, 25)
    run.say(names.TURN_COMPLETED)
    await ended(api, run)
    path = f"/sessions/{session.id}/events"
    tracemalloc.start()
    try:
        deaf = [Deaf(api, f"{path}?follow=true") for _ in range(6)]
        # a turn of the same session runs to its end, and whoever listens hears it
        async with asyncio.timeout(60):
            turn = await api.ended(await api.start(session.id))
            heard = await api.events(session.id, after=turn.first_seq - 1)
        await until(lambda: dropped() == len(deaf), "all are hung up on", 60)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert turn.state == "completed"
    assert heard[-1]["type"] == names.TURN_COMPLETED
    # all of it for each of them would be 150
    assert peak < 75 * MEGABYTE
    cut = await asyncio.gather(*(asyncio.to_thread(each.is_cut) for each in deaf))
    for each in deaf:
        each.socket.close()
    assert all(cut)


async def ended(api: Api, run: FaultyRun) -> None:
    turn = f"/sessions/{run.request.session_id}/turns/{run.request.turn_id}"
    async with asyncio.timeout(60):
        while (await api.http.get(turn)).json()["state"] == "running":
            await asyncio.sleep(0.05)


async def test_a_client_that_reads_slowly_is_not_dropped(
    api: Api, dropped: Callable[[], int]
) -> None:
    """Slower than the bound for the whole, but never silent for as long as that."""
    session = await api.new_session()
    run = await long_turn(api, session.id, 10)
    run.say(names.TURN_COMPLETED)
    await ended(api, run)
    slow = Deaf(api, f"/sessions/{session.id}/events", 1 << 16)
    read = 0
    slow.socket.settimeout(20)
    while read <= 10 * MEGABYTE:
        got = await asyncio.to_thread(slow.socket.recv, 1 << 18)
        assert got, f"cut off after {read} bytes"
        read += len(got)
        await asyncio.sleep(UNREAD / 50)
    slow.socket.close()
    assert dropped() == 0


async def test_a_file_that_is_not_read_is_dropped_too(
    api: Api, s3: S3Client, dropped: Callable[[], int]
) -> None:
    session = await api.new_session()
    key = f"{session.id}/large"
    await s3.put_object(Bucket="sessions", Key=key, Body=bytes(40 * MEGABYTE))
    deaf = Deaf(api, f"/sessions/{session.id}/files/large")
    await until(lambda: dropped() == 1, "it is hung up on", 30)
    read = 0
    deaf.socket.settimeout(20)
    with contextlib.suppress(ConnectionResetError):
        while data := await asyncio.to_thread(deaf.socket.recv, 1 << 20):
            read += len(data)
    deaf.socket.close()
    assert read < 40 * MEGABYTE


async def test_more_followers_than_there_may_be_are_refused_until_one_leaves(api: Api) -> None:
    session = await api.new_session()
    path, params = f"/sessions/{session.id}/events", {"follow": "true"}
    async with contextlib.AsyncExitStack() as stack:
        streams = []
        for _ in range(12):
            one = await stack.enter_async_context(contextlib.AsyncExitStack())
            await one.enter_async_context(api.http.stream("GET", path, params=params))
            streams.append(one)
        refused = await api.http.get(path, params=params)
        error = assert_error(refused, 429, "too_many_followers")
        assert env_name(Settings, "followers") in error["hint"]
        assert error["retryable"]
        # what is only read, and everything else, goes on
        assert (await api.http.get(path)).status_code == 200
        await streams[0].aclose()

        async def place_again() -> bool:
            async with api.http.stream("GET", path, params=params) as again:
                return again.status_code == 200

        async with asyncio.timeout(20):
            while not await place_again():
                await asyncio.sleep(0.05)


async def test_a_short_run_goes_through_with_all_of_this(api: Api) -> None:
    session = await api.new_session()
    with planned(api.injector, lambda run: run.journal.extend(short_run())):
        assert (await api.ended(await api.start(session.id))).state == "completed"
