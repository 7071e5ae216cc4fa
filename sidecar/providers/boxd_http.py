"""The sidecar's end of boxd in a cloud's box: HTTP through the provider's proxy."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import aiohttp

from sidecar.providers.base import Endpoint
from sidecar.providers.boxd import ANSWER_SECONDS, LONGEST_LINE, NoAnswer
from sidecar.providers.boxd_answers import Refused, parse_head

CONNECT_SECONDS = 20
# Longer than any barrier: it must not go on by itself in the middle of one.
FROZEN_SECONDS = 600
TOKEN_HEADER = "X-Holdfast-Token"  # noqa: S105 - a header's name
TARGET_HEADER = "X-Holdfast-To"
OK = 200


class ByHttp:
    """A Link. Who answers is not trusted, and its proxy may say anything."""

    def __init__(self, endpoint: Endpoint, token: str) -> None:
        self._endpoint = endpoint
        self._headers = {**endpoint.headers, TOKEN_HEADER: token}

    def agent(self) -> Endpoint:
        """sandbox-agent, by the same port."""
        return Endpoint(self._endpoint.base_url, {**self._headers, TARGET_HEADER: "agent"})

    async def call(
        self, op: str, body: bytes = b"", *, bound: float | None = ANSWER_SECONDS, **fields: Any
    ) -> tuple[dict[str, Any], bytes]:
        request = json.dumps({"op": op, **fields}).encode() + b"\n" + body
        try:
            async with asyncio.timeout(bound):
                return await self._ask(op, request)
        except TimeoutError as error:
            raise NoAnswer(f"no answer to {op} in {bound} s") from error
        except (aiohttp.ClientError, OSError, ValueError, asyncio.IncompleteReadError) as error:
            raise NoAnswer(f"the sandbox broke off in {op}: {error}") from error

    async def _ask(self, op: str, request: bytes) -> tuple[dict[str, Any], bytes]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        # A client per call: providers' URLs change, and a call may take any time.
        async with (
            aiohttp.ClientSession(
                timeout=timeout, headers=self._headers, auto_decompress=False
            ) as http,
            http.post(
                f"{self._endpoint.base_url}/call",
                data=io.BytesIO(request),  # in pieces: one of many megabytes would hold up the loop
                allow_redirects=False,  # to a login page, for a box that is gone
                read_bufsize=LONGEST_LINE,
            ) as answer,
        ):
            if answer.status != OK:
                raise NoAnswer(f"the sandbox's port answers {answer.status} to {op}")
            while (line := await answer.content.readline()) == b"\n":
                pass  # it is still at it
            head = parse_head(op, line)
            return head, await answer.content.readexactly(head["size"])

    async def freeze(self, bound: float) -> None:
        await self.call("freeze_for", bound=bound, seconds=FROZEN_SECONDS)

    async def thaw(self) -> None:
        head, _ = await self.call("thaw")
        if not head["was_frozen"]:
            raise Refused("it had gone on by itself, or was started anew", "")
