"""Runs of the matrix and their cells."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg

from contracts.bodies import CellState, MatrixCell, MatrixRun, MatrixState, StepTook
from contracts.events import dumps

if TYPE_CHECKING:
    from api.db.pool import Connection

INSERT = """
INSERT INTO matrix_runs (id, state, harnesses, providers, engine)
VALUES ($1, 'running', $2, $3, $4)
"""
INSERT_CELLS = """
INSERT INTO matrix_cells (run_id, position, harness, provider, state)
SELECT $1, row_number() OVER (ORDER BY p.n, h.n), h.name, p.name, 'waiting'
FROM unnest($2::text[]) WITH ORDINALITY AS h (name, n),
     unnest($3::text[]) WITH ORDINALITY AS p (name, n)
"""


async def insert(
    conn: Connection, run_id: UUID, harnesses: Sequence[str], providers: Sequence[str], engine: str
) -> bool:
    """Store a run that begins; false when another one runs."""
    try:
        await conn.execute(INSERT, run_id, harnesses, providers, engine)
    except asyncpg.UniqueViolationError:
        return False
    await conn.execute(INSERT_CELLS, run_id, harnesses, providers)
    return True


RUN = """
SELECT r.id, r.state, r.created_at, r.ended_at, r.harnesses, r.providers, r.engine, r.error,
       count(*) FILTER (WHERE c.state = 'passed') AS passed,
       count(*) FILTER (WHERE c.state = 'failed') AS failed,
       count(*) FILTER (WHERE c.state = 'skipped') AS skipped
FROM matrix_runs r JOIN matrix_cells c ON c.run_id = r.id
"""
GET = RUN + "WHERE r.id = $1 GROUP BY r.id"
PAGE = RUN + "GROUP BY r.id ORDER BY r.created_at DESC, r.id DESC LIMIT $1"
CELLS = """
SELECT harness, provider, state, step, steps, reason, engine, session_id
FROM matrix_cells WHERE run_id = $1 ORDER BY position
"""


async def get(conn: Connection, run_id: UUID) -> MatrixRun | None:
    """A run with its cells."""
    row = await conn.fetchrow(GET, run_id)
    if row is None:
        return None
    cells = [_cell(dict(cell)) for cell in await conn.fetch(CELLS, run_id)]
    return _run(dict(row)).model_copy(update={"cells": cells})


async def page(conn: Connection, limit: int) -> list[MatrixRun]:
    """The last runs, without their cells."""
    return [_run(dict(row)) for row in await conn.fetch(PAGE, limit)]


@dataclass(frozen=True)
class CellNews:
    harness: str
    provider: str
    state: CellState
    step: str | None
    steps: Mapping[str, float]
    reason: str
    engine: str | None
    session_id: UUID | None


UPDATE_CELL = """
UPDATE matrix_cells
SET state = $4, step = $5, steps = $6, reason = $7, engine = $8, session_id = $9
WHERE run_id = $1 AND harness = $2 AND provider = $3
  AND EXISTS (SELECT FROM matrix_runs r WHERE r.id = $1 AND r.state = 'running')
"""


async def update_cell(conn: Connection, run_id: UUID, news: CellNews) -> None:
    """Note how a cell stands; nothing happens when its run has ended."""
    await conn.execute(
        UPDATE_CELL,
        run_id,
        news.harness,
        news.provider,
        news.state,
        news.step,
        dumps(dict(news.steps)),
        dumps(news.reason),
        news.engine,
        news.session_id,
    )


BEAT = "UPDATE matrix_runs SET beat_at = now() WHERE id = $1 AND state = 'running' RETURNING id"


async def beat(conn: Connection, run_id: UUID) -> bool:
    """Note that the run is looked after; false when it shall not run any more."""
    return await conn.fetchval(BEAT, run_id) is not None


FINISH = """
UPDATE matrix_runs SET state = $2, error = $3, ended_at = now()
WHERE id = $1 AND state = 'running'
RETURNING id
"""
# What has not been decided when a run ends never will be.
CLOSE_CELLS = """
UPDATE matrix_cells SET state = 'skipped', step = NULL, reason = $2
WHERE run_id = $1 AND state IN ('waiting', 'running')
"""


async def finish(
    conn: Connection, run_id: UUID, state: MatrixState, error: str | None = None
) -> bool:
    """End a run; false when it has ended already."""
    encoded = None if error is None else dumps(error)
    if await conn.fetchval(FINISH, run_id, state, encoded) is None:
        return False
    await conn.execute(CLOSE_CELLS, run_id, dumps(f"the run was {state}"))
    return True


STALE = "SELECT id FROM matrix_runs WHERE state = 'running' AND beat_at < now() - $1::interval"


async def stale(conn: Connection, after: timedelta) -> list[UUID]:
    """Runs that nobody looks after any more."""
    return [row["id"] for row in await conn.fetch(STALE, after)]


def _run(fields: dict[str, Any]) -> MatrixRun:
    error = fields["error"]
    return MatrixRun(**{**fields, "error": None if error is None else json.loads(error)})


def _cell(fields: dict[str, Any]) -> MatrixCell:
    steps = [StepTook(name=name, took=took) for name, took in json.loads(fields["steps"]).items()]
    took = sum(step.took for step in steps) if steps else None
    reason = json.loads(fields["reason"])
    return MatrixCell(**{**fields, "steps": steps, "reason": reason}, took=took)
