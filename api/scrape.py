"""What `GET /metrics` answers: what this process counted, and what is so for the whole stack now.

A number that cannot be had is left out and never made up: `holdfast_up` says whose it is.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar, get_args

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from api.db import turns
from api.db.migrate import load
from api.db.pool import Database
from api.ledger import Ledger
from api.metrics import Metrics
from api.sidecar import Sidecar
from api.store import Stores
from contracts.bodies import Capabilities, Leak, SandboxBody, TurnState
from contracts.errors import HoldfastError

T = TypeVar("T")

ASK_WITHIN = 5.0
VERSION = "0.1.0"


class Scrape:
    """Providers are asked over the internet, and so once in `boxes_seconds`, however many scrapers
    there are."""

    def __init__(
        self,
        metrics: Metrics,
        database: Database,
        stores: Stores,
        sidecar: Sidecar,
        ledger: Ledger,
        boxes_seconds: float,
    ) -> None:
        self._boxes_seconds = boxes_seconds
        self._metrics = metrics
        self._database = database
        self._stores = stores
        self._sidecar = sidecar
        self._ledger = ledger
        self._boxes: tuple[float, _Boxes] | None = None
        self._one = asyncio.Lock()

    async def answer(self, accept: str) -> tuple[bytes, str]:
        """The answer, and its type as the scraper wants it."""
        async with asyncio.TaskGroup() as group:
            by_state = group.create_task(_asked(self._turns))
            store = group.create_task(_asked(self._stores.check_writing))
            sidecar = group.create_task(_asked(self._sidecar.check))
            boxes = group.create_task(self._boxes_now())
        answered = {
            "database": by_state.result()[0],
            "store": store.result()[0],
            "sidecar": sidecar.result()[0],
        }
        now = [_info(), _up(answered), *_turns(by_state.result()[1]), *_boxes(boxes.result())]
        encode, content_type = choose_encoder(accept)
        at_once = CollectorRegistry()
        at_once.register(_Now([*now, *self._metrics.registry.collect()]))
        return encode(at_once), content_type

    async def _turns(self) -> dict[str, int]:
        async with self._database.connection() as conn:
            return await turns.count_by_state(conn)

    async def _boxes_now(self) -> _Boxes:
        async with self._one:
            if self._boxes is None or time.monotonic() - self._boxes[0] > self._boxes_seconds:
                self._boxes = (time.monotonic(), await self._ask_for_boxes())
            return self._boxes[1]

    async def _ask_for_boxes(self) -> _Boxes:
        async def listed() -> tuple[Capabilities, list[SandboxBody]]:
            able = await self._sidecar.capabilities()
            return able, (await self._sidecar.sandboxes()).sandboxes

        async with asyncio.TaskGroup() as group:
            boxes = group.create_task(_asked(listed))
            leaks = group.create_task(_asked(self._ledger.leaks))
        return _Boxes(boxes.result()[1], leaks.result()[1])


class _Boxes:
    """What the providers said; None where they could not be asked."""

    def __init__(
        self, listed: tuple[Capabilities, list[SandboxBody]] | None, leaks: list[Leak] | None
    ) -> None:
        self.listed = listed
        self.leaks = leaks


class _Now(Collector):
    """Metrics that are known already."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics

    def describe(self) -> Iterable[Metric]:
        return ()


async def _asked(ask: Callable[[], Awaitable[T]]) -> tuple[bool, T | None]:
    """Whether it answered in time, and what."""
    try:
        async with asyncio.timeout(ASK_WITHIN):
            return True, await ask()
    except (HoldfastError, TimeoutError):
        return False, None


def _info() -> Metric:
    info = GaugeMetricFamily("holdfast_info", "This api.", labels=["version", "schema"])
    info.add_metric([VERSION, str(len(load()))], 1)
    return info


def _up(answered: dict[str, bool]) -> Metric:
    up = GaugeMetricFamily("holdfast_up", "Whether a part answers this api.", labels=["part"])
    for part, answers in answered.items():
        up.add_metric([part], int(answers))
    return up


def _turns(by_state: dict[str, int] | None) -> list[Metric]:
    if by_state is None:
        return []
    found = GaugeMetricFamily("holdfast_turns", "All turns that are kept.", labels=["state"])
    for state in get_args(TurnState):
        found.add_metric([state], by_state.get(state, 0))
    return [found]


def _boxes(boxes: _Boxes) -> list[Metric]:
    found: list[Metric] = []
    if boxes.listed is not None:
        able, listed = boxes.listed
        alive = [box for box in listed if box.state != "gone"]
        counts = Counter(box.provider for box in alive)
        by_provider = GaugeMetricFamily(
            "holdfast_sandboxes", "Sandboxes that exist.", labels=["provider"]
        )
        for provider in able.providers:
            if provider.available:
                by_provider.add_metric([provider.name], counts[provider.name])
        warm = sum(box.warm_until is not None and not box.in_use for box in alive)
        found += [
            by_provider,
            GaugeMetricFamily("holdfast_sandboxes_warm", "Of these, kept for later.", value=warm),
        ]
    if boxes.leaks is not None:
        found.append(
            GaugeMetricFamily(
                "holdfast_leaks",
                "Sandboxes that live, or may live, and that nothing answers for.",
                value=len(boxes.leaks),
            )
        )
    return found
