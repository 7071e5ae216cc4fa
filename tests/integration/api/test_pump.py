"""The pump against a wire that breaks: nothing lost, nothing doubled, no turn that never ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contracts.bodies import Session, Turn
from contracts.errors import Conflict, SidecarUnavailable
from contracts.events import dumps
from tests.support import names
from tests.support.api.database import NewDatabase
from tests.support.api.fault_injector import (
    Fault,
    FaultInjector,
    FaultyRun,
    event_line,
    numbered,
    planned,
    short_run,
)
from tests.support.api.serving import Api, make_settings, serve_api, served
from tests.support.services import SeaweedFS, free_port, until

SHORT = [
    names.SANDBOX_CREATING,
    names.SANDBOX_READY,
    "message",
    "usage",
    "receipt",
    names.TURN_COMPLETED,
]


def cut_after(count: int) -> Fault:
    return lambda lines: [*lines[:count], None]


def cut_in_the_middle_of(index: int) -> Fault:
    return lambda lines: [*lines[:index], lines[index][: len(lines[index]) // 2], None]


def closed_after(count: int) -> Fault:
    return lambda lines: list(lines[:count])


def doubled(lines: list[bytes]) -> list[bytes | None]:
    return [each for line in lines for each in (line, line)]


def from_the_start(run: FaultyRun) -> Fault:
    return lambda _lines: list(run.journal)


def without(index: int) -> Fault:
    return lambda lines: [*lines[:index], *lines[index + 1 :]]


async def run_with(api: Api, *faults: Fault, **more: Any) -> tuple[Turn, FaultyRun, list[str]]:
    """A short run over faulty connections; the types of what was stored after the opening."""
    session = await api.new_session()

    def plan(run: FaultyRun) -> None:
        run.journal.extend(short_run(**more))
        run.faults.extend(faults)

    with planned(api.injector, plan):
        turn = await api.ended(await api.start(session.id))
    return turn, api.injector.runs[turn.id], await types(api, session)


async def types(api: Api, session: Session) -> list[str]:
    events = await api.events(session.id)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["type"] for event in events[:2]] == [names.TURN_STARTED, "message"]
    return [event["type"] for event in events[2:]]


@pytest.mark.parametrize(
    ("faults", "connections"),
    [
        ([cut_after(3)], [0, 3]),
        ([cut_in_the_middle_of(3)], [0, 3]),
        ([cut_after(0), cut_after(1), cut_after(2)], [0, 0, 1, 3]),
        ([closed_after(2)], [0, 2]),
        ([doubled], [0]),
        # the receipt is stored with the end, or not at all
        ([cut_after(5)], [0, 4]),
        ([without(2)], [0, 2]),
    ],
    ids=["cut", "torn", "thrice", "closed", "doubled", "before-end", "gap-once"],
)
async def test_a_broken_stream_is_taken_up_where_it_broke(
    api: Api, faults: list[Fault], connections: list[int]
) -> None:
    turn, run, stored = await run_with(api, *faults)
    assert stored == SHORT
    assert turn.state == "completed"
    assert run.connections == connections


async def test_a_stream_that_starts_over_doubles_nothing(api: Api) -> None:
    session = await api.new_session()

    def plan(run: FaultyRun) -> None:
        run.journal.extend(short_run())
        run.faults.extend([cut_after(4), from_the_start(run)])

    with planned(api.injector, plan):
        turn = await api.ended(await api.start(session.id))
    assert turn.state == "completed"
    assert await types(api, session) == SHORT


async def test_a_gap_that_stays_interrupts_the_turn(api: Api) -> None:
    turn, run, stored = await run_with(api, *[without(2), without(0), without(0), without(0)])
    assert stored == [names.SANDBOX_CREATING, names.SANDBOX_READY, names.TURN_INTERRUPTED]
    assert turn.error is not None
    assert turn.error["code"] == "stream_gap"
    await until(lambda: run.cancels == 1, "the run is asked to stop")


@pytest.mark.parametrize("connections", [[0], [0, 5]], ids=["at once", "before"])
async def test_a_turn_whose_journal_lost_lines_is_not_completed(
    api: Api, connections: list[int]
) -> None:
    session = await api.new_session()

    def plan(run: FaultyRun) -> None:
        *lines, receipt, end = [json.loads(line)["event"] for line in short_run()]
        told = [*lines, {"type": names.RUN_GAP, "lines": 3, "reason": "lost"}, receipt, end]
        run.journal.extend(numbered(*((each.pop("type"), each) for each in told)))
        run.faults.extend([cut_after(5)] if len(connections) == 2 else [])

    with planned(api.injector, plan):
        turn = await api.ended(await api.start(session.id))
    assert api.injector.runs[turn.id].connections == connections
    assert (turn.state, (turn.error or {})["code"]) == ("interrupted", "stream_gap")
    assert turn.receipt is not None
    assert (await types(api, session))[-1] == names.TURN_INTERRUPTED


async def test_a_malformed_line_is_kept_and_the_stream_goes_on(api: Api) -> None:
    def garbled(lines: list[bytes]) -> list[bytes | None]:
        return [lines[0], b"%% not json \xff\n", lines[1], b"{}\n", *lines[3:]]

    turn, run, stored = await run_with(api, garbled)
    assert stored == [SHORT[0], "raw", SHORT[1], "raw", *SHORT[3:]]
    assert turn.state == "completed"
    assert run.connections == [0]
    raw = [each for each in await api.events(turn.session_id) if each["type"] == "raw"]
    assert raw[0]["data"] == "%% not json \\xff"


async def test_events_that_postgres_or_json_would_refuse_are_kept(api: Api) -> None:
    session = await api.new_session()
    text = "nul \0 lone \ud800 " + "x" * 2_000_000

    def plan(run: FaultyRun) -> None:
        run.journal.extend(numbered(("message", {"role": "assistant", "text": text})))
        run.journal.append(b'{"n":2,"event":{"type":"raw","data":[NaN,1e999]}}\n')
        run.journal.append(event_line(3, "no.such.type", at="yesterday", seq=99))
        run.journal.append(
            event_line(4, "message", role="user", text="x", at="0001-01-01T00:00+23:00")
        )
        run.journal.append(event_line(5, names.TURN_COMPLETED))

    with planned(api.injector, plan):
        turn = await api.ended(await api.start(session.id))
    assert turn.state == "completed"
    assert await types(api, session) == ["message", "raw", "raw", "message", names.TURN_COMPLETED]
    events = (await api.events(session.id))[2:]
    assert events[0]["text"] == text
    assert events[1]["data"] == ["NaN", "1e999"]
    assert events[2]["data"] == {"type": "no.such.type", "at": "yesterday"}


async def test_a_long_stream_is_stored_whole(api: Api) -> None:
    session = await api.new_session()
    count = 3_000

    def plan(run: FaultyRun) -> None:
        words = [("message", {"role": "assistant", "text": str(n)}) for n in range(count)]
        run.journal.extend(numbered(*words, (names.TURN_COMPLETED, {})))

    with planned(api.injector, plan):
        turn = await api.ended(await api.start(session.id))
    assert turn.state == "completed"
    texts = [event["text"] for event in (await api.events(session.id))[2:-1]]
    assert texts == [str(n) for n in range(count)]


async def test_a_sidecar_that_comes_back_gets_the_turn(api: Api) -> None:
    session = await api.new_session()
    api.injector.start_errors = [SidecarUnavailable("busy"), None, SidecarUnavailable("busy")]
    starts = api.injector.starts
    turn = await api.ended(await api.start(session.id))
    assert turn.state == "completed"
    assert api.injector.starts == starts + 4
    assert await types(api, session) == SHORT


async def test_a_sidecar_that_refuses_fails_the_turn_at_once(api: Api) -> None:
    session = await api.new_session()
    api.injector.start_errors = [Conflict("another run holds the session", hint="wait")]
    starts = api.injector.starts
    turn = await api.ended(await api.start(session.id))
    assert (turn.state, turn.error and turn.error["code"]) == ("failed", "conflict")
    assert api.injector.starts == starts + 1
    assert await types(api, session) == [names.TURN_FAILED]


async def test_a_sidecar_that_stays_away_fails_the_turn(
    new_database: NewDatabase, store_service: SeaweedFS
) -> None:
    injector, url = FaultInjector(), await new_database()
    async with served(injector.app()) as sidecar_url:
        settings = make_settings(url, store_service, sidecar_url)
        async with serve_api(settings, injector) as api:
            session = await api.new_session()
            injector.start_errors = [SidecarUnavailable("away")] * 1000
            turn = await api.ended(await api.start(session.id))
            assert turn.error is not None
            assert (turn.state, turn.error["code"]) == ("failed", "sidecar_unavailable")
            assert await types(api, session) == [names.TURN_FAILED]
            injector.start_errors = []
            again = await api.ended(await api.start(session.id))
            assert again.state == "completed"


async def test_a_cancel_before_the_start_ends_the_turn_without_a_run(api: Api) -> None:
    session = await api.new_session()
    api.injector.start_errors = [SidecarUnavailable("busy")] * 5
    turn = await api.start(session.id)
    answer = await api.http.post(f"/sessions/{session.id}/turns/{turn.id}/cancel")
    assert answer.status_code == 202
    ended = await api.ended(turn)
    api.injector.start_errors = []
    assert ended.state == "cancelled"
    assert turn.id not in api.injector.runs
    assert await types(api, session) == [names.TURN_CANCELLED]


async def test_a_run_that_the_sidecar_forgot_is_interrupted(api: Api) -> None:
    session = await api.new_session()

    def plan(run: FaultyRun) -> None:
        run.say(names.SANDBOX_CREATING, provider="local")

        def forget(lines: list[bytes]) -> list[bytes | None]:
            del api.injector.runs[run.request.turn_id]
            return list(lines)

        run.faults.append(forget)

    with planned(api.injector, plan):
        turn = await api.ended(await api.start(session.id))
    assert (turn.state, turn.error and turn.error["code"]) == ("interrupted", "run_not_found")
    assert await types(api, session) == [names.SANDBOX_CREATING, names.TURN_INTERRUPTED]


async def test_an_end_that_nobody_understands_is_still_an_end(api: Api) -> None:
    session = await api.new_session()

    def plan(run: FaultyRun) -> None:
        run.journal.append(dumps({"n": 1, "event": {"type": names.TURN_FAILED}}) + b"\n")

    with planned(api.injector, plan):
        turn = await api.ended(await api.start(session.id))
    assert (turn.state, turn.error and turn.error["code"]) == ("interrupted", "harness_exited")
    assert await types(api, session) == ["raw", names.TURN_INTERRUPTED]


async def test_a_failure_in_the_pump_ends_its_turn_and_not_the_service(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, other = await api.new_session(), await api.new_session()

    class Poison(Exception):
        pass

    def explode(*_args: object) -> None:
        raise Poison

    monkeypatch.setattr("api.lines.Numbering.take", explode)
    turn = await api.ended(await api.start(session.id))
    monkeypatch.undo()
    assert (turn.state, turn.error and turn.error["code"]) == ("interrupted", "internal")
    assert await types(api, session) == [names.TURN_INTERRUPTED]
    assert (await api.ended(await api.start(other.id))).state == "completed"


async def test_a_restarted_api_goes_on_from_the_last_stored_line(
    new_database: NewDatabase, store_service: SeaweedFS
) -> None:
    injector, url = FaultInjector(), await new_database()
    injector.plan = lambda run: run.journal.extend(short_run()[:3])
    async with served(injector.app()) as sidecar_url:
        settings = make_settings(url, store_service, sidecar_url)
        async with serve_api(settings, injector) as api:
            session = await api.new_session()
            turn = await api.start(session.id)
            async with api.http.stream(
                "GET", f"/sessions/{session.id}/events", params={"follow": True}
            ) as stream:
                seen = 0
                async for line in stream.aiter_lines():
                    seen += bool(line)
                    if seen == 5:
                        break
        run = injector.runs[turn.id]
        run.journal.append(short_run()[3])
        async with serve_api(settings, injector) as api:
            await until(lambda: len(run.connections) == 2, "the new api attaches")
            assert (await api.turn(turn)).state == "running"
            answer = await api.http.post(f"/sessions/{session.id}/turns", json={"prompt": "x"})
            assert answer.status_code == 409
            run.journal.extend(short_run()[4:])
            assert (await api.ended(turn)).state == "completed"
            assert await types(api, session) == SHORT
        assert run.connections == [0, 3]
        assert injector.starts == 1


async def test_a_cancel_outlives_the_api_that_took_it(
    new_database: NewDatabase, store_service: SeaweedFS
) -> None:
    injector, url = FaultInjector(), await new_database()

    def plan(run: FaultyRun) -> None:
        run.deaf = True
        run.say(names.SANDBOX_CREATING, provider="local")

    injector.plan = plan
    async with served(injector.app()) as sidecar_url:
        settings = make_settings(url, store_service, sidecar_url)
        async with serve_api(settings, injector) as api:
            session = await api.new_session()
            turn = await api.start(session.id)
            await until(lambda: turn.id in injector.runs, "the run starts")
            await api.http.post(f"/sessions/{session.id}/turns/{turn.id}/cancel")
            await until(lambda: injector.runs[turn.id].cancels == 1, "the cancel arrives")
        injector.runs[turn.id].deaf = False
        async with serve_api(settings, injector) as api:
            assert (await api.ended(turn)).state == "cancelled"


async def test_a_cancel_is_delivered_again_when_the_stream_broke(api: Api) -> None:
    session = await api.new_session()

    def plan(run: FaultyRun) -> None:
        run.deaf = True  # as a sidecar that dies before it has stopped the harness
        run.say(names.SANDBOX_CREATING, provider="local")

    turn, run = await api.start_run(session.id, plan)
    await until(lambda: len(run.connections) == 1, "the api follows")
    await api.http.post(f"/sessions/{session.id}/turns/{turn.id}/cancel")
    await until(lambda: run.cancels == 1, "the cancel arrives")
    run.deaf = False
    run.drop()
    assert (await api.ended(turn)).state == "cancelled"
    assert run.cancels == 2


async def test_an_api_without_a_sidecar_says_so(
    new_database: NewDatabase, store_service: SeaweedFS
) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    settings = make_settings(await new_database(), store_service, nobody)
    async with serve_api(settings, FaultInjector()) as api:
        for method, path in (
            ("POST", "/sessions"),
            ("GET", "/capabilities"),
            ("GET", "/sandboxes"),
        ):
            answer = await api.http.request(method, path, json={} if method == "POST" else None)
            assert (answer.status_code, answer.json()["error"]["code"]) == (
                503,
                "sidecar_unavailable",
            )
