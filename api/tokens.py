"""Named tokens: made once, found by a hash, revoked for good."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets

from api.db import tokens
from api.db.pool import Database
from api.db.tokens import Known
from api.owner import NAME as OWNER
from contracts.bodies import NewToken, TokenBody, TokenCreate
from contracts.errors import InvalidInput, TokenExists, TokenNotFound

# The prefix is for people and for scanners of leaked secrets; the rest are 256 random bits.
PREFIX = "hf_"
SHAPE = re.compile(rb"hf_[A-Za-z0-9_-]{43}|[0-9a-f]{64}")
# Words that the record has a meaning for are nobody's name.
RESERVED = frozenset({OWNER, "auto", "timeout", "cancel", "turn", "page", "token"})
# Strangers who try tokens wait for each other, and not the users of the database for them.
AT_ONCE = 4


def cookie_of(token: bytes) -> str:
    """What a browser gets in place of the token: it can be stolen without the token being known,
    and is made of it, so that it dies with it."""
    return hmac.digest(token, b"holdfast cookie 1", hashlib.sha256).hex()


def hashed(secret: bytes) -> bytes:
    """A plain hash: what has 256 random bits cannot be guessed, so that it need not be slow."""
    return hashlib.sha256(secret).digest()


class Tokens:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def create(self, asked: TokenCreate, by: str) -> NewToken:
        """Raises: InvalidInput, TokenExists."""
        if asked.name in RESERVED:
            raise InvalidInput(f"{asked.name!r} cannot be a token's name.", hint="Take another.")
        token = PREFIX + secrets.token_urlsafe(32)
        cookie = cookie_of(token.encode())
        known = Known(asked.name, asked.role, hashed(token.encode()), hashed(cookie.encode()))
        async with self._database.connection() as conn:
            made = await tokens.insert(conn, known, by)
        if made is None:
            raise TokenExists(
                f"There is a token {asked.name!r} already.",
                hint="Take another name, or delete that one first.",
            )
        return NewToken(**made.model_dump(), token=token)

    async def page(self) -> list[TokenBody]:
        async with self._database.connection() as conn:
            return await tokens.listed(conn)

    async def delete(self, name: str) -> TokenBody:
        """Revoke a token, and its cookies with it.

        Raises: TokenNotFound.
        """
        async with self._database.connection() as conn:
            gone = await tokens.delete(conn, name)
        if gone is None:
            raise TokenNotFound(
                f"There is no token {name[:100]!r}.", hint="GET /tokens lists them."
            )
        return gone

    async def find(self, secret: bytes, *, cookie: bool) -> Known | None:
        """Whose token, or cookie, this is; asked for each time, so that a revoked one is nobody's.

        Raises: DatabaseUnavailable.
        """
        if SHAPE.fullmatch(secret) is None:
            return None
        looked_for = hashed(secret)
        async with self._turn, self._database.connection() as conn:
            known = await tokens.find(conn, looked_for)
        if known is None:
            return None
        # a token's hash is no cookie, nor the other way round
        right = known.cookie_hash if cookie else known.token_hash
        return known if hmac.compare_digest(right, looked_for) else None
