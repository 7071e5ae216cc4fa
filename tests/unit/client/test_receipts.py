"""Receipts, the queue and leaks, as the client and the user commands show them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from typer.testing import Result

from client import Difference, Holdfast
from client.sessions import never_ran
from contracts import bodies, errors, events
from tests.support.client.commands import GOOD, RECEIPT
from tests.support.client.wire_server import FakeApi, parse_lines

WAIT_SECONDS = 20
FAILED = events.ReceiptFailed(
    engine="geesefs",
    reason="2 files differ \x1b[2J",
    files={"a.txt": "its content differs", "b[red].txt": "not in the store"},
)


def entry(path: str, content: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    return {"path": path, "kind": "file", "size": len(content), "sha256": digest, "mode": 420}


def with_receipt(api: FakeApi, files: dict[str, bytes]) -> bodies.Turn:
    """A turn that ended, its files in the store, its manifest beside them."""
    session = api.add_session()
    turn = api.start_turn(session.id, bodies.TurnCreate(prompt="go"))
    document = {
        "v": 1,
        "session_id": str(session.id),
        "turn_id": str(turn.id),
        "epoch": 1,
        "engine": "weed",
        "entries": [
            {"path": "empty", "kind": "directory", "mode": 493},
            {"path": "link", "kind": "symlink", "target": "a.txt"},
            *(entry(path, content) for path, content in files.items()),
        ],
    }
    content = json.dumps(document).encode()
    receipt = bodies.ReceiptBody(
        engine="weed",
        files=len(files),
        bytes=sum(map(len, files.values())),
        manifest_sha256=hashlib.sha256(content).hexdigest(),
        took=0.1,
        seq=3,
    )
    ended = {"state": "completed", "ended_at": datetime.now(UTC), "receipt": receipt}
    api.turns[turn.id] = turn.model_copy(update=ended)
    api.manifests[turn.id] = content
    api.files = dict(files)
    return api.turns[turn.id]


FILES = {"a.txt": b"hello", "src/ü.bin": bytes(range(256)) * 9000, "empty.txt": b""}


async def test_a_receipt_is_verified_file_by_file(api: FakeApi, hf: Holdfast) -> None:
    turn = with_receipt(api, FILES)
    stored = await hf.turns.manifest(turn.session_id, turn.id)
    assert turn.receipt is not None
    assert stored.sha256 == turn.receipt.manifest_sha256
    assert [each.kind for each in stored.manifest.entries][:2] == ["directory", "symlink"]
    assert [each async for each in hf.verify(turn)] == []
    api.files["a.txt"] = b"hellO"
    api.files["empty.txt"] = b"x"
    del api.files["src/ü.bin"]
    assert [each async for each in hf.verify(turn)] == [
        Difference("a.txt", "its content differs"),
        Difference("src/ü.bin", "it cannot be read: no file src/ü.bin"),
        Difference("empty.txt", "1 bytes, the manifest says 0"),
    ]


async def test_another_manifest_than_the_receipts_is_told(api: FakeApi, hf: Holdfast) -> None:
    turn = with_receipt(api, FILES)
    other = with_receipt(api, FILES)
    api.manifests[turn.id] = api.manifests[other.id]
    problems = [each.problem async for each in hf.verify(turn)]
    assert problems == [
        "the manifest is not the one that the receipt names",
        "the manifest is another turn's",
    ]
    del api.manifests[turn.id]
    with pytest.raises(errors.NotFound):
        await hf.turns.manifest(turn.session_id, turn.id)
    api.manifests[turn.id] = b"{}"
    with pytest.raises(errors.HoldfastError, match="no manifest that we know"):
        await hf.turns.manifest(turn.session_id, turn.id)


async def test_an_outage_is_no_difference(api: FakeApi, hf: Holdfast) -> None:
    turn = with_receipt(api, FILES)
    api.answers[f"/sessions/{turn.session_id}/files/a.txt"] = errors.StoreUnavailable("away")
    with pytest.raises(errors.StoreUnavailable):
        _ = [each async for each in hf.verify(turn)]


def test_receipt_prints_and_verifies(api: FakeApi, invoke: Callable[..., Result]) -> None:
    turn = with_receipt(api, FILES)
    shown = invoke("receipt", "last")
    assert shown.exit_code == 0
    assert "✓ receipt: 3 files" in shown.stdout
    assert api.asked("/files/") == []
    good = invoke("receipt", "last", str(turn.id)[:8], "--verify")
    assert (good.exit_code, "every file is in the store" in good.stdout) == (0, True)
    api.files["a.txt"] = b"hellO"
    bad = invoke("receipt", "last", "--verify")
    assert bad.exit_code == 1
    assert "✗ a.txt: its content differs\n1 difference to the store" in bad.stdout
    (told,) = parse_lines(invoke("receipt", "last", "--verify", "--json").stdout)
    assert told["differs"] == {"a.txt": "its content differs"}
    assert told["receipt"]["seq"] == 3
    missing = invoke("receipt", "last", "ffff")
    assert (missing.exit_code, "no turn starts with" in missing.stderr) == (1, True)


def test_what_is_not_durable_is_told_in_words_with_its_files(
    api: FakeApi, invoke: Callable[..., Result]
) -> None:
    api.script = [FAILED, events.TurnCompleted()]
    result = invoke("run", "go")
    assert result.exit_code == 1
    expected = (
        "✗ not durable (geesefs): 2 files differ\n"
        "    a.txt: its content differs\n"
        "    b[red].txt: not in the store\n"
    )
    assert expected in result.stdout
    assert "no receipt" not in result.stdout
    (turn,) = api.turns.values()
    why = bodies.NotDurableBody(engine="geesefs", reason=FAILED.reason, files=FAILED.files)
    ended = {"state": "completed", "ended_at": datetime.now(UTC), "not_durable": why}
    api.turns[turn.id] = turn.model_copy(update=ended)
    listed = invoke("turns", "last")
    assert "✗ not durable (geesefs): 2 files differ" in listed.stdout
    assert "a.txt: its content differs" in listed.stdout
    shown = invoke("receipt", "last")
    assert (shown.exit_code, expected in shown.stdout) == (1, True)


def test_receipts_of_turns_that_did_not_complete_are_shown(
    api: FakeApi, invoke: Callable[..., Result]
) -> None:
    error = events.ErrorInfo(code="x", message="it broke")
    for end in (events.TurnFailed(error=error), events.TurnInterrupted(error=error)):
        api.script = [RECEIPT, end]
        result = invoke("run", "go")
        assert result.exit_code == 1
        assert "✓ receipt: 2 files" in result.stdout
        assert "no receipt" not in result.stdout


def test_ls_says_which_sessions_are_not_durable_and_what_waits(
    api: FakeApi, invoke: Callable[..., Result]
) -> None:
    ids = [
        api.add_session(durable=durable, queued=queued, running_turn=uuid4() if queued else None).id
        for durable, queued in ((True, 0), (False, 0), (None, 2))
    ]
    lines = {line.split()[0]: line for line in invoke("ls").stdout.splitlines()[1:]}
    assert " yes " in lines[str(ids[0])]
    assert " NO " in lines[str(ids[1])]
    assert "running, 2 queued" in lines[str(ids[2])]


async def test_a_queued_turn_is_waited_for_and_followed(api: FakeApi, hf: Holdfast) -> None:
    session = api.add_session()
    api.queue_next, api.script = True, list(GOOD)
    turn = await hf.turns.start(session.id, "go", queue=True)
    assert turn.state == "queued"
    # another turn's events come first
    api.append(session.id, events.Message(role="assistant", text="of another"), turn_id=uuid4())
    api.begins_after = 3
    seen = [event async for event in hf.turns.follow(turn)]
    assert api.looks_at_queued == 3
    assert {event.turn_id for event in seen} == {turn.id}
    assert seen[0].type == "turn.started"
    assert seen[-1].type == "turn.completed"


async def test_of_a_turn_that_was_cancelled_in_the_queue_there_are_no_events(
    api: FakeApi, hf: Holdfast
) -> None:
    session = api.add_session()
    api.queue_next = True
    turn = await hf.turns.start(session.id, "go", queue=True)
    assert not never_ran(turn)
    await hf.turns.cancel(session.id, turn.id)
    assert [event async for event in hf.turns.follow(turn)] == []
    assert never_ran(await hf.turns.get(session.id, turn.id))


def test_run_queue_waits_for_its_turn(api: FakeApi, invoke: Callable[..., Result]) -> None:
    api.add_session()
    api.queue_next, api.script = True, list(GOOD)
    api.begins_after = 1
    result = invoke("run", "go", "--session", "last", "--queue")
    assert result.exit_code == 0, result.output
    assert "queued: waits for the turns before it" in result.stderr
    assert "✓ receipt" in result.stdout


def test_leaks_are_told_and_exit_with_1(api: FakeApi, invoke: Callable[..., Result]) -> None:
    good = invoke("leaks")
    assert (good.exit_code, good.stdout) == (0, "no leaks\n")
    session_id = uuid4()
    api.leaks = [
        bodies.Leak(
            provider="local",
            sandbox_id="box-9",
            session_id=session_id,
            since=datetime.now(UTC),
            reason="no entry of the ledger knows it",
        )
    ]
    bad = invoke("leaks")
    assert bad.exit_code == 1
    assert f"local box-9 of session {session_id}" in bad.stdout
    told = invoke("leaks", "--json")
    assert (told.exit_code, len(parse_lines(told.stdout)[0]["leaks"])) == (1, 1)
