"""The list of sessions: states, filters, search, and what a delete would remove."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import UUID

from api.db import transcript
from api.db.pool import Database
from contracts.bodies import Session, SessionPage
from contracts.events import EventBase, Message, Thought, ToolCall, ToolResult
from tests.support import names
from tests.support.api.fault_injector import FaultyRun, numbered
from tests.support.api.serving import Api, assert_error

if TYPE_CHECKING:
    from types_aiobotocore_s3.client import S3Client

RECEIPT = {"engine": "weed", "files": 3, "bytes": 700, "manifest_sha256": "0" * 64, "took": 0.1}


async def listed(api: Api, **params: Any) -> list[Session]:
    answer = await api.http.get("/sessions", params={"limit": 200, **params})
    assert answer.status_code == 200, answer.text
    return SessionPage.model_validate_json(answer.content).sessions


async def found(api: Api, q: str, **params: Any) -> list[UUID]:
    return [session.id for session in await listed(api, q=q, **params)]


async def ran(api: Api, *events: tuple[str, dict[str, Any]], title: str = "") -> Session:
    """A session with one ended turn that said these events."""
    api.injector.plan = lambda run: run.journal.extend(numbered(*events))
    session = await api.new_session(title=title)
    await api.ended(await api.start(session.id))
    answer = await api.http.get(f"/sessions/{session.id}")
    return Session.model_validate_json(answer.content)


COMPLETED = (names.TURN_COMPLETED, {"stop_reason": "end_turn"})


async def test_a_durable_session_is_idle_and_has_the_size_of_its_last_receipt(api: Api) -> None:
    session = await ran(api, ("receipt", RECEIPT), COMPLETED)
    assert (session.state, session.files, session.bytes) == ("idle", 3, 700)
    assert session.last_turn is not None
    assert (session.last_turn.state, session.last_turn.durable) == ("completed", True)
    assert session.last_seq == 4
    assert session in await listed(api, state="idle")
    assert session not in await listed(api, state=["running", "not_durable", "waiting"])


async def test_a_session_whose_last_turn_has_no_receipt_is_not_durable(api: Api) -> None:
    failed = {"code": "not_durable", "message": "a.txt is not in the store"}
    session = await ran(api, (names.TURN_FAILED, {"error": failed}))
    assert session.state == "not_durable"
    assert session.bytes is None
    assert session.last_turn is not None
    assert session.last_turn.error is not None
    assert session.last_turn.error["message"] == "a.txt is not in the store"
    assert session.id in [each.id for each in await listed(api, state="not_durable")]


async def test_a_session_is_running_until_its_turn_ends(api: Api) -> None:
    runs: list[FaultyRun] = []
    api.injector.plan = runs.append
    session = await api.new_session()
    assert session.state == "idle"
    turn = await api.start(session.id)
    [running] = [each for each in await listed(api, state="running") if each.id == session.id]
    assert running.last_turn is not None
    assert (running.last_turn.id, running.last_turn.durable) == (turn.id, None)
    await api.http.post(f"/sessions/{session.id}/turns/{turn.id}/cancel")
    runs[0].say(names.TURN_CANCELLED)
    await api.ended(turn)
    assert session.id not in [each.id for each in await listed(api, state="running")]


async def test_filters_hold_together(api: Api) -> None:
    claude = await api.new_session(harness="claude", title="filtered")
    pi = await api.new_session(harness="pi", title="filtered")
    await api.http.patch(f"/sessions/{pi.id}", json={"archived": True})
    assert await found(api, "filtered", harness="pi") == []
    assert await found(api, "filtered", harness="pi", archived="true") == [pi.id]
    assert set(await found(api, "filtered", archived="any")) == {claude.id, pi.id}
    assert await found(api, "filtered", provider="moon") == []


async def test_a_word_is_found_in_titles_and_in_what_was_said_thought_and_done(api: Api) -> None:
    by_title = await api.new_session(title="The Zebrafish project")
    said = await ran(api, ("message", {"role": "assistant", "text": "a ZEBRAfish!"}), COMPLETED)
    thought = await ran(api, ("thought", {"text": "about zebrafish"}), COMPLETED)
    call = {"tool_call_id": "1", "title": "write", "input": {"path": "src/zebrafish.py"}}
    called = await ran(api, (names.TOOL_CALL, call), COMPLETED)
    result = {"tool_call_id": "1", "status": "completed", "output": "x\nzebrafish_1\n"}
    printed = await ran(api, (names.TOOL_RESULT, result), COMPLETED)
    everywhere = {each.id for each in (by_title, said, thought, called, printed)}
    assert set(await found(api, "zebrafish")) == everywhere
    assert set(await found(api, "zebraf")) == everywhere
    assert await found(api, "zebrafish.py") == [called.id]
    assert await found(api, "fish.py") == []
    assert await found(api, "zebrafish project") == [by_title.id]
    [hit] = [each for each in await listed(api, q="zebrafish src") if each.id == called.id]
    assert hit.match is not None
    assert "src/zebrafish.py" in hit.match.text
    assert hit.match.seq == 3


async def test_every_word_must_be_found_though_not_in_one_event(api: Api) -> None:
    both = await ran(
        api,
        ("message", {"role": "assistant", "text": "the capybara"}),
        (names.TOOL_CALL, {"tool_call_id": "1", "title": "swims"}),
        ("message", {"role": "assistant", "text": "upstream"}),
        COMPLETED,
    )
    await ran(api, ("message", {"role": "assistant", "text": "a capybara"}), COMPLETED)
    assert await found(api, "upstream capybara") == [both.id]
    assert await found(api, "capybara downstream") == []


async def test_a_word_that_streaming_cut_in_two_is_found(api: Api) -> None:
    pieces = [("message", {"role": "assistant", "text": text}) for text in ("a hippo", "potamus")]
    session = await ran(api, *pieces, COMPLETED)
    assert await found(api, "hippopotamus") == [session.id]
    apart = await ran(
        api, pieces[0], ("thought", {"text": "campus"}), ("message", pieces[1][1]), COMPLETED
    )
    assert apart.id not in await found(api, "hippopotamus")


async def test_a_word_that_two_batches_cut_is_found(api: Api) -> None:
    runs: list[FaultyRun] = []
    api.injector.plan = runs.append
    session = await api.new_session()
    turn = await api.start(session.id)
    async with api.http.stream(
        "GET", f"/sessions/{session.id}/events", params={"follow": "true", "after": 2}
    ) as stream:
        lines = (line async for line in stream.aiter_lines() if line)
        while not runs:
            await anext(lines)
        runs[0].say("message", role="assistant", text="rhino")
        assert "rhino" in await anext(lines)
        runs[0].say("message", role="assistant", text="ceros")
        assert "ceros" in await anext(lines)
    runs[0].say(names.TURN_COMPLETED)
    await api.ended(turn)
    assert await found(api, "rhinoceros") == [session.id]


async def test_odd_searches_are_answered(api: Api) -> None:
    odd = await ran(
        api, ("message", {"role": "assistant", "text": "nul\0 \ud800 quokka"}), COMPLETED
    )
    assert await found(api, "quokka") == [odd.id]
    titled = await api.new_session(title="100%_'done'\\")
    for q in ("100%_'done'\\", "%_", "'", "\\"):
        assert await found(api, q) == [titled.id], q
    assert await found(api, "':* & | ! ( ) <->") == []
    assert await found(api, "word " * 90) == []
    assert_error(await api.http.get("/sessions", params={"q": "a\0"}), 400, "invalid_input")
    assert_error(await api.http.get("/sessions", params={"state": "x"}), 400, "invalid_input")


async def test_a_search_is_paged_by_cursor(api: Api) -> None:
    made = [await api.new_session(title=f"okapi {n}") for n in range(5)]
    seen: list[UUID] = []
    cursor: dict[str, str] = {}
    for _ in range(3):
        answer = await api.http.get("/sessions", params={"q": "okapi", "limit": 2, **cursor})
        page = SessionPage.model_validate_json(answer.content)
        seen += [each.id for each in page.sessions]
        cursor = {"cursor": page.next_cursor or ""}
    assert seen == [each.id for each in reversed(made)]
    assert cursor == {"cursor": ""}


async def test_only_the_beginning_of_a_long_text_is_indexed(database: Database) -> None:
    text = "start " + "x" * 100_000 + " finish"
    output = "y " * 1_000_000
    kinds: list[EventBase] = [
        Message(role="assistant", text=text),
        Thought(text=text),
        ToolCall(tool_call_id="1", title="t", input={"a": [text, {"b": text}]}),
        ToolResult(tool_call_id="1", status="completed", output=output),
    ]
    for event in kinds:
        assert len(transcript.prepare(event).text) <= 8192 + 10


async def test_contents_tell_what_a_delete_removes(api: Api, s3: S3Client) -> None:
    session = await ran(api, ("receipt", RECEIPT), COMPLETED)
    for path, content in {"a.txt": b"12345", "d/b.txt": b"1234567", "e/": b""}.items():
        await s3.put_object(Bucket="sessions", Key=f"{session.id}/{path}", Body=content)
    api.injector.boxes[session.id] = "box-1"
    answer = await api.http.get(f"/sessions/{session.id}/contents")
    told = answer.json()
    assert (told["turns"], told["events"], told["files"], told["bytes"]) == (1, 4, 2, 12)
    assert (told["sandboxes"], told["running_turn"], told["queued"]) == (1, None, 0)
    deleted = (await api.http.delete(f"/sessions/{session.id}")).json()
    names = ("turns", "events", "state_objects")
    assert [deleted[name] for name in names] == [told[name] for name in names]
    assert deleted["objects"] == told["files"]
    answer = await api.http.get(f"/sessions/{session.id}/contents")
    assert_error(answer, 404, "session_not_found")


async def test_a_transcript_is_read_backwards_page_by_page(database: Database, api: Api) -> None:
    said = [("message", {"role": "assistant", "text": str(n)}) for n in range(40)]
    session = await ran(api, *said, COMPLETED)
    path = f"/sessions/{session.id}/events"
    before, pages = session.last_seq + 1, []
    while True:
        answer = await api.http.get(path, params={"before": before, "limit": 10})
        assert answer.status_code == 200
        seqs = [json.loads(line)["seq"] for line in answer.text.splitlines()]
        if not seqs:
            break
        assert seqs == sorted(seqs)
        assert len(seqs) <= 10
        pages.append(seqs)
        before = seqs[0]
    assert [seq for page in reversed(pages) for seq in page] == list(range(1, 44))
    for more in ({"after": 1}, {"follow": "true"}):
        answer = await api.http.get(path, params={"before": 5, **more})
        assert_error(answer, 400, "invalid_input")


async def test_a_page_backwards_is_bounded_by_bytes_and_never_empty(api: Api) -> None:
    big = "x" * (5 * 1024 * 1024)
    said = [("message", {"role": "assistant", "text": big}) for _ in range(4)]
    session = await ran(api, *said, COMPLETED)
    path = f"/sessions/{session.id}/events"
    answer = await api.http.get(path, params={"before": 7})
    assert [json.loads(line)["seq"] for line in answer.text.splitlines()] == [5, 6]


async def test_a_deleted_session_is_not_found_any_more(api: Api) -> None:
    session = await ran(api, ("message", {"role": "assistant", "text": "axolotl"}), COMPLETED)
    assert await found(api, "axolotl") == [session.id]
    await api.http.delete(f"/sessions/{session.id}")
    assert await found(api, "axolotl") == []
