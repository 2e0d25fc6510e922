"""Long-term memory costs what is read or written, however many items a tenant has.

Seen to fail for the sweep, whose time was compared row by row: it read every item with an end.
"""

from __future__ import annotations

from typing import Any

import pytest

from milecastle.stores.postgres import PostgresStore
from milecastle.stores.postgres.statements import Statements
from tests.contract.test_plans_of_lists import plan_of
from tests.postgres_cluster import Cluster, needs_postgres, new_schema, the_cluster

FILL = """
INSERT INTO {schema}.memories (
    version, created_at, updated_at, expires_at, seq, tenant, path, key, subject, thread, model,
    words, value, vectors
)
SELECT
    1, 1, 1, 4000000000000000 + number, 0, 'tenant ' || number % 4,
    convert_to('users' || number % 100, 'utf8') || '\\x00', 'key ' || number,
    'subject ' || number % 1000, '', '', '{{}}', 'value', ''
FROM generate_series(1, 50000) AS number
"""
ASKED: dict[str, dict[str, Any]] = {
    "memory_get": {"path": b"users1\0", "key": "key 1"},
    "memory_scan": {"path": b"users1\0", "key": "", "end": b"users1\0\xff", "limit": 100},
    "memory_paths": {"after": b"", "end": b"\xff", "limit": 100},
    "memory_touch": {"paths": [b"users1\0"], "keys": ["key 1"]},
    "memory_erase": {"subject": "subject 1"},
    "memory_sweep": {"limit": 100},
}


@pytest.fixture(scope="module")
def full() -> tuple[Cluster, str]:
    """A schema with 50,000 items of four tenants."""
    schema, cluster = new_schema(), the_cluster()
    PostgresStore(cluster.url_of(schema)).close()
    cluster.execute(FILL.format(schema=schema).encode())
    return cluster, schema


@needs_postgres
@pytest.mark.parametrize("analyzed", [False, True], ids=["without statistics", "analyzed"])
@pytest.mark.parametrize("name", ASKED)
def test_postgresql_reads_what_is_asked(
    full: tuple[Cluster, str], name: str, analyzed: bool
) -> None:
    cluster, schema = full
    if analyzed:
        cluster.execute(f"ANALYZE {schema}.memories".encode())
    query = getattr(Statements(schema), name)
    with cluster.connect() as connection:
        nodes = list(plan_of(connection, query, {"tenant": "tenant 1", **ASKED[name]}))
    items = [node for node in nodes if node.get("Relation Name") == "memories"]
    read = [node for node in items if node["Node Type"] not in ("ModifyTable", "LockRows")]
    assert read
    for node in read:
        assert node["Node Type"] != "Seq Scan", node
        by_end = node.get("Index Name") == "memories_by_end"
        wanted = "expires_at <= " if by_end else "tenant"
        assert wanted in node.get("Index Cond", "") + node.get("Recheck Cond", ""), node
