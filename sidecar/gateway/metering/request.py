"""One request to a model: refused when the budget is spent, else counted when it ends, however it
ends."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

from sidecar.gateway.metering.hiding import without_usage
from sidecar.gateway.metering.prices import PriceTable
from sidecar.gateway.metering.reading import READERS, Counts, error_text
from sidecar.gateway.metering.tap import Tap
from sidecar.gateway.records import USAGE, SessionLog

FAILED = "model.failed"
BUDGET_SPENT = "budget_spent"
# As vendors say that credit is used up, and what no harness tries again.
REFUSED_STATUS = 400
# An error is read whole before it is passed on; what is longer is not one.
MAX_ERROR = 64 * 1024
CHARS_PER_TOKEN = 4

Outcome = Literal["completed", "cut", "failed"]

_KEYS = re.compile(r"(sk|key|pk)-[\w-]{8,}|(?<=Bearer )\S+", re.IGNORECASE)


class Refused(Exception):
    """The request may not go out; `message` is for the harness to show."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Meter:
    """Begins the requests of one session."""

    def __init__(self, log: SessionLog, prices: PriceTable) -> None:
        self._log = log
        self._prices = prices

    def begin(self, path: str, model: str, size: int, *, side: bool) -> ModelRequest:
        """A request is to go out. `side`: it is one for a title, a summary or the like.

        Raises: Refused, when the budget is spent or cannot be held; that is recorded.
        """
        turn_id = self._log.terms.turn_id
        about = {
            "turn_id": None if turn_id is None else str(turn_id),
            "model": model,
            "side": side,
        }
        message = self._beyond(model)
        if message:
            spent = self._log.spent.model_dump()
            refusal = {"status": REFUSED_STATUS, "code": BUDGET_SPENT, "message": message}
            self._log.add(FAILED, {**about, **refusal, "spent": spent})
            raise Refused(message)
        return ModelRequest(self._log, self._prices, path, about, size)

    def unreadable(self, status: int, message: str) -> None:
        """A request that nobody can make sense of was turned away."""
        turn_id = self._log.terms.turn_id
        told = {"turn_id": None if turn_id is None else str(turn_id), "side": False}
        self._log.add(FAILED, {**told, "status": status, "code": "", "message": message})

    def _beyond(self, model: str) -> str:
        budget, spent = self._log.terms.budget, self._log.spent
        if budget is None:
            return ""
        if budget.tokens is not None and spent.tokens >= budget.tokens:
            return f"The session's budget is spent: {spent.tokens:,} of {budget.tokens:,} tokens."
        if budget.cost is None:
            return ""
        if self._prices.price(model) is None:
            return (
                f"The session may cost ${budget.cost:g}, and the model {model} has no price to "
                "hold against that: add one (HOLDFAST_MODEL_PRICES), or use a budget of tokens."
            )
        if spent.cost >= budget.cost:
            return f"The session's budget is spent: ${spent.cost:.4f} of ${budget.cost:g}."
        return ""


