"""Claims on PostgreSQL: they wait for nobody, and know no clock but the server's."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from milecastle.errors import Unavailable
from milecastle.model.keys import ThreadKey
from milecastle.ports.limits import Limit
from milecastle.stores.postgres import PostgresStore
from milecastle.stores.postgres.claiming import Claims
from milecastle.testing.contract_claims import LANE, a_worker, names, queued
from milecastle.testing.entries import a_key
from tests.postgres_cluster import (
    Cluster,
    find_binaries,
    needs_postgres,
    new_schema,
    the_cluster,
    wait_until,
)

pytestmark = needs_postgres


class Shared:
    """A store in a schema of its own, whose statements may take two seconds."""

    def __init__(self) -> None:
        self.schema = new_schema()
        options = "-c%20statement_timeout%3D2000"
        self.store = PostgresStore(the_cluster().url_of(self.schema, options=options))

    @contextmanager
    def held(self, key: ThreadKey) -> Generator[None, None, None]:
        """Hold the row of a thread, as a commit does that has not ended."""
        with the_cluster().connect() as connection, connection.transaction():
            query = f"SELECT FROM {self.schema}.threads WHERE tenant = %s AND thread = %s"
            connection.execute(f"{query} FOR UPDATE".encode(), [key.tenant, key.thread])
            yield


@pytest.fixture
def shared() -> Iterator[Shared]:
    made = Shared()
    yield made
    made.store.close()


def test_a_claim_leaves_out_what_is_being_written(shared: Shared) -> None:
    """Seen to fail without SKIP LOCKED: the claim waited until the statement timed out."""
    store = shared.store
    for number, name in enumerate("ab", 1):
        queued(store, name, number)
    with shared.held(a_key("a")):
        assert names(store.claim("one", [LANE], limit=1)) == ["b"]
        assert store.claim("one", [LANE], limit=9) == []
    assert names(store.claim("one", [LANE], limit=9)) == ["a"]


def by_tenant(store: PostgresStore, lanes: Sequence[str], limit: int) -> list[str]:
    """The lanes, tenants and threads that a claim gets, in their order."""
    found = store.claim("one", lanes, limit=limit)
    return sorted(f"{line.lane} {line.key.tenant}{line.key.thread}" for line in found)


def test_one_thread_of_each_tenant_is_claimed_by_one_statement(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a look has seen more tenants than a claim asks for, claims look no more.

    Fails if take_each.sql takes two ranks of a tenant, what sleeps, or what is being written, if
    it overlooks a limit, or if the next claim begins where the last one began.
    """
    store, looks = shared.store, list[int]()
    for number, name in enumerate("abcdef"):
        for thread in range(3):
            queued(store, f"{thread}", 10 * number + thread, tenant=name, lane="x", due_at=number)
    queued(store, "9", 91, tenant="c", lane="x", priority=1, due_at=99)
    queued(store, "8", 92, tenant="d", lane="x", priority=2, due_at=2**60)
    assert by_tenant(store, ["x"], 2) == ["x a0", "x b0"]
    look = Claims._look  # pyright: ignore[reportPrivateUsage]

    def looked(*given: Any) -> Any:
        looks.append(1)
        return look(*given)

    monkeypatch.setattr(Claims, "_look", looked)
    assert by_tenant(store, ["x"], 2) == ["x c9", "x d0"]
    with shared.held(ThreadKey("e", "0")):
        assert by_tenant(store, ["x"], 2) == ["x f0"]
    assert by_tenant(store, ["x"], 2) == ["x a1", "x b1"]
    assert looks == []
    store.set_limit(Limit(tenant="c", paused=True))
    left = [name for _ in range(9) for name in by_tenant(store, ["x"], 2)]
    assert left
    assert not any(name.startswith("x c") for name in left)


def test_a_lane_with_few_tenants_has_its_turn_among_many(shared: Shared) -> None:
    """Fails if a lane that was served to its end does not begin again."""
    store = shared.store
    for number in range(60):
        queued(store, f"{number:02}", number, tenant="abcdefghij"[number % 10], lane="x")
    for number in range(6):
        queued(store, f"{number}", 100 + number, tenant="pq"[number % 2], lane="y")
    served = [line for _ in range(10) for line in by_tenant(store, ["x", "y"], 3)]
    assert len(served) == 30
    assert [line for line in sorted(served) if line[0] == "y"] == [
        *("y p0", "y p2", "y p4", "y q1", "y q3", "y q5")
    ]


