"""What this process counts and times, for Prometheus. Each app has a registry of its own.

Every label has few values, whatever is asked of the api: routes by their template, never by path.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from starlette.types import Scope

from contracts.events import TURN_END_TYPES, EventBase, Receipt, ReceiptFailed, Usage

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
ENGINES = frozenset({"geesefs", "weed", "checkpoint"})
OTHER = "other"
# A commit takes a millisecond; a second is trouble.
APPEND_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)
BARRIER_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.append_seconds = histogram(
            "holdfast_append_seconds",
            "Storing a batch of a turn's events, to the end of the commit.",
            buckets=APPEND_BUCKETS,
        )
        self.barrier_seconds = histogram(
            "holdfast_barrier_seconds",
            "Proving that all a turn left is in the store, as its receipt says.",
            ["engine"],
            buckets=BARRIER_BUCKETS,
        )
        self.request_seconds = histogram(
            "holdfast_http_request_seconds",
            "From a request to the first byte of its answer.",
            ["method", "route"],
            buckets=REQUEST_BUCKETS,
        )
        self.events = counter("holdfast_events_appended", "Events stored here.")
        self.turns_started = counter("holdfast_turns_started", "Turns started here.")
        self.turns_ended = counter("holdfast_turns_ended", "Ends of turns stored here.", ["state"])
        unproven = "Turns of which it could not be proven."
        self.receipts_failed = counter("holdfast_receipts_failed", unproven, ["engine"])
        tokens = "Tokens in the usage events stored here."
        self.tokens = counter("holdfast_model_tokens", tokens, ["direction"])
        answers = "Requests that were answered."
        self.requests = counter("holdfast_http_requests", answers, ["method", "route", "status"])
        followers = "Followers that are served here now."
        self.followers = Gauge("holdfast_followers", followers, registry=self.registry)
        # there from the first scrape on, so that the first one of each is seen as a rise
        for state in TURN_END_TYPES:
            self.turns_ended.labels(state.removeprefix("turn."))
        for direction in ("input", "output", "cached"):
            self.tokens.labels(direction)
        for engine in ENGINES:
            self.receipts_failed.labels(engine)

    def began(self, events: int) -> None:
        """A turn was started, with its first events."""
        self.turns_started.inc()
        self.events.inc(events)

    def stored(self, events: Iterable[EventBase], seconds: float) -> None:
        """A batch of events is committed."""
        self.append_seconds.observe(seconds)
        for event in events:
            self.events.inc()
            kind = str(getattr(event, "type", ""))
            if kind in TURN_END_TYPES:
                self.turns_ended.labels(kind.removeprefix("turn.")).inc()
            elif isinstance(event, Receipt):
                self.barrier_seconds.labels(_engine(event.engine)).observe(event.took)
            elif isinstance(event, ReceiptFailed):
                self.receipts_failed.labels(_engine(event.engine)).inc()
            elif isinstance(event, Usage):
                # a harness says what it likes; a counter never falls
                self.tokens.labels("input").inc(max(0, event.input_tokens))
                self.tokens.labels("output").inc(max(0, event.output_tokens))
                self.tokens.labels("cached").inc(max(0, event.cached_tokens))

    def answered(self, scope: Scope, status: int, seconds: float) -> None:
        """A request has its answer, or none when its status is 0."""
        method = scope["method"] if scope["method"] in METHODS else OTHER
        route = _template(scope)
        self.requests.labels(method, route, str(status)).inc()
        self.request_seconds.labels(method, route).observe(seconds)


def _engine(name: str) -> str:
    return name if name in ENGINES else OTHER


def _template(scope: Scope) -> str:
    """The route that a request was for; nothing that a caller chooses."""
    if scope["path"].startswith("/static/"):
        return "/static"
    return str(getattr(scope.get("route"), "path", "none"))
