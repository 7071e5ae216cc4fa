"""The schema of a migrated database as text, to compare with tests/integration/api/schema.txt.

python -m tests.support.api.schema > tests/integration/api/schema.txt
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from api.db.migrate import migrate
from api.db.pool import open_database
from tests.support.services import postgres, short_directory

if TYPE_CHECKING:
    from api.db.pool import Connection

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


async def describe_schema(conn: Connection) -> str:
    """A line for each column, constraint and index."""
    queries = (COLUMNS, CONSTRAINTS, INDEXES)
    return "".join([f"{row[0]}\n" for query in queries for row in await conn.fetch(query)])


async def main() -> None:
    with short_directory() as directory:
        async with (
            postgres(directory) as server,
            open_database(server.url()) as database,
            database.connection() as conn,
        ):
            await migrate(conn)
            sys.stdout.write(await describe_schema(conn))


if __name__ == "__main__":
    asyncio.run(main())
