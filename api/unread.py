"""A client that does not read is hung up on: what waits for it takes memory, and a stream to it
would never end. One that reads slowly is not."""

from __future__ import annotations

import asyncio
import logging

from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger(__name__)


def hanging_up_after(seconds: float) -> type[H11Protocol]:
    """Uvicorn's protocol, for connections of which nobody has read a byte for so long although
    there was something to read."""

    class HangingUp(H11Protocol):
        _unread = 0
        _looking: asyncio.TimerHandle | None = None

        def pause_writing(self) -> None:
            super().pause_writing()
            self._look_later()

        def resume_writing(self) -> None:
            self._stop_looking()
            super().resume_writing()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_looking()
            super().connection_lost(exc)

        def _look_later(self) -> None:
            self._stop_looking()
            self._unread = self.transport.get_write_buffer_size()
            self._looking = self.loop.call_later(seconds, self._look)

        def _look(self) -> None:
            if self.transport.get_write_buffer_size() < self._unread:
                self._look_later()
                return
            log.info("a client read nothing for %g s and is hung up on", seconds)
            # not close(): that would wait for what is unread to be read
            self.transport.abort()

        def _stop_looking(self) -> None:
            if self._looking is not None:
                self._looking.cancel()
                self._looking = None

    return HangingUp
