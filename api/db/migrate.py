"""Numbered SQL files, each applied once, in order, all of them in one transaction."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from api.db.pool import Connection

DIRECTORY = Path(__file__).parent / "migrations"
NAME = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")

# Any number will do as long as nothing else in this database locks it.
LOCK = 0x686F6C64


class MigrationError(Exception):
    """The database and the migrations of this version do not belong together."""


class ChangedMigration(MigrationError):
    """A migration was changed after it was applied."""


class NewerDatabase(MigrationError):
    """A newer version has migrated the database."""


@dataclass(frozen=True)
class Migration:
    version: int
    name: str
    sql: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def load(directory: Path = DIRECTORY) -> list[Migration]:
    """The migrations in order.

    Raises: MigrationError when a name is wrong or a number is missing or taken twice.
    """
    found = []
    for path in sorted(directory.glob("*.sql")):
        match = NAME.fullmatch(path.name)
        if match is None:
            raise MigrationError(f"{path.name} is not named NNNN_words.sql")
        found.append(Migration(int(match[1]), path.name, path.read_text()))
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise MigrationError("migrations must be numbered 0001, 0002, … without a gap")
    return found


WAIT = "SET LOCAL lock_timeout = '60s'"
TAKE_LOCK = "SELECT pg_advisory_xact_lock($1)"
CREATE = """
CREATE TABLE IF NOT EXISTS migrations (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    sha256     text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""
PRESENT = "SELECT to_regclass('public.migrations') IS NOT NULL"
APPLIED = "SELECT version, name, sha256 FROM migrations ORDER BY version"
RECORD = "INSERT INTO migrations (version, name, sha256) VALUES ($1, $2, $3)"


async def migrate(
    conn: Connection, directory: Path = DIRECTORY, *, upto: int | None = None
) -> list[str]:
    """Bring the schema up to date, or `upto` a version; names what was applied. Safe to run from
    many processes.

    Raises: MigrationError when an applied file was changed or the database is newer.
    """
    migrations = load(directory)[:upto]
    done = []
    async with conn.transaction():
        await conn.execute(WAIT)
        await conn.execute(TAKE_LOCK, LOCK)
        await conn.execute(CREATE)
        applied = {row["version"]: row for row in await conn.fetch(APPLIED)}
        if len(applied) > len(migrations):
            raise NewerDatabase(
                f"the database was migrated by a newer version of Holdfast: its schema is"
                f" {max(applied)}, this version knows {len(migrations)}; run the newer version, or"
                f" restore the backup from before the upgrade (docs/operations.md)"
            )
        for migration in migrations:
            before = applied.get(migration.version)
            if before is not None:
                if before["sha256"] != migration.sha256:
                    raise ChangedMigration(f"{migration.name} was changed after it was applied")
                continue
            await conn.execute(migration.sql)
            await conn.execute(RECORD, migration.version, migration.name, migration.sha256)
            done.append(migration.name)
    return done


async def applied_migrations(conn: Connection) -> list[tuple[int, str, str]]:
    """What the database's schema was made by, as (version, name, sha256); nothing when it is
    empty."""
    if not await conn.fetchval(PRESENT):
        return []
    return [tuple(row) for row in await conn.fetch(APPLIED)]
