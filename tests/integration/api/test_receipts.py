"""Receipts: stored with the end of their turn, told when there is none, and their manifests."""

from __future__ import annotations

import asyncio
import hashlib
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from uuid_utils.compat import uuid7

from api.lines import HELD_LINES, Holding, Numbered
from contracts.bodies import Session, Turn
from contracts.events import Message, Receipt, ReceiptFailed, TurnCompleted
from tests.support import names
from tests.support.api.database import NewDatabase
from tests.support.api.fault_injector import (
    FaultInjector,
    FaultyRun,
    event_line,
    numbered,
    planned,
    short_run,
)
from tests.support.api.serving import Api, assert_error, make_settings, serve_api, served
from tests.support.services import SeaweedFS, until

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client

RECEIPT = {
    **{"engine": "checkpoint", "files": 1, "bytes": 5, "manifest_sha256": "0" * 64, "took": 0.1},
    **{"window": 15.0, "lost": "the last of it"},
}
FAILED = {
    "engine": "geesefs",
    "reason": "2 files are not in the store",
    "files": {"a.txt": "its content differs", "b\\xff": "its name is not UTF-8"},
}
ERROR = {"code": "harness_exited", "message": "it died", "hint": ""}
ENDS: list[tuple[str, dict[str, Any]]] = [
    (names.TURN_COMPLETED, {}),
    (names.TURN_FAILED, {"error": ERROR}),
    (names.TURN_CANCELLED, {"reason": "asked"}),
    (names.TURN_INTERRUPTED, {"error": ERROR}),
]


def _play(lines: list[bytes], run: FaultyRun) -> None:
    run.journal.extend(lines)


async def run_of(api: Api, *events: tuple[str, dict[str, Any]]) -> tuple[Session, Turn]:
    session = await api.new_session()
    with planned(api.injector, lambda run: run.journal.extend(numbered(*events))):
        turn = await api.ended(await api.start(session.id))
    shown = (await api.http.get(f"/sessions/{session.id}")).content
    return Session.model_validate_json(shown), turn


@pytest.mark.parametrize("end", ENDS, ids=lambda end: str(end[0]))
async def test_every_end_has_its_receipt_with_its_place(
    api: Api, end: tuple[str, dict[str, Any]]
) -> None:
    destroyed = (names.SANDBOX_DESTROYED, {"provider": "local", "sandbox_id": "b", "proof": "gone"})
    session, turn = await run_of(api, ("receipt", RECEIPT), destroyed, end)
    assert turn.state == end[0].removeprefix("turn.")
    assert turn.receipt is not None
    (event,) = [each for each in await api.events(session.id) if each["type"] == "receipt"]
    assert turn.receipt.model_dump() == {**RECEIPT, "seq": event["seq"]}
    assert (turn.not_durable, session.durable) == (None, True)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: str(end[0]))
async def test_what_is_not_durable_is_told_whatever_the_end_is(
    api: Api, end: tuple[str, dict[str, Any]]
) -> None:
    session, turn = await run_of(api, (names.RECEIPT_FAILED, FAILED), end)
    assert turn.receipt is None
    assert turn.not_durable is not None
    assert turn.not_durable.model_dump() == FAILED
    assert session.durable is False
    listed = (await api.http.get(f"/sessions/{session.id}/turns")).json()["turns"]
    assert listed[0]["not_durable"] == FAILED


async def test_the_last_word_about_durability_counts(api: Api) -> None:
    _, turn = await run_of(api, ("receipt", RECEIPT), (names.RECEIPT_FAILED, FAILED), ENDS[0])
    assert (turn.receipt, turn.not_durable is not None) == (None, True)
    _, turn = await run_of(api, (names.RECEIPT_FAILED, FAILED), ("receipt", RECEIPT), ENDS[0])
    assert (turn.receipt is not None, turn.not_durable) == (True, None)


async def test_a_session_is_durable_by_its_last_ended_turn(api: Api) -> None:
    session = await api.new_session()
    assert session.durable is None

    async def durable() -> bool | None:
        shown = (await api.http.get("/sessions", params={"limit": 200})).json()["sessions"]
        (found,) = [each for each in shown if each["id"] == str(session.id)]
        value: bool | None = found["durable"]
        return value

    for lines, expected in ((numbered(ENDS[0]), False), (short_run(), True)):
        with planned(api.injector, partial(_play, lines)):
            await api.ended(await api.start(session.id))
        assert await durable() is expected
    running, _ = await api.start_run(
        session.id, lambda run: run.say(names.SANDBOX_CREATING, provider="local")
    )
    assert await durable() is True
    await api.http.post(f"/sessions/{session.id}/turns/{running.id}/cancel")
    await api.ended(running)


