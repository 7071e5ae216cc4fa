"""The sidecar's line to the model gateway: a socket per session, and what was noted of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx

from contracts.bodies import GatewayRecords, Terms
from contracts.errors import Unavailable

TRIES = 40
PAUSE_SECONDS = 0.25
ANSWER_SECONDS = 10.0


class Gateway:
    def __init__(self, control: Path, tries: int = TRIES) -> None:
        """`tries` is how often a gateway that is away is asked."""
        self._tries = tries
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(
                uds=str(control),
                # every running turn waits for records all the time
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
            ),
            base_url="http://gateway",
            timeout=ANSWER_SECONDS,
        )

    async def open(self, session_id: str, terms: Terms | None = None) -> Path:
        """The socket through which this session's harness reaches a model. Idempotent; the terms
        that are named hold from here on.

        Raises: Unavailable, when the gateway stays away longer than a restart takes.
        """
        named = None if terms is None else terms.model_dump(mode="json", exclude_unset=True)
        answer = await self._call("PUT", f"/sessions/{session_id}", json=named)
        return Path(answer.json()["socket"])

    async def close_session(self, session_id: str) -> None:
        await self._call("DELETE", f"/sessions/{session_id}")

    async def records(
        self, session_id: UUID, after: int, *, wait: float = 0.0, idle: bool = False
    ) -> GatewayRecords:
        """What the gateway has noted of a session after this id; waits for something, or with
        `idle` until no request is on its way. The session must be open.

        Raises: Unavailable.
        """
        answer = await self._call(
            "GET",
            f"/sessions/{session_id}/records",
            params={"after": after, "wait": wait, "idle": idle},
            timeout=wait + ANSWER_SECONDS,
        )
        return GatewayRecords.model_validate_json(answer.content)

    async def taken(self, session_id: UUID, upto: int) -> None:
        """What was noted up to this id is kept here by now. Raises: Unavailable."""
        await self._call("DELETE", f"/sessions/{session_id}/records", params={"upto": upto})

    async def _call(self, method: str, path: str, **how: Any) -> httpx.Response:
        for _ in range(self._tries):
            try:
                answer = await self._http.request(method, path, **how)
            except httpx.TransportError:
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if answer.is_success:
                return answer
            raise Unavailable(
                f"the model gateway refused {method} {path}: {answer.text[:500]}",
                hint="See the log of the gateway.",
            )
        raise Unavailable(
            "the model gateway does not answer", hint="`holdfast status` shows whether it runs."
        )

    async def aclose(self) -> None:
        await self._http.aclose()