class ModelRequest:
    """On its way from the moment it is made; `close` it, whatever happens. What ends first counts.

    It is recorded before the client gets the last of the answer: whoever acts on that finds it.
    """

    def __init__(
        self,
        log: SessionLog,
        prices: PriceTable,
        path: str,
        about: Mapping[str, Any],
        size: int,
    ) -> None:
        self._log = log
        self._prices = prices
        self._reader = READERS[path]
        self._about = dict(about)
        self._size = size
        self._tap: Tap | None = None
        self._started = time.monotonic()
        self._number: int | None = log.began(self._about)

    async def watch(
        self,
        status: int,
        headers: Mapping[str, str],
        chunks: AsyncIterator[bytes],
        *,
        secret: str = "",
        hide_usage: bool = False,
    ) -> AsyncIterator[bytes]:
        """The answer's bytes as they are, read on their way. `secret` is masked in an error."""
        self._tap = tap = Tap(self._reader, headers)
        if status >= 400:
            async for chunk in self._error(status, tap, chunks, secret.encode()):
                yield chunk
            return
        tapped = self._tapped(tap, chunks) if tap.streamed else self._last_held(tap, chunks)
        if hide_usage and tap.streamed and tap.plain:
            tapped = without_usage(tapped)
        async for chunk in tapped:
            yield chunk

    def whole(self, answer: Mapping[str, Any]) -> None:
        """The answer is this, in one piece."""
        self._tap = Tap(self._reader, {"content-type": "application/json"})
        self._tap.feed(json.dumps(answer).encode())
        self._tap.end()
        self._complete()

    def failed(self, status: int, message: str, code: str = "") -> None:
        """There is no answer, or no more of it."""
        told = {"status": status, "code": code, "message": redacted(message)}
        self._end("failed", told)

    def close(self) -> None:
        """Whatever has not ended by now was cut off by the client."""
        if self._tap is not None and self._tap.seen.finished:
            self._end("completed")
        else:
            self._end("cut")

    async def _tapped(self, tap: Tap, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            tap.feed(chunk)
            if tap.seen.ended:
                self._complete()
            yield chunk
        tap.end()
        self._complete()

    async def _last_held(self, tap: Tap, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """One piece is held until the next is there: nobody can use an object without its end."""
        held = b""
        async for chunk in chunks:
            tap.feed(chunk)
            if held:
                yield held
            held = chunk
        tap.end()
        self._complete()
        if held:
            yield held

    async def _error(
        self, status: int, tap: Tap, chunks: AsyncIterator[bytes], secret: bytes
    ) -> AsyncIterator[bytes]:
        body = b""
        async for chunk in chunks:
            body += chunk
            if len(body) > MAX_ERROR:
                break
        if secret:
            body = body.replace(secret, b"*" * len(secret))
        self.failed(status, *_reason(body if tap.plain else b""))
        yield body
        async for chunk in chunks:
            yield chunk

    def _complete(self) -> None:
        """The answer says no more."""
        assert self._tap is not None
        seen = self._tap.seen
        if seen.failure is not None:
            self.failed(502, seen.failure, seen.code)
        elif seen.finished or self._tap.blind:
            self._end("completed")
        else:
            self.failed(502, "the model API's answer ended before it was complete")

    def _end(self, outcome: Outcome, failure: Mapping[str, Any] | None = None) -> None:
        if self._number is None:
            return
        number, self._number = self._number, None
        records: list[tuple[str, Mapping[str, Any]]] = []
        counts, estimated = self._counts(outcome)
        if outcome != "failed" or counts != Counts():
            records.append((USAGE, self._usage(counts, outcome, estimated=estimated)))
        if failure is not None:
            records.append((FAILED, {**self._about, **failure}))
        self._log.ended(number, *records)

    def _usage(self, counts: Counts, outcome: Outcome, *, estimated: bool) -> dict[str, Any]:
        price = self._prices.price(self._about["model"])
        return {
            **self._about,
            "input_tokens": counts.input,
            "output_tokens": counts.output,
            "cached_tokens": counts.cached,
            "cache_write_tokens": counts.cache_write,
            "cost": None if price is None else price.of(counts),
            "outcome": outcome,
            "estimated": estimated,
            "took": round(time.monotonic() - self._started, 3),
        }

    def _counts(self, outcome: Outcome) -> tuple[Counts, bool]:
        """What the vendor has told; what it did not come to tell is estimated, and said to be: a
        budget that is not held to what was cut off would be none."""
        tap = self._tap
        told = Counts() if tap is None else self._reader.counts(tap.seen.usage)
        complete = tap is not None and bool(tap.seen.usage)
        if outcome == "failed" or (outcome == "completed" and complete):
            return told, False
        pieces = 0 if tap is None else tap.seen.pieces
        return (
            Counts(
                input=told.input or self._size // CHARS_PER_TOKEN,
                output=max(told.output, pieces),
                cached=told.cached,
                cache_write=told.cache_write,
            ),
            True,
        )


def redacted(text: str) -> str:
    """Without what looks like a key: vendors quote the one they refuse."""
    return _KEYS.sub("[key]", text)


def _reason(body: bytes) -> tuple[str, str]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return error_text(found)
    text = " ".join(body.decode("utf-8", "replace").split())
    return text[:300] or "the model API gave no reason", ""