def test_reclaim_and_retire_leave_out_what_is_being_written(shared: Shared) -> None:
    """Seen to fail without SKIP LOCKED. What was left out is found by the next ``reclaim``."""
    store = shared.store
    for number, name in enumerate("abcd", 1):
        queued(store, name, number)
    store.beat(a_worker("known"))
    store.claim("known", [LANE], limit=2)
    store.claim("unknown", [LANE], limit=2)
    with shared.held(a_key("c")):
        assert store.reclaim(3600) == 1
    assert store.reclaim(3600) == 1
    with shared.held(a_key("a")):
        assert store.retire("known") == 1
        assert list(store.workers()) == []
    assert store.reclaim(3600) == 1
    assert sorted(names(store.claim("one", [LANE], limit=9))) == ["a", "b", "c", "d"]


def test_a_worker_that_beats_at_this_moment_is_not_silent(shared: Shared) -> None:
    """Seen to fail if the silent are chosen without a lock: its threads were taken."""
    store = shared.store
    queued(store, "a")
    store.beat(a_worker("one"))
    store.claim("one", [LANE], limit=1)
    time.sleep(0.05)
    with the_cluster().connect() as connection, connection.transaction():
        connection.execute(f"UPDATE {shared.schema}.workers SET beat_at = beat_at".encode())
        assert store.reclaim(0.01) == 0
    assert store.claimed("one") == [a_key("a")]
    assert store.reclaim(0.01) == 1


@pytest.mark.parametrize("offset", [-(10**17), 10**17], ids=["behind", "ahead"])
def test_the_clock_of_a_client_decides_nothing(
    shared: Shared, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    """Three years off. Seen to fail with the client's time in place of 0."""
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + offset)
    monkeypatch.setattr(time, "time", lambda: real() + offset / 1e9)
    monkeypatch.setattr("milecastle.ports.claims.time_ns", lambda: real_ns() + offset)
    store = shared.store
    queued(store, "a")
    store.beat(a_worker("one"))
    due = store.due_in([LANE])
    assert due is not None
    assert -60 < due <= 0
    assert names(store.claim("one", [LANE], limit=1)) == ["a"]
    assert store.reclaim(60) == 0
    assert store.workers()[0].silent < 60


def test_a_claim_without_an_answer_is_not_repeated(shared: Shared) -> None:
    """Seen to fail if it is retried: the second one returned nothing, and the first was lost."""
    store = shared.store
    queued(store, "a")
    with ThreadPoolExecutor(1) as pool:
        with the_cluster().connect() as holder, holder.transaction():
            holder.execute(f"LOCK TABLE {shared.schema}.threads IN EXCLUSIVE MODE".encode())
            claim = pool.submit(store.claim, "one", [LANE], limit=1)
            end_the_waiting(holder)
        with pytest.raises(Unavailable, match=r"claimed\(\) says"):
            claim.result(timeout=60)
    assert store.claimed("one") == []
    assert names(store.claim("one", [LANE], limit=1)) == ["a"]


def end_the_waiting(holder: psycopg.Connection[tuple[object, ...]]) -> None:
    """End the session that waits for a lock of this one."""
    query = (
        b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        b"WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))"
    )
    for _ in range(300):
        if holder.execute(query).fetchall():
            return
        time.sleep(0.01)
    raise AssertionError("nobody waited")


def test_a_claim_does_not_wait_for_the_disk() -> None:
    """Whatever waits for its commit to be durable waits for a replica that does not come.

    Seen to fail without ``synchronous_commit`` in take_all.sql, and without it in take.sql.
    """
    binaries = find_binaries()
    assert binaries
    cluster = Cluster(binaries)
    try:
        with closing(PostgresStore(cluster.url_of("calm"))) as store, ThreadPoolExecutor(1) as pool:
            for number, name in enumerate("abc", 1):
                queued(store, name, number)
            _wait_for_replica(cluster, "nobody")
            try:
                for left in (2, 1):
                    claim = pool.submit(store.claim, "one", [LANE], limit=2)
                    assert len(claim.result(timeout=20)) == left
            finally:
                _wait_for_replica(cluster, "")
    finally:
        cluster.remove()


def _wait_for_replica(cluster: Cluster, name: str) -> None:
    with cluster.connect() as admin:
        admin.autocommit = True
        admin.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'".encode())
        admin.execute("SELECT pg_reload_conf()")
    wait_until(lambda: _setting(cluster) == name)


def _setting(cluster: Cluster) -> str:
    with cluster.connect() as admin:
        (found,) = admin.execute("SHOW synchronous_standby_names").fetchone() or ("",)
        return str(found)
