"""What models were used: added up in the rows of the turn and the session, and read from there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from contracts.bodies import Budget, Spent, Totals
from contracts.events import EventBase, Usage

if TYPE_CHECKING:
    from api.db.pool import Connection

# Far above what is ever used, and so that no sum leaves PostgreSQL's bigint.
MOST = 10**12


def total(events: Iterable[EventBase]) -> Totals:
    """What these events come to."""
    used = [event for event in events if isinstance(event, Usage)]
    priced = [event.cost for event in used if event.cost is not None]
    return Totals(
        requests=len(used),
        input_tokens=sum(_bounded(event.input_tokens) for event in used),
        output_tokens=sum(_bounded(event.output_tokens) for event in used),
        cached_tokens=sum(_bounded(event.cached_tokens) for event in used),
        cost=sum(max(0.0, min(cost, float(MOST))) for cost in priced) if priced else None,
        unpriced=len(used) - len(priced),
        estimated=sum(event.estimated for event in used),
    )


def _bounded(count: int) -> int:
    return max(0, min(count, MOST))


ADD = """
WITH turn AS (
    UPDATE turns
    SET used_requests = used_requests + $3, used_input = used_input + $4,
        used_output = used_output + $5, used_cached = used_cached + $6,
        used_cost = CASE WHEN $7::double precision IS NULL THEN used_cost
                         ELSE coalesce(used_cost, 0) + $7 END,
        used_unpriced = used_unpriced + $8, used_estimated = used_estimated + $9
    WHERE id = $2
)
UPDATE sessions
SET used_requests = used_requests + $3, used_input = used_input + $4,
    used_output = used_output + $5, used_cached = used_cached + $6,
    used_cost = CASE WHEN $7::double precision IS NULL THEN used_cost
                     ELSE coalesce(used_cost, 0) + $7 END,
    used_unpriced = used_unpriced + $8, used_estimated = used_estimated + $9
WHERE id = $1
"""


async def add(conn: Connection, session_id: UUID, turn_id: UUID, used: Totals) -> None:
    """Add to what the turn and its session have used. The caller holds both rows."""
    await conn.execute(
        ADD,
        session_id,
        turn_id,
        used.requests,
        used.input_tokens,
        used.output_tokens,
        used.cached_tokens,
        used.cost,
        used.unpriced,
        used.estimated,
    )


SET_BUDGET = "UPDATE sessions SET budget_tokens = $2, budget_cost = $3 WHERE id = $1"


async def set_budget(conn: Connection, session_id: UUID, budget: Budget | None) -> None:
    """None: no budget."""
    wanted = budget or Budget()
    await conn.execute(SET_BUDGET, session_id, wanted.tokens, wanted.cost)


COLUMNS = {
    "requests": "used_requests",
    "input_tokens": "used_input",
    "output_tokens": "used_output",
    "cached_tokens": "used_cached",
    "cost": "used_cost",
    "unpriced": "used_unpriced",
    "estimated": "used_estimated",
}


def take_totals(fields: dict[str, Any]) -> Totals:
    """The totals of a row; their columns are taken out of it."""
    return Totals(**{name: fields.pop(column) for name, column in COLUMNS.items()})


def take_budget(fields: dict[str, Any]) -> Budget | None:
    """As `take_totals`."""
    tokens, cost = fields.pop("budget_tokens"), fields.pop("budget_cost")
    return None if tokens is None and cost is None else Budget(tokens=tokens, cost=cost)


def spent(used: Totals) -> Spent:
    """What a budget is held against."""
    return Spent(tokens=used.input_tokens + used.output_tokens, cost=used.cost or 0.0)
