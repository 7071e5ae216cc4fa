"""Usage that the client of a chat stream did not ask for: asked for on its way out, taken out of
the answer on its way back. Without it a vendor says nothing of what a chat stream has used."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from sidecar.gateway.metering.tap import MAX_KEPT

CHAT = "/v1/chat/completions"
_BREAKS = (b"\n\n", b"\r\n\r\n")


def asking_for_usage(path: str, body: Mapping[str, Any]) -> bytes | None:
    """The body with usage asked for; None when it needs no change."""
    options = body.get("stream_options")
    if path != CHAT or body.get("stream") is not True:
        return None
    if options is not None and not isinstance(options, dict):
        return None  # the vendor will say what is wrong with it
    if options and options.get("include_usage") is True:
        return None
    wanted = {**(options or {}), "include_usage": True}
    return json.dumps({**body, "stream_options": wanted}, separators=(",", ":")).encode()


async def without_usage(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The stream without the event that has usage and nothing else. An event that has not come
    whole is held until it has: no client acts on a part of one."""
    held = b""
    async for chunk in chunks:
        held += chunk
        end = max(held.rfind(mark) + len(mark) if mark in held else 0 for mark in _BREAKS)
        if end == 0 and len(held) <= MAX_KEPT:
            continue
        ready, held = (held[:end], held[end:]) if end else (held, b"")
        shown = _shown(ready)
        if shown:
            yield shown
    if held:
        yield held


def _shown(events: bytes) -> bytes:
    if b'"usage"' not in events:
        return events
    mark = _BREAKS[1] if _BREAKS[1] in events else _BREAKS[0]
    parts = events.split(mark)
    return mark.join(part for part in parts if not _is_usage_alone(part))


def _is_usage_alone(event: bytes) -> bool:
    if not event.startswith(b"data:") or b'"usage"' not in event:
        return False
    try:
        data = json.loads(event[len(b"data:") :])
    except ValueError:
        return False
    return isinstance(data, dict) and data.get("choices") == [] and bool(data.get("usage"))
