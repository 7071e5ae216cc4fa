"""What an answer of a model API says of itself: tokens, its end, its failure. One reader per
protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Json = Mapping[str, Any]

MAX_MESSAGE = 500


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens. `input` is all that went in; `cached` and `cache_write` are the part of it that was
    read from the vendor's cache or written to it."""

    input: int = 0
    output: int = 0
    cached: int = 0
    cache_write: int = 0


@dataclass(slots=True)
class Seen:
    """What is known of an answer so far. `usage` is as the vendor gave it, the newest of each
    number; `pieces` counts the deltas that went by. `ended`: nothing more is said; `finished`: the
    model is done, though the vendor may go on."""

    usage: dict[str, Any] = field(default_factory=dict)
    pieces: int = 0
    ended: bool = False
    finished: bool = False
    failure: str | None = None
    code: str = ""
    model: str | None = None


class Reader(Protocol):
    """Never raises: what does not fit is left out."""

    @property
    def words(self) -> tuple[bytes, ...]:
        """A line of a stream without any of these says nothing that is read."""

    def event(self, seen: Seen, data: Json) -> None:
        """Take in one event of a stream."""

    def whole(self, seen: Seen, data: Json) -> None:
        """Take in an answer that came as one piece."""

    def counts(self, usage: Json) -> Counts:
        """The vendor's numbers in our terms."""


class AnthropicReader:
    words: tuple[bytes, ...] = (b"usage", b"message_stop", b"error")

    def event(self, seen: Seen, data: Json) -> None:
        match data.get("type"):
            case "message_start":
                message = _object(data.get("message"))
                _merge(seen, message.get("usage"))
                seen.model = _text(message.get("model")) or seen.model
            case "message_delta":
                _merge(seen, data.get("usage"))
                if _object(data.get("delta")).get("stop_reason"):
                    seen.finished = True
            case "message_stop":
                seen.ended = seen.finished = True
            case "error":
                _fail(seen, data)
            case _:
                seen.pieces += 1

    def whole(self, seen: Seen, data: Json) -> None:
        if data.get("type") == "error":
            _fail(seen, data)
            return
        _merge(seen, data.get("usage"))
        seen.model = _text(data.get("model"))
        seen.ended = seen.finished = True

    def counts(self, usage: Json) -> Counts:
        cached = _count(usage, "cache_read_input_tokens")
        written = _count(usage, "cache_creation_input_tokens")
        return Counts(
            input=_count(usage, "input_tokens") + cached + written,
            output=_count(usage, "output_tokens"),
            cached=cached,
            cache_write=written,
        )


class ResponsesReader:
    words: tuple[bytes, ...] = (
        b"response.completed",
        b"response.incomplete",
        b"response.failed",
        b"error",
    )

    def event(self, seen: Seen, data: Json) -> None:
        match data.get("type"):
            case "response.completed" | "response.incomplete" | "response.failed":
                self.whole(seen, _object(data.get("response")))
            case "error":
                _fail(seen, data)
            case _:
                seen.pieces += 1

    def whole(self, seen: Seen, data: Json) -> None:
        _merge(seen, data.get("usage"))
        seen.model = _text(data.get("model"))
        if data.get("status") == "failed" or isinstance(data.get("error"), Mapping):
            _fail(seen, data)
        else:
            seen.ended = seen.finished = True

    def counts(self, usage: Json) -> Counts:
        details = _object(usage.get("input_tokens_details"))
        return Counts(
            input=_count(usage, "input_tokens"),
            output=_count(usage, "output_tokens"),
            cached=_count(details, "cached_tokens"),
        )


class ChatReader:
    # with their values: every chunk names them, as null
    words: tuple[bytes, ...] = (
        *(b'"usage":{', b'"usage": {'),
        *(b'"finish_reason":"', b'"finish_reason": "'),
        b'"error"',
    )

    def event(self, seen: Seen, data: Json) -> None:
        if isinstance(data.get("error"), Mapping | str):
            _fail(seen, data)
            return
        seen.model = _text(data.get("model")) or seen.model
        _merge(seen, data.get("usage"))
        choices = data.get("choices")
        if isinstance(choices, list) and choices:
            seen.pieces += 1
            if _object(choices[0]).get("finish_reason"):
                seen.finished = True

    def whole(self, seen: Seen, data: Json) -> None:
        self.event(seen, data)
        seen.ended = seen.finished = True

    def counts(self, usage: Json) -> Counts:
        details = _object(usage.get("prompt_tokens_details"))
        return Counts(
            input=_count(usage, "prompt_tokens"),
            output=_count(usage, "completion_tokens"),
            cached=_count(details, "cached_tokens"),
        )


READERS: Mapping[str, Reader] = {
    "/v1/messages": AnthropicReader(),
    "/v1/responses": ResponsesReader(),
    "/v1/chat/completions": ChatReader(),
}


def error_text(body: Json) -> tuple[str, str]:
    """The message of a vendor's error, and its code."""
    found = body.get("error")
    if isinstance(found, str):
        return found[:MAX_MESSAGE], ""
    about = _object(found) or body
    code = _text(about.get("code")) or _text(about.get("type")) or ""
    return (_text(about.get("message")) or "the model API gave no reason")[:MAX_MESSAGE], code[:100]


def _fail(seen: Seen, data: Json) -> None:
    seen.failure, seen.code = error_text(data)
    seen.ended = True


def _merge(seen: Seen, usage: Any) -> None:
    seen.usage |= {name: value for name, value in _object(usage).items() if value is not None}


def _object(value: Any) -> Json:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _count(usage: Json, name: str) -> int:
    value = usage.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**12:
        return value
    return 0
