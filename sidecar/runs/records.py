"""What the gateway notes of a session while a turn runs, as events of that turn: each once,
whatever is started again in between."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from contracts import events
from contracts.bodies import GatewayRecord, Terms
from contracts.errors import PromptFailed, Unavailable
from sidecar.runs.gateway import Gateway
from sidecar.runs.journal import Journal
from sidecar.runs.verdict import verdict

log = logging.getLogger(__name__)

WAIT_SECONDS = 20.0
# How long a turn that was cut off waits for its last request to be noted: the harness is gone, and
# the gateway notices when its connection breaks.
IDLE_SECONDS = 3.0
TROUBLE_SECONDS = 1.0
# Pages of records that one look takes; what is more is for the next one.
PAGES = 20


def _raw(record: GatewayRecord) -> events.EventBase:
    return events.Raw(source="gateway", data=record.model_dump(mode="json"))


def _usage(record: GatewayRecord) -> events.EventBase:
    return events.Usage.model_validate(_about(record))


def _failed(record: GatewayRecord) -> events.EventBase:
    return events.ModelFailed.model_validate(_about(record))


def _lost(record: GatewayRecord) -> events.EventBase:
    message = "the model gateway was restarted in the middle of the request"
    told = {**_about(record), "code": "gateway_restarted", "message": message}
    return events.ModelFailed.model_validate(told)


def _about(record: GatewayRecord) -> dict[str, Any]:
    return {name: value for name, value in record.data.items() if name != "turn_id"}


# What event a record becomes, by its kind. One record, one event: that is what makes it once.
KINDS: Mapping[str, Callable[[GatewayRecord], events.EventBase]] = {
    "usage": _usage,
    "model.failed": _failed,
    "model.lost": _lost,
    "egress": lambda record: events.Egress.model_validate(record.data),
}


def event_of(record: GatewayRecord, turn_id: UUID) -> events.EventBase:
    """The record as an event of this turn; what began in another one is `late`."""
    try:
        made = KINDS.get(record.kind, _raw)(record)
    except ValidationError:
        made = _raw(record)
    if record.data.get("turn_id") not in (None, str(turn_id)):
        made = made.model_copy(update={"late": True})
    return made


class Recorded:
    """The records of one turn's session. `after` is the last that an earlier turn has told; `begun`
    says that the gateway knows of the turn already."""

    def __init__(self, gateway: Gateway, journal: Journal, after: int, *, begun: bool) -> None:
        self._gateway = gateway
        self._journal = journal
        self._session = journal.request.session_id
        self._earlier = after
        self._begun = begun
        self._lock = asyncio.Lock()

    @property
    def _after(self) -> int:
        return max(self._earlier, self._journal.last_record)

    async def begin(self) -> None:
        """Tell the gateway whose turn it is, and on what terms. Raises: Unavailable."""
        request = self._journal.request
        terms = Terms(
            turn_id=request.turn_id,
            budget=request.budget,
            spent=request.spent,
            egress=request.egress,
            egress_hosts=request.egress_hosts,
        )
        await self._gateway.open(str(self._session), terms)
        self._begun = True

    async def follow(self) -> None:
        """For ever: what is noted becomes events as it comes."""
        while True:
            try:
                await self._take(wait=WAIT_SECONDS)
            except Unavailable as error:
                self._complain(error)
                await asyncio.sleep(TROUBLE_SECONDS)

    async def take_rest(self, *, cut_off: bool = False, pages: int = PAGES) -> None:
        """All there is now; of a turn that was `cut_off` also what is noted in the next moments.
        What cannot be had now comes with the session's next turn."""
        if not self._begun:
            return
        try:
            if cut_off:
                await self._take(wait=IDLE_SECONDS, idle=True)
            for _ in range(pages):
                if not await self._take():
                    return
        except Unavailable as error:
            self._complain(error)

    def judged(self, end: events.EventBase) -> events.EventBase:
        """How the turn has ended, by what its requests to a model came to. A harness may call a
        turn done whose model has failed: codex and pi do."""
        harness_says = isinstance(end, events.TurnCompleted) or (
            isinstance(end, events.TurnFailed) and end.error.code == PromptFailed.code
        )
        error = verdict(self._journal.entries()) if harness_says else None
        return end if error is None else events.TurnFailed(error=error)

    async def forget(self) -> None:
        """The gateway need not keep what is in the journal."""
        if not self._begun or self._after == 0:
            return
        try:
            await self._gateway.taken(self._session, self._after)
        except Unavailable as error:
            self._complain(error)

    async def _take(self, *, wait: float = 0.0, idle: bool = False) -> bool:
        """Whether there was anything."""
        found = await self._gateway.records(self._session, self._after, wait=wait, idle=idle)
        async with self._lock:  # of two that have asked, one brings it in
            for record in found.records:
                if record.id > self._after:
                    made = event_of(record, self._journal.request.turn_id)
                    await self._journal.append(made, record=record.id)
        return bool(found.records)

    def _complain(self, error: Unavailable) -> None:
        log.warning("session %s: %s", self._session, error.message)
