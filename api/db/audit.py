"""Who did what: appended, read from its end, and cut at its beginning."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from contracts.bodies import AuditEntry, Role

if TYPE_CHECKING:
    from api.db.pool import Connection


@dataclass(frozen=True)
class Deed:
    """One request, as it is put on record."""

    name: str
    role: Role
    client: str
    action: str
    session_id: UUID | None
    subject: str
    status: int
    request_id: str


INSERT = """
INSERT INTO audit (name, role, client, action, session_id, subject, status, request_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
"""


async def insert(conn: Connection, deed: Deed) -> None:
    await conn.execute(
        INSERT,
        deed.name,
        deed.role,
        deed.client,
        deed.action,
        deed.session_id,
        deed.subject,
        deed.status,
        deed.request_id,
    )


PAGE = """
SELECT id, at, name, role, client, action, session_id, subject, status, request_id
FROM audit
WHERE id > $1 AND ($2::bigint IS NULL OR id < $2) AND ($3::uuid IS NULL OR session_id = $3)
ORDER BY id DESC
LIMIT $4
"""


async def page(
    conn: Connection, *, after: int, before: int | None, session_id: UUID | None, limit: int
) -> list[AuditEntry]:
    """Entries between two ids, the newest first."""
    rows = await conn.fetch(PAGE, after, before, session_id, limit)
    return [AuditEntry(**row) for row in rows]


# Ids have few gaps, so that a distance of ids is a number of rows, or a little less.
SWEEP = """
DELETE FROM audit
WHERE at < now() - $1::interval OR id <= (SELECT max(id) FROM audit) - $2::bigint
"""


async def sweep(conn: Connection, older: timedelta, rows: int) -> int:
    """Remove what is older, and all but the newest `rows`; how many that were."""
    done = await conn.execute(SWEEP, older, rows)
    return int(done.rsplit(" ", 1)[-1])
