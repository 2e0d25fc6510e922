"""A page of a list of a tenant costs what is on it: the databases say how they would find it.

Seen to fail without the indexes of the third migration: SQLite sorted, PostgreSQL read it all.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from milecastle.stores.postgres import PostgresStore
from milecastle.stores.postgres.statements import Statements
from milecastle.stores.sqlite import SqliteStore
from milecastle.stores.sqlite.queries import SQL
from milecastle.testing.contract_tags import tagged
from milecastle.testing.entries import Writer, a_key
from tests.postgres_cluster import needs_postgres, new_schema, the_cluster

LISTS = {
    "recent_threads": ("t", 9, "x", 5),
    "recent_threads_of_status": ("t", "running", 9, "x", 5),
    "waking_threads": ("t", 9, 1, "x", 5),
    "recent_runs": ("t", 9, 9, 9, 5),
    "recent_runs_of_status": ("t", "running", 9, 9, 9, 5),
}


@pytest.mark.parametrize("name", LISTS)
def test_sqlite_seeks_and_sorts_nothing(name: str, tmp_path: Path) -> None:
    SqliteStore(tmp_path / "a.db").close()
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        rows = connection.execute(f"EXPLAIN QUERY PLAN {SQL[name]}", LISTS[name]).fetchall()
    plan = [str(row[3]) for row in rows]
    assert plan
    assert all(line.startswith("SEARCH ") for line in plan), plan
    assert "INDEX" in plan[0]


def test_sqlite_lists_by_tag_from_the_key_of_tags(tmp_path: Path) -> None:
    """Fails without the key of tags, or if SQLite may begin with the threads."""
    SqliteStore(tmp_path / "a.db").close()
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        rows = connection.execute(
            f"EXPLAIN QUERY PLAN {SQL['tagged_threads']}", ("t", "blue", "x", 5)
        ).fetchall()
    assert [str(row[3]) for row in rows] == [
        "SEARCH g USING PRIMARY KEY (tenant=? AND tag=? AND thread>?)",
        "SEARCH t USING INTEGER PRIMARY KEY (rowid=?)",
    ]


@needs_postgres
@pytest.mark.parametrize(
    "name",
    [
        "recent_threads",
        "recent_threads_by_status",
        "waking_threads",
        "recent_runs",
        "recent_runs_by_status",
    ],
)
def test_postgresql_seeks_and_sorts_nothing(name: str) -> None:
    """With rows of several tenants, and with statistics: an empty table would be read whole."""
    schema, cluster = new_schema(), the_cluster()
    store = PostgresStore(cluster.url_of(schema))
    for number in range(300):
        Writer(a_key(f"{number}", f"tenant {number % 3}"), number + 1).begin(store)
    store.close()
    query = getattr(Statements(schema), name)
    place = {"changed": 2**62, "thread": "", "place": 2**62, "number": 0, "wake_at": 0}
    asked = {"tenant": "tenant 1", "status": "running", "until": 2**62, "limit": 5, **place}
    with cluster.connect() as connection:
        connection.execute(f"ANALYZE {schema}.threads".encode())
        connection.execute(f"ANALYZE {schema}.runs".encode())
        nodes = list(plan_of(connection, query, asked))
    kinds = {node["Node Type"] for node in nodes}
    assert kinds <= {"Limit", "Index Scan", "Index Only Scan"}, kinds
    assert not [node for node in nodes if node.get("Filter")]


@needs_postgres
def test_postgresql_lists_by_tag_from_the_key_of_tags() -> None:
    """Each tag of a page leads to one line of the index; no other thread is looked at.

    Fails without the primary key of tags, or with one in another order: it then sorts.
    """
    schema, cluster = new_schema(), the_cluster()
    store = PostgresStore(cluster.url_of(schema))
    for number in range(300):
        tagged(store, f"{number}", f"tag {number % 2}", number=number + 1, tenant=f"t{number % 3}")
    store.close()
    asked = {"tenant": "t1", "tag": "tag 1", "from": "", "after": "", "limit": 5}
    with cluster.connect() as connection:
        connection.execute(f"ANALYZE {schema}.threads".encode())
        connection.execute(f"ANALYZE {schema}.tags".encode())
        nodes = list(plan_of(connection, Statements(schema).tagged_threads, asked))
    kinds = {node["Node Type"] for node in nodes}
    assert kinds <= {"Limit", "Nested Loop", "Index Scan", "Index Only Scan"}, kinds
    assert {node["Index Name"] for node in nodes if "Index Name" in node} == {
        "tags_pkey",
        "threads_pkey",
    }


def plan_of(
    connection: psycopg.Connection[Any], query: bytes, asked: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    (found,) = connection.execute(b"EXPLAIN (FORMAT JSON) " + query, asked).fetchone() or ("[]",)
    waiting = [one["Plan"] for one in (json.loads(found) if isinstance(found, str) else found)]
    while waiting:
        node = waiting.pop()
        waiting += node.get("Plans", [])
        yield node
