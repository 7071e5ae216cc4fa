"""Migrations: applied once, in order, by whoever comes first."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import asyncpg
import pytest

from api.db.migrate import (
    DIRECTORY,
    ChangedMigration,
    MigrationError,
    NewerDatabase,
    load,
    migrate,
)
from api.db.pool import Database, open_database
from tests.support.api import rows
from tests.support.api.schema import describe_schema
from tests.support.services import Postgres

SCHEMA = Path(__file__).with_name("schema.txt")


async def test_the_migrated_schema_is_the_one_in_the_repository(database: Database) -> None:
    async with database.connection() as conn:
        assert await describe_schema(conn) == SCHEMA.read_text()


async def test_many_processes_migrate_once(postgres_server: Postgres) -> None:
    async with open_database(await rows.create_database(postgres_server)) as database:

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
        with pytest.raises(ChangedMigration, match="changed after it was applied"):
            await migrate(conn, copy)


async def test_a_newer_database_is_refused(database: Database, tmp_path: Path) -> None:
    async with database.connection() as conn:
        with pytest.raises(NewerDatabase, match="newer version"):
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
        assert not await rows.table_exists(conn, "made")
        assert await migrate(conn) == []


@pytest.mark.parametrize("names", [["1_x.sql"], ["0002_x.sql"], ["0001_a.sql", "0001_b.sql"]])
def test_misnumbered_files_are_refused(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_text("SELECT 1;")
    with pytest.raises(MigrationError):
        load(tmp_path)
