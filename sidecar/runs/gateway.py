"""The sidecar's line to the model gateway: a socket per session."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from contracts.errors import Unavailable

TRIES = 40
PAUSE_SECONDS = 0.25


class Gateway:
    def __init__(self, control: Path) -> None:
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(control)),
            base_url="http://gateway",
            timeout=10,
        )

    async def open(self, session_id: str) -> Path:
        """The socket through which this session's harness reaches a model. Idempotent.

        Raises: Unavailable, when the gateway stays away longer than a restart takes.
        """
        answer = await self._call("PUT", f"/sessions/{session_id}")
        return Path(answer.json()["socket"])

    async def close_session(self, session_id: str) -> None:
        await self._call("DELETE", f"/sessions/{session_id}")

    async def _call(self, method: str, path: str) -> httpx.Response:
        for _ in range(TRIES):
            try:
                answer = await self._http.request(method, path)
            except httpx.TransportError:
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if answer.is_success:
                return answer
            break
        raise Unavailable(
            "the model gateway does not answer", hint="`holdfast status` shows whether it runs."
        )

    async def aclose(self) -> None:
        await self._http.aclose()