async def test_a_receipt_is_seen_with_the_end_of_its_turn_or_not_at_all(
    new_database: NewDatabase, store_service: SeaweedFS
) -> None:
    """The stream stands still between the two; then the api ends, and another one goes on."""
    injector, url = FaultInjector(), await new_database()
    injector.plan = lambda run: run.journal.extend(short_run()[:5])
    async with served(injector.app()) as sidecar_url:
        settings = make_settings(url, store_service, sidecar_url)
        async with serve_api(settings, injector) as api:
            session = await api.new_session()
            turn = await api.start(session.id)
            await until(lambda: turn.id in injector.runs, "the run starts")
            run = injector.runs[turn.id]
            run.say(names.STATE_CAPTURED, harness="claude", bytes=1, took=0.1)
            await until(lambda: run.sent == 6, "all of it was sent")
            async with asyncio.timeout(10):
                while len(await api.events(session.id)) < 6:
                    await asyncio.sleep(0.01)
            assert [each["type"] for each in await api.events(session.id)][-1] == "usage"
            assert (await api.turn(turn)).receipt is None
        async with serve_api(settings, injector) as api:
            await until(lambda: run.connections == [0, 4], "the receipt is read again")
            run.say(names.TURN_COMPLETED)
            ended = await api.ended(turn)
            kinds = [each["type"] for each in await api.events(session.id)]
    assert ended.receipt is not None
    assert kinds[-3:] == ["receipt", names.STATE_CAPTURED, names.TURN_COMPLETED]
    assert kinds.count("receipt") == 1


async def test_a_receipt_with_much_behind_it_is_stored_at_once_and_seen_with_the_end(
    api: Api,
) -> None:
    """So many lines are not held back: they are in the transcript before the turn's end is."""
    session = await api.new_session()
    many = [("message", {"role": "assistant", "text": "x"})] * (HELD_LINES + 10)
    turn, run = await api.start_run(
        session.id, lambda run: run.journal.extend(numbered(("receipt", RECEIPT), *many))
    )
    async with asyncio.timeout(30):
        while "receipt" not in {each["type"] for each in await api.events(session.id)}:
            await asyncio.sleep(0.05)
    path = f"/sessions/{session.id}"
    assert (await api.turn(turn)).receipt is None
    (listed,) = (await api.http.get(f"{path}/turns")).json()["turns"]
    assert (listed["state"], listed["receipt"]) == ("running", None)
    assert (await api.http.get(path)).json()["durable"] is not True
    run.say(names.TURN_COMPLETED)
    assert (await api.ended(turn)).receipt is not None
    (listed,) = (await api.http.get(f"{path}/turns")).json()["turns"]
    assert listed["receipt"]["files"] == 1


async def test_a_run_that_ends_without_saying_how_keeps_its_receipt(api: Api) -> None:
    session = await api.new_session()

    def plan(run: FaultyRun) -> None:
        run.journal.extend(numbered(("receipt", RECEIPT)))
        run.journal.append(event_line(2, names.TURN_FAILED))  # an end that nobody understands

    with planned(api.injector, plan):
        turn = await api.ended(await api.start(session.id))
    kinds = [each["type"] for each in await api.events(session.id)]
    assert kinds[2:] == ["receipt", "raw", names.TURN_INTERRUPTED]
    assert (turn.state, turn.receipt is not None) == ("interrupted", True)


def test_lines_are_held_from_the_receipt_to_the_end() -> None:
    said = Numbered(1, Message(role="assistant", text="x"))
    proof = Numbered(2, Receipt(**RECEIPT))
    denial = Numbered(2, ReceiptFailed(**FAILED))
    after, end = Numbered(3, Message(role="assistant", text="y")), Numbered(4, TurnCompleted())
    for verdict in (proof, denial):
        holding = Holding()
        assert holding.take([said]) == [said]
        assert holding.take([said, verdict]) == [said]
        assert holding.take([after]) == []
        assert holding.take([end]) == [verdict, after, end]
        assert holding.held == []
    assert Holding().take([said, proof, after, end]) == [said, proof, after, end]


async def test_the_manifest_of_a_turn_is_served_as_it_is_stored(api: Api, s3: S3Client) -> None:
    session, turn = await run_of(api, ("receipt", RECEIPT), ENDS[0])
    path = f"/sessions/{session.id}/turns/{turn.id}/manifest"
    missing = assert_error(await api.http.get(path), 404, "not_found")
    assert "receipt" in missing["hint"]
    content = json.dumps({"v": 1, "entries": [{"path": "ü"}]}, indent=1).encode()
    bucket = api.settings.s3_state_bucket
    for key in (f"{session.id}/manifests/{turn.id}.json", f"{session.id}/native/x.tar"):
        await s3.put_object(Bucket=bucket, Key=key, Body=content)
    neighbour = f"{session.id}0/manifests/x.json"
    await s3.put_object(Bucket=bucket, Key=neighbour, Body=b"{}")
    answer = await api.http.get(path)
    assert answer.status_code == 200
    assert hashlib.sha256(answer.content).digest() == hashlib.sha256(content).digest()
    assert answer.headers["content-type"] == "application/json"
    deleted = (await api.http.delete(f"/sessions/{session.id}")).json()
    assert (deleted["state_objects"], deleted["objects"]) == (2, 0)
    left = await s3.list_objects_v2(Bucket=bucket, Prefix=str(session.id))
    assert [each["Key"] for each in left["Contents"]] == [neighbour]
    other = await api.new_session()
    unknown = await api.http.get(f"/sessions/{other.id}/turns/{uuid7()}/manifest")
    assert_error(unknown, 404, "turn_not_found")
