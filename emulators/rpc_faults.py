"""The faults of `emulators.faults`, for a grpclib server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from grpclib.const import Status
from grpclib.events import RecvRequest, listen
from grpclib.exceptions import GRPCError
from grpclib.server import Server, Stream

from emulators.faults import REASONS, Fault, Faults
from emulators.http_server import reset_transport

STATUSES = {
    401: Status.UNAUTHENTICATED,
    429: Status.RESOURCE_EXHAUSTED,
    503: Status.UNAVAILABLE,
}
Call = Callable[[Any], Awaitable[None]]
_LATE: set[asyncio.Task[None]] = set()  # asyncio itself holds no task


def inject(
    server: Server, faults: Faults, sandbox_of: Callable[[Any], str | None] = lambda message: None
) -> None:
    """Let every call of `server` meet its fault. `sandbox_of` says which sandbox a request message
    is about; of a call that streams its requests, the first one is asked."""

    async def on_request(event: RecvRequest) -> None:
        name = event.method_name.rpartition("/")[2]
        handler: Call = event.method_func

        async def meeting(stream: Stream[Any, Any]) -> None:
            first = await stream.recv_message()
            _put_back(stream, first)
            fault = faults.of_call(name, None if first is None else sandbox_of(first))
            if fault is None:
                await handler(stream)
            else:
                await _meet(fault, handler, stream)

        event.method_func = meeting

    listen(server, RecvRequest, on_request)


def _put_back(stream: Stream[Any, Any], first: Any) -> None:
    """Let the handler receive the first message, which is read already."""
    receive = stream.recv_message

    async def again() -> Any:
        stream.recv_message = receive  # type: ignore[method-assign]
        return first

    stream.recv_message = again  # type: ignore[method-assign]


async def _meet(fault: Fault, handler: Call, stream: Stream[Any, Any]) -> None:
    if fault.status is not None:
        raise GRPCError(STATUSES[fault.status], REASONS[fault.status])
    if fault.fault == "hang":
        # grpclib cancels it when the client leaves
        await (asyncio.sleep(fault.seconds) if fault.seconds else asyncio.Event().wait())
    elif fault.fault == "delay":
        # grpclib cancels the call when the client leaves, but not this task
        late = asyncio.create_task(_delayed(fault.seconds, handler, stream))
        late.add_done_callback(_LATE.discard)
        _LATE.add(late)
        await asyncio.shield(late)
        return
    elif fault.fault == "lose":
        await handler(_Lost(stream))
    reset_transport(stream._stream._transport)


async def _delayed(seconds: float, handler: Call, stream: Stream[Any, Any]) -> None:
    await asyncio.sleep(seconds)
    left = stream._stream._transport.is_closing() or not stream._stream.closable
    await handler(_Lost(stream) if left else stream)


class _Lost:
    """A stream whose answers get lost."""

    def __init__(self, stream: Stream[Any, Any]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def send_initial_metadata(self, **given: Any) -> None:
        pass

    async def send_message(self, message: Any) -> None:
        pass

    async def send_trailing_metadata(self, **given: Any) -> None:
        pass
