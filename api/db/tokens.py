"""Named tokens: hashes in, who they belong to out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

from contracts.bodies import Role, TokenBody

if TYPE_CHECKING:
    from api.db.pool import Connection


@dataclass(frozen=True)
class Known:
    """A named token that was found by one of its hashes."""

    name: str
    role: Role
    token_hash: bytes
    cookie_hash: bytes


INSERT = """
INSERT INTO tokens (name, role, token_hash, cookie_hash, created_by) VALUES ($1, $2, $3, $4, $5)
RETURNING name, role, created_at, created_by
"""


async def insert(conn: Connection, token: Known, created_by: str) -> TokenBody | None:
    """Store a new token; None when its name is taken."""
    try:
        row = await conn.fetchrow(
            INSERT, token.name, token.role, token.token_hash, token.cookie_hash, created_by
        )
    except asyncpg.UniqueViolationError:
        return None
    assert row is not None
    return TokenBody(**row)


FIND = """
SELECT name, role, token_hash, cookie_hash FROM tokens WHERE token_hash = $1 OR cookie_hash = $1
"""


async def find(conn: Connection, hashed: bytes) -> Known | None:
    """The token that has this hash, or whose cookie has it."""
    row = await conn.fetchrow(FIND, hashed)
    return Known(**row) if row is not None else None


LIST = "SELECT name, role, created_at, created_by FROM tokens ORDER BY name"


async def listed(conn: Connection) -> list[TokenBody]:
    return [TokenBody(**row) for row in await conn.fetch(LIST)]


DELETE = "DELETE FROM tokens WHERE name = $1 RETURNING name, role, created_at, created_by"


async def delete(conn: Connection, name: str) -> TokenBody | None:
    """Remove a token; None when there was none of that name."""
    row = await conn.fetchrow(DELETE, name)
    return TokenBody(**row) if row is not None else None
