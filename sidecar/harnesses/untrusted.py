"""What a sandbox says, read within bounds: nobody in there is trusted."""

from __future__ import annotations

import json
from typing import Any

import aiohttp

# pydantic gives up at 255 levels, and nothing that a harness means has more than a few.
MOST_LEVELS = 100
ANSWER_BYTES = 64 << 20
SHOWN_CHARS = 2000


async def text_of(answer: aiohttp.ClientResponse) -> str:
    """The body of an answer. Raises: aiohttp.ClientPayloadError, also for one without end."""
    read = bytearray()
    async for chunk in answer.content.iter_any():
        read += chunk
        if len(read) > ANSWER_BYTES:
            raise aiohttp.ClientPayloadError(f"an answer of more than {ANSWER_BYTES} bytes")
    return read.decode("utf-8", "replace")


def is_good(answer: aiohttp.ClientResponse) -> bool:
    """Not `ok`, for which a redirect is fine: none is followed, and none is an answer."""
    return answer.status // 100 == 2


def parsed(text: str) -> dict[str, Any]:
    """The JSON object in `text`; anything else is kept under a name of ours."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = text
    if isinstance(found, dict) and not _too_deep(found, text):
        return found
    return {"unparsed": text if isinstance(found, dict | list) else found}


def _too_deep(value: Any, text: str) -> bool:
    if text.count("{") + text.count("[") <= MOST_LEVELS:
        return False
    level = [value]
    for _ in range(MOST_LEVELS):
        below: list[Any] = []
        for each in level:
            inner = each.values() if isinstance(each, dict) else each
            below += [item for item in inner if isinstance(item, dict | list)]
        if not below:
            return False
        level = below
    return True


def shown(value: Any) -> str:
    """Something of theirs in a message of ours."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:SHOWN_CHARS]
