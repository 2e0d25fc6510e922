"""A read costs what is read: PostgreSQL counts the pages that it touches in a short and a long log.

Seen to fail for ``read`` when it found a seq by a join: without statistics it read the whole log
for each rollup, 21 ms for 34 entries of 750 and not 2.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from milecastle.model.checkpoint import DELTA, ROLLUP, SNAPSHOT, Entry, Kind
from milecastle.ports.store import Batch, Store
from milecastle.stores.postgres import PostgresStore
from milecastle.stores.postgres.rows import key_parameters
from milecastle.stores.postgres.statements import Statements
from milecastle.testing.entries import Writer, a_key
from tests.postgres_cluster import needs_postgres, new_schema, the_cluster

JIT_ABOVE_COST = 100_000
"""PostgreSQL's default: what it expects to cost more is compiled before it runs."""

SHORT, LONG, SNAPSHOT_AFTER, ROLLUP_AFTER = 480, 2_980, 500, 50
ASKED: dict[str, dict[str, Any]] = {
    "read": {"seq": None},
    "open": {"seq": None},
    "read_many": {},
    "head": {},
    "history": {"life": None, "before": 2**31, "limit": 20},
    "entries": {"life": None, "after": 100, "limit": 20},
    "locate": {"time": 1_700_000_000_000_200, "id": b""},
    "results": {},
    "read_state": {"seq": None},
    "count_results": {"task": "1:a", "first": "1:a#0", "last": "1:a#:"},
}


def kind_at(seq: int) -> Kind:
    if seq % SNAPSHOT_AFTER == 1:
        return SNAPSHOT
    return ROLLUP if seq % ROLLUP_AFTER == 0 else DELTA


def fill(store: Store, name: str, entries: int) -> Writer:
    """A log of so many entries."""
    writer = Writer(a_key(name)).begin(store)
    while writer.head < entries:
        head = writer.entries[writer.head]
        made: list[Entry] = []
        for _ in range(ROLLUP_AFTER):
            made.append(writer.plan(kind_at(writer.head + 1)))
            writer.keep(made[-1])
        store.commit(Batch(key=writer.key, head=head.seq, head_id=head.id, entries=tuple(made)))
    return writer


class Filled:
    """A schema with a short log and a long one, without statistics at first."""

    def __init__(self) -> None:
        self.schema, self.cluster = new_schema(), the_cluster()
        self.store = PostgresStore(self.cluster.url_of(self.schema))
        for table in ("entries", "results"):
            self.execute(f"ALTER TABLE {self.schema}.{table} SET (autovacuum_enabled = off)")
        self.writers = {size: fill(self.store, str(size), size) for size in (SHORT, LONG)}

    def execute(self, text: str) -> None:
        self.cluster.execute(text.encode())

    def plan(self, options: bytes, query: bytes, asked: dict[str, Any]) -> dict[str, Any]:
        """What PostgreSQL tells of a statement."""
        explain = b"EXPLAIN (" + options + b"FORMAT JSON) "
        with self.cluster.connect() as connection:
            (found,) = connection.execute(explain + query, asked).fetchone() or ("[]",)
        (plan,) = json.loads(found) if isinstance(found, str) else found
        top: dict[str, Any] = plan["Plan"]
        return top

    def pages(self, query: bytes, asked: dict[str, Any]) -> int:
        """How many pages a statement touches."""
        top = self.plan(b"ANALYZE, BUFFERS, ", query, asked)
        return sum(top[f"Shared {how} Blocks"] for how in ("Hit", "Read"))

    def both(self, name: str, asked: dict[str, Any]) -> tuple[int, int]:
        """The pages of a statement in the short log and in the long one."""
        query: Final[bytes] = getattr(Statements(self.schema), name)
        short, long = (self.pages(query, asked | key_of(one)) for one in self.writers.values())
        return short, long


def key_of(writer: Writer) -> dict[str, Any]:
    """The parameters of a statement about one thread, and of one about several."""
    key = writer.key
    several = {"shards": [key.shard], "tenants": [key.tenant], "threads": [key.thread]}
    return {**key_parameters(key), **several}


@pytest.fixture(scope="module")
def filled() -> Iterator[Filled]:
    made = Filled()
    yield made
    made.store.close()


@needs_postgres
@pytest.mark.parametrize("analyzed", [False, True], ids=["without statistics", "analyzed"])
@pytest.mark.parametrize("name", ASKED)
def test_a_read_touches_as_many_pages_of_a_long_log(
    filled: Filled, name: str, analyzed: bool
) -> None:
    if analyzed:
        filled.execute(f"ANALYZE {filled.schema}.entries, {filled.schema}.results")
    short, long = filled.both(name, ASKED[name])
    assert long <= 1.5 * short + 10, (short, long)


@needs_postgres
def test_a_read_of_many_threads_is_not_compiled(filled: Filled) -> None:
    """Fails if the planner knows how many threads are read: compiling took 270 ms, the read 4."""
    key = next(iter(filled.writers.values())).key
    columns = {"shards": key.shard, "tenants": key.tenant, "threads": key.thread}
    asked = {column: [value] * 1000 for column, value in columns.items()}
    top = filled.plan(b"", Statements(filled.schema).read_many, asked)
    assert top["Total Cost"] < JIT_ABOVE_COST
