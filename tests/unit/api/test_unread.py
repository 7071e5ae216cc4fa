"""When a client is hung up on: by whether it reads at all, not by how fast it reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from api.unread import hanging_up_after


class Timer:
    """What `call_later` was asked for."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """A loop whose time passes when a test says so."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def call_later(self, _delay: float, callback: Callable[[], None], *_: Any) -> Timer:
        self.timers.append(Timer(callback))
        return self.timers[-1]

    def pass_period(self) -> None:
        due, self.timers = self.timers, []
        for timer in due:
            if not timer.cancelled:
                timer.callback()


class Connection(asyncio.Transport):
    """A connection with so many bytes that its client has not read."""

    def __init__(self) -> None:
        super().__init__()
        self.unread = 0
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unread

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def connection() -> Connection:
    return Connection()


@pytest.fixture
def protocol(clock: Clock, connection: Connection) -> Any:
    async def nothing(_scope: Any, _receive: Any, _send: Any) -> None:
        raise AssertionError("no request comes")

    config = uvicorn.Config(nothing, log_config=None)
    config.load()
    kind: Any = hanging_up_after(1.0)
    made = kind(config=config, server_state=ServerState(), app_state={}, _loop=clock)
    made.connection_made(connection)
    return made


def test_a_client_that_reads_nothing_is_hung_up_on(
    protocol: Any, clock: Clock, connection: Connection
) -> None:
    connection.unread = 100
    protocol.pause_writing()
    assert not connection.aborted
    clock.pass_period()
    assert connection.aborted


def test_a_client_that_reads_a_byte_a_period_is_kept(
    protocol: Any, clock: Clock, connection: Connection
) -> None:
    connection.unread = 100
    protocol.pause_writing()
    for _ in range(50):
        connection.unread -= 1
        clock.pass_period()
        assert not connection.aborted
    clock.pass_period()
    assert connection.aborted


def test_a_client_that_has_read_everything_is_not_watched(
    protocol: Any, clock: Clock, connection: Connection
) -> None:
    connection.unread = 100
    protocol.pause_writing()
    connection.unread = 0
    protocol.resume_writing()
    clock.pass_period()
    clock.pass_period()
    assert not connection.aborted
