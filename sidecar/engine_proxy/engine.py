"""The engine's end: one request, one bounded answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp

from contracts.errors import EngineUnavailable

CALL_SECONDS = 60
ANSWER_BYTES = 4 * 1024**2
_KEPT_HEADERS = ("Content-Type", "Api-Version")


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class Engine:
    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    @classmethod
    @asynccontextmanager
    async def at(cls, socket: Path) -> AsyncIterator[Self]:
        async with aiohttp.ClientSession(
            # a connection per call: none that the engine closed meanwhile, which would leave open
            # whether it did what was asked
            connector=aiohttp.UnixConnector(str(socket), force_close=True),
            timeout=aiohttp.ClientTimeout(total=CALL_SECONDS),
            auto_decompress=False,
            headers={"Accept-Encoding": "identity", "User-Agent": "holdfast"},
            cookie_jar=aiohttp.DummyCookieJar(),
        ) as http:
            yield cls(http)

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: dict[str, Any] | None = None,
    ) -> Answer:
        """Raises: EngineUnavailable when it does not answer, or without end."""
        try:
            async with self._http.request(
                method, f"http://engine{path}", params=query, json=body, allow_redirects=False
            ) as answer:
                read = bytearray()
                async for chunk in answer.content.iter_any():
                    read += chunk
                    if len(read) > ANSWER_BYTES:
                        raise EngineUnavailable(
                            f"The Docker engine's answer is longer than {ANSWER_BYTES} bytes."
                        )
        except TimeoutError:
            raise EngineUnavailable(
                f"The Docker engine did not answer within {CALL_SECONDS} s."
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnavailable(f"The Docker engine cannot be reached: {error}") from error
        headers = {name: answer.headers[name] for name in _KEPT_HEADERS if name in answer.headers}
        return Answer(answer.status, headers, bytes(read))
