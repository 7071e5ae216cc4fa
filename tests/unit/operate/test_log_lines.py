"""Log lines: both forms, the ids of what is worked on, and how they are shown."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
from collections.abc import Iterator
from uuid import uuid4

import pytest

from contracts import logs
from contracts.logs import LogFormat, Traced, ids_in, readable, working_on

log = logging.getLogger("tests.lines")


@contextlib.contextmanager
def configured(form: LogFormat, *filters: logging.Filter) -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    root.handlers = []
    stream = io.StringIO()
    try:
        logs.configure("api", level="info", form=form, filters=filters, stream=stream)
        yield stream
    finally:
        root.handlers, root.level = before[0], before[1]


def test_a_json_line_says_who_speaks_and_what_about() -> None:
    session, turn = uuid4(), uuid4()
    with configured("json") as stream:
        with working_on(request_id="r1"), working_on(session_id=session, turn_id=turn):
            log.warning("with a\nline break and %s", "ü\x00")
        log.info("of nothing")
    about, of_nothing = (json.loads(line) for line in stream.getvalue().splitlines())
    assert about.pop("at").endswith("+00:00")
    assert about == {
        "level": "warning",
        "service": "api",
        "logger": "tests.lines",
        "message": "with a\nline break and ü\x00",
        "request_id": "r1",
        "session_id": str(session),
        "turn_id": str(turn),
    }
    assert of_nothing.keys() == {"at", "level", "service", "logger", "message"}


def test_a_text_line_has_the_same_ids() -> None:
    with configured("text") as stream, working_on(request_id="r1", session_id="s1"):
        log.info("hello")
    assert stream.getvalue().endswith(" INFO tests.lines: hello [request=r1 session=s1]\n")


def test_a_failure_is_one_line_of_json_with_its_trace() -> None:
    with configured("json") as stream:
        try:
            int("it broke")
        except ValueError:
            log.exception("cannot go on")
    (line,) = stream.getvalue().splitlines()
    assert "it broke" in json.loads(line)["error"]
    assert readable(line).startswith("ERROR tests.lines: cannot go on\nTraceback")


def test_a_filter_sees_every_record_before_it_is_written() -> None:
    class Masked(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            record.msg, record.args = record.getMessage().replace("secret", "***"), None
            return True

    with configured("json", Masked()) as stream:
        logging.getLogger("uvicorn.error").error("a %s", "secret")
    assert json.loads(stream.getvalue())["message"] == "a ***"


async def test_tasks_say_what_they_were_started_for_and_nobody_else_does() -> None:
    async def later(event: asyncio.Event) -> None:
        await event.wait()
        log.info("later")

    with configured("json") as stream:
        event = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            with working_on(request_id="one"):
                group.create_task(later(event))
            with working_on(request_id="two"):
                group.create_task(later(event))
            log.info("now")
            event.set()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line.get("request_id") for line in lines] == [None, "one", "two"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [(b"abc-1", True), (b"x" * 65, False), (b'a","b":"c', False), (b"a\nb", False), (b"", False)],
)
async def test_an_id_that_a_caller_gives_is_taken_if_it_is_one(given: bytes, kept: bool) -> None:
    seen: list[str] = []

    async def app(_scope: object, _receive: object, _send: object) -> None:
        seen.append(logs.current()["request_id"])
        assert logs.request_headers() == {"X-Request-Id": seen[0]}

    scope = {"type": "http", "path": "/healthz", "headers": [(b"x-request-id", given)]}
    await Traced(app)(scope, None, None)
    assert (seen[0].encode() == given) is kept
    assert logs.current() == {}


def test_the_path_tells_session_and_turn() -> None:
    session, turn = str(uuid4()), str(uuid4())
    assert ids_in(f"/sessions/{session}/turns/{turn}/cancel") == {
        "session_id": session,
        "turn_id": turn,
    }
    assert ids_in(f"/sessions/{session}") == {"session_id": session}
    assert ids_in(f"/runs/{turn}/events") == {"turn_id": turn}
    assert ids_in("/sessions/x/turns") == {}
    assert ids_in(f"/sessions/{session}x") == {}


@pytest.mark.parametrize("line", ["plain", "{no json", "[1]", '{"level": 1}', "{}", ""])
def test_a_line_of_another_program_is_shown_as_it_is(line: str) -> None:
    assert readable(line) == line
