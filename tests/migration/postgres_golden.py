"""Make the golden file of the PostgreSQL store: the rows of every table, as JSON.

    python -m tests.migration.postgres_golden

Until the first release is tagged, a change of version 1 makes its file again. From then on it is
made once, when a format version is new, and every later version must read it.
"""

from __future__ import annotations

import json
from typing import Any

from psycopg import Connection, sql

from milecastle.stores.postgres import PostgresStore
from milecastle.stores.postgres.statements import compose, file_text, migrations
from tests.migration.sqlite_golden import GOLDEN, fill
from tests.postgres_cluster import Cluster, new_schema, the_cluster

VERSION = 1
PATH = GOLDEN / f"postgres-v{VERSION}.json"


def rows_of(cluster: Cluster, schema: str) -> dict[str, list[dict[str, Any]]]:
    """Every table's rows, with their columns by name."""
    query = "SELECT coalesce(jsonb_agg(t), '[]') FROM {} AS t"
    with cluster.connect() as connection:
        found = {
            table: connection.execute(sql.SQL(query).format(sql.Identifier(schema, table)))
            for table in tables_of(connection, schema)
        }
        return {table: cursor.fetchall()[0][0] for table, cursor in found.items()}


def tables_of(connection: Connection, schema: str) -> list[str]:
    query = "SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY 1"
    return [name for (name,) in connection.execute(query, [schema])]


def restore(cluster: Cluster, schema: str) -> None:
    """Make a schema of the golden file's version, with its rows."""
    first = compose(file_text("begin_migrating") + migrations()[0][1], schema=schema)
    rows_in = "SELECT * FROM jsonb_populate_recordset(null::{0}, {1})"
    insert = sql.SQL("INSERT INTO {0} OVERRIDING SYSTEM VALUE " + rows_in)
    with cluster.connect() as connection, connection.transaction():
        connection.execute(first)
        for table, rows in json.loads(PATH.read_text("utf-8")).items():
            name = sql.Identifier(schema, table)
            connection.execute(insert.format(name, sql.Literal(json.dumps(rows))))


def main() -> None:
    """Write the file of the newest version, unless it is there."""
    if PATH.exists():
        raise SystemExit(f"{PATH} is there already, and stays as it is")
    schema = new_schema()
    store = PostgresStore(the_cluster().url_of(schema))
    fill(store)
    store.close()
    text = json.dumps(rows_of(the_cluster(), schema), indent=1, sort_keys=True)
    PATH.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
