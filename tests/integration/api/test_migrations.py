"""Migrations: applied once, in order, by whoever comes first."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import asyncpg
import pytest
from uuid_utils.compat import uuid7

from api.db.migrate import DIRECTORY, MigrationError, load, migrate
from api.db.pool import Database, open_database
from tests.support.services import Postgres

SCHEMA = Path(__file__).with_name("schema.txt")
COLUMNS = """
SELECT c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
       || CASE WHEN a.attnotnull THEN ' not null' ELSE '' END
       || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '')
FROM pg_attribute a
JOIN pg_class c ON c.oid = a.attrelid AND c.relkind = 'r'
JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'public'
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attnum > 0 AND NOT a.attisdropped
ORDER BY 1
"""
CONSTRAINTS = """
SELECT conrelid::regclass || ' ' || conname || ': ' || pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND contype <> 'n'
ORDER BY 1
"""
INDEXES = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1"


async def empty_database(server: Postgres) -> str:
    name = f"empty_{uuid7().hex}"
    conn = await asyncpg.connect(server.url())
    try:
        await conn.execute(f"CREATE DATABASE {name}")
    finally:
        await conn.close()
    return server.url(name)


async def test_the_migrated_schema_is_the_one_in_the_repository(database: Database) -> None:
    async with database.connection() as conn:
        found = [
            row[0] for query in (COLUMNS, CONSTRAINTS, INDEXES) for row in await conn.fetch(query)
        ]
    assert "\n".join(found) + "\n" == SCHEMA.read_text()


async def test_many_processes_migrate_once(postgres_server: Postgres) -> None:
    async with open_database(await empty_database(postgres_server)) as database:

        async def run() -> list[str]:
            async with database.connection() as conn:
                return await migrate(conn)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run()) for _ in range(6)]
        applied = [name for task in tasks for name in task.result()]
        assert applied == [migration.name for migration in load()]


async def test_a_changed_migration_is_refused(database: Database, tmp_path: Path) -> None:
    copy = tmp_path / "migrations"
    shutil.copytree(DIRECTORY, copy)
    first = copy / load()[0].name
    first.write_text(first.read_text() + "-- edited\n")
    async with database.connection() as conn:
        with pytest.raises(MigrationError, match="changed after it was applied"):
            await migrate(conn, copy)


async def test_a_newer_database_is_refused(database: Database, tmp_path: Path) -> None:
    async with database.connection() as conn:
        with pytest.raises(MigrationError, match="newer version"):
            await migrate(conn, tmp_path)


async def test_a_broken_migration_changes_nothing(database: Database, tmp_path: Path) -> None:
    copy = tmp_path / "migrations"
    shutil.copytree(DIRECTORY, copy)
    number = len(load()) + 1
    (copy / f"{number:04}_good.sql").write_text("CREATE TABLE made (a int);")
    (copy / f"{number + 1:04}_bad.sql").write_text("CREATE TABLE broken (a nonsense);")
    async with database.connection() as conn:
        with pytest.raises(asyncpg.UndefinedObjectError):
            await migrate(conn, copy)
        assert await conn.fetchval("SELECT to_regclass('made')") is None
        assert await migrate(conn) == []


@pytest.mark.parametrize("names", [["1_x.sql"], ["0002_x.sql"], ["0001_a.sql", "0001_b.sql"]])
def test_misnumbered_files_are_refused(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_text("SELECT 1;")
    with pytest.raises(MigrationError):
        load(tmp_path)
