"""A claim costs what is claimed: the databases say how they would find it, and it is measured.

Seen to fail without the indexes of the fourth migration (SQLite sorted, PostgreSQL read it all),
and without the last limit of take.sql: PostgreSQL expected so much that it compiled the plan. The
meters of rates by key were all read by each claim, and again by the statement that drops old ones.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from milecastle.stores.postgres import PostgresStore
from milecastle.stores.postgres.statements import Statements
from milecastle.stores.sqlite import SqliteStore
from milecastle.stores.sqlite.queries import SQL
from milecastle.testing.contract_claims import a_worker
from tests.contract.test_plans_of_lists import plan_of
from tests.postgres_cluster import needs_postgres, new_schema, the_cluster

SEEKS: dict[str, tuple[Any, ...]] = {
    "due_threads": ("lane", 9, 5),
    "first_due": ("lane",),
    "next_group": ("lane", "tenant", "key=value", 0),
    "due_in_group": ("lane", "tenant", "key=value", 0, 9, 5),
    "claimed_threads": ("one",),
    "count_claimed": ("one",),
    "next_claimant": ("one",),
    "key_meter": ("graph", "tenant", "key=value", 9),
    "drop_key_meters": (9,),
}


@pytest.mark.parametrize("name", SEEKS)
def test_sqlite_seeks_and_sorts_nothing(name: str, tmp_path: Path) -> None:
    SqliteStore(tmp_path / "a.db").close()
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        rows = connection.execute(f"EXPLAIN QUERY PLAN {SQL[name]}", SEEKS[name]).fetchall()
    plan = [str(row[3]) for row in rows]
    assert plan
    sought = "SEARCH threads USING", "SEARCH key_meters USING"
    assert all(line.startswith(sought) for line in plan), plan


COMPILED = 100_000
"""From this cost on, PostgreSQL compiles a plan first."""
SLEEPING, QUEUED, LANES = 200_000, 20_000, 4
FILL = """
INSERT INTO {schema}.threads (
    tenant, thread, fence, run_id, status, graph, started_at, told, lane, due_at, worker
)
SELECT
    'tenant ' || number %% 100, 'thread ' || number, 1, 'run', 'queued', 'graph', 1, true,
    'lane ' || number %% {lanes},
    CASE WHEN number > {queued} THEN 4000000000000000 + number ELSE number END, ''
FROM generate_series(1, {queued} + {sleeping}) AS number
"""
METERS = """
INSERT INTO {schema}.key_meters (begun, until, used, is_full, graph, tenant, limit_key)
SELECT 1, 4000000000000000, 9, number % 2 = 0, '', '', 'key=' || number
FROM generate_series(1, 50000) AS number
"""
ASKED: dict[str, dict[str, Any]] = {
    "look": {
        "lanes": ["lane 1", "lane 3"],
        "after_tenants": ["", "tenant 3"],
        "after_keys": ["", "~"],
        "graphs": ["lane 1", "lane 3"],
        "shut_lanes": ["lane 1", "lane 1"],
        "shut_tenants": ["tenant 1", "tenant 2"],
        "shut_keys": ["", "key=value"],
        "visits": 9,
        "limit": 100,
    },
    "look_keys": {
        "lanes": ["lane 1", "lane 1"],
        "tenants": ["tenant 1", "tenant 1"],
        "after": ["key=value", ""],
        "until": ["~", "key=value"],
        "graphs": ["lane 1", "lane 1"],
        "shut_lanes": ["lane 1"],
        "shut_tenants": [""],
        "shut_keys": ["key=other"],
        "each": 5,
        "visits": 9,
        "limit": 100,
    },
    "take": {
        "worker": "one",
        "lanes": ["lane 1"],
        "tenants": ["tenant 1"],
        "limit_keys": ["key=value"],
        "ranks": [0],
        "counts": [100],
        "until": 9,
        "limit": 100,
    },
    "take_each": {
        "worker": "one",
        "lanes": ["lane 1", "lane 3"],
        "after_tenants": ["", "tenant 3"],
        "after_keys": ["", "~"],
        "graphs": ["lane 1", "lane 3"],
        "visits": 9,
        "limit": 100,
    },
    "key_meters": {"graphs": ["lane 1"], "limit_keys": ["key=1", "key=2"], "now": 9},
    "drop_key_meters": {},
    "running": {},
    "give_back": {"worker": "one", "tenant": "tenant 1", "thread": "thread 1", "delay": 0},
    "take_from": {"worker": "one", "limit": 100},
    "reclaim": {"timeout": 9, "limit": 100},
    "claimed": {"worker": "one"},
    "due_in": {"lanes": ["lane 1", "lane 3"]},
}


class Full:
    """A schema with many threads that sleep and many that are queued, with statistics or not."""

    def __init__(self, *, queued: int, sleeping: int) -> None:
        self.schema, self.cluster = new_schema(), the_cluster()
        self.store = PostgresStore(self.cluster.url_of(self.schema))
        numbers = {"queued": queued, "sleeping": sleeping, "lanes": LANES, "schema": self.schema}
        self.cluster.execute(FILL.replace("%%", "%").format(**numbers).encode())
        self.cluster.execute(METERS.format(**numbers).encode())

    def analyze(self) -> None:
        for table in ("threads", "key_meters"):
            self.cluster.execute(f"ANALYZE {self.schema}.{table}".encode())

    def seconds(self) -> float:
        """How long a claim of a hundred takes."""
        begun = time.perf_counter()
        lines = self.store.claim("one", ["lane 1"], limit=100)
        took = time.perf_counter() - begun
        assert len(lines) == 100
        return took


@pytest.fixture(scope="module")
def full() -> Iterator[Full]:
    made = Full(queued=QUEUED, sleeping=SLEEPING)
    yield made
    made.store.close()


@needs_postgres
@pytest.mark.parametrize("analyzed", [False, True], ids=["without statistics", "analyzed"])
@pytest.mark.parametrize("name", ASKED)
def test_postgresql_reads_no_whole_table(full: Full, name: str, analyzed: bool) -> None:
    if analyzed:
        full.analyze()
    query = getattr(Statements(full.schema), name)
    with full.cluster.connect() as connection:
        nodes = list(plan_of(connection, query, ASKED[name]))
    read = [node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"]
    assert not {"threads", "key_meters"}.intersection(read)
    assert any("Index" in node["Node Type"] for node in nodes)
    assert nodes[0]["Total Cost"] < COMPILED / 2


@needs_postgres
def test_a_claim_costs_the_same_beside_many_threads(full: Full) -> None:
    """With 200,000 that sleep and 20,000 that wait, at most thrice as with nothing else.

    The best of each counts: a busy machine makes some claims slower, and none faster.
    """
    few = Full(queued=1600 * LANES, sleeping=0)
    full.store.beat(a_worker("one"))
    for each in (full, few):
        each.analyze()
        each.store.claim("one", ["lane 0"], limit=100)
    took = [(few.seconds(), full.seconds()) for _ in range(15)]
    few.store.close()
    alone, beside = (min(each) for each in zip(*took, strict=True))
    assert beside <= 3 * alone, (beside, alone)
