"""Logs of every service: one place that sets them up, in one of two forms, with the ids of what is
being worked on.

text: `2026-01-31T12:00:00.000Z INFO api.pump: the stream broke [request=… session=… turn=…]`
json: one object a line: at, level, service, logger, message, request_id, session_id, turn_id, error
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, TextIO
from uuid import UUID, uuid4

LogFormat = Literal["text", "json"]

# What an id is carried by from one service to the next.
REQUEST_HEADER = "X-Request-Id"
REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
IDS = ("request_id", "session_id", "turn_id")
# These log every request of ours with its address, and a query may be a secret.
TALKATIVE = ("httpx", "httpcore", "botocore", "aiobotocore", "aioboto3", "urllib3")

_OF_PATH = re.compile(
    r"/(?:sessions/(?P<session_id>[0-9a-f-]{36})(?:/turns/(?P<turn_id>[0-9a-f-]{36}))?"
    r"|runs/(?P<run>[0-9a-f-]{36}))(?=/|$)"
)
_ids: ContextVar[Mapping[str, str]] = ContextVar("ids", default={})  # noqa: B039 never changed


def configure(
    service: str,
    *,
    level: str,
    form: LogFormat,
    filters: Iterable[logging.Filter] = (),
    stream: TextIO | None = None,
) -> None:
    """Send what this process logs to standard error; `filters` see every record first. To be called
    once, in a service's `main`."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(service) if form == "json" else TextFormatter())
    for each in filters:
        handler.addFilter(each)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)


@contextlib.contextmanager
def working_on(
    *,
    request_id: str | None = None,
    session_id: UUID | str | None = None,
    turn_id: UUID | str | None = None,
) -> Iterator[None]:
    """What is logged in the block, and in tasks that it starts, says what it was about."""
    given = {"request_id": request_id, "session_id": session_id, "turn_id": turn_id}
    known = {name: str(value) for name, value in given.items() if value is not None}
    before = _ids.set({**_ids.get(), **known})
    try:
        yield
    finally:
        _ids.reset(before)


def current() -> Mapping[str, str]:
    """The ids of what is being worked on."""
    return _ids.get()


def request_headers() -> dict[str, str]:
    """What the next service is to be told."""
    request_id = _ids.get().get("request_id")
    return {} if request_id is None else {REQUEST_HEADER: request_id}


def given_request_id(value: str | None) -> str:
    """The id that a service before us gave, if it is one, else a new one."""
    if value is not None and REQUEST_ID.fullmatch(value):
        return value
    return uuid4().hex


def ids_in(path: str) -> dict[str, str]:
    """The session and the turn that a path is about."""
    found = _OF_PATH.match(path)
    if found is None:
        return {}
    named = {"session_id": found["session_id"], "turn_id": found["turn_id"] or found["run"]}
    return {name: value for name, value in named.items() if value}


class Traced:
    """An ASGI app, whose requests are logged with the id that the caller gave them, or a new one,
    and with the session that all are of, or the ids in their path."""

    def __init__(self, app: Any, session_id: str | None = None) -> None:
        self._app = app
        self._ids = {} if session_id is None else {"session_id": session_id}

    async def __call__(self, scope: Any, receive: Any, send: Any, /) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(REQUEST_HEADER.lower().encode(), b"")
        request_id = given_request_id(given.decode("latin-1"))
        with working_on(**{"request_id": request_id, **ids_in(scope["path"]), **self._ids}):
            await self._app(scope, receive, send)


class JsonFormatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": _at(record.created),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
            **_ids.get(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        ids = _ids.get()
        known = " ".join(f"{name[:-3]}={ids[name]}" for name in IDS if name in ids)
        text = f"{_at(record.created)} {record.levelname} {record.name}: {record.getMessage()}"
        if known:
            text = f"{text} [{known}]"
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        return text


def _at(created: float) -> str:
    return datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds")


def as_json(service: str, level: str, message: str) -> str:
    """A line of a service that logs without this process's loggers."""
    at = _at(datetime.now(UTC).timestamp())
    fields = {"at": at, "level": level, "service": service, "logger": service, "message": message}
    return json.dumps(fields)


def fields(line: str) -> dict[str, Any] | None:
    """A line in the json form; None for any other."""
    if not line.startswith("{"):
        return None
    try:
        plain = json.loads(line)
    except ValueError:
        return None
    known = isinstance(plain, dict) and {"level", "message"} <= plain.keys()
    return plain if known else None


def readable(line: str) -> str:
    """A line in the json form for somebody who looks at it; any other line as it is."""
    plain = fields(line)
    if plain is None:
        return line
    known = " ".join(f"{name[:-3]}={plain[name]}" for name in IDS if name in plain)
    text = f"{str(plain['level']).upper()} {plain.get('logger', '')}: {plain['message']}"
    text = f"{text} [{known}]" if known else text
    return f"{text}\n{plain['error']}" if plain.get("error") else text
