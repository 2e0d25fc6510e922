"""Workers that share a PostgreSQL store: speed, fairness, what many waiting threads cost.

The ratios of speed are in ``fleet_speed``. Beside them:

- ``fair_s``: seconds until the first run of a tenant starts, behind 20,000 queued runs of another.
  A real worker runs 100 at a time; each run has one node, which does nothing.
- ``fair_at_limits_s``: the same behind 1,000 tenants at their limit, with 20 due runs each.
- ``claim_growth``: a claim of 100 threads beside 1,000,000 that sleep and 100,000 that are queued,
  in 1,000 tenants, to the same claim with nothing else in the index. Best of several, alternating.
- ``claim_with_full_key``: a claim of 100 threads behind 50,000 due ones of a full limit key,
  to the same claim under the same limit with nothing else in the index.
- ``idle_cpu``: the share of a core that a worker takes which has nothing to do, beside 1,000,000
  that sleep. The server's share is not in it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from functools import cache
from threading import Event
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from benchmarks.alternating import Peer, best_of
from benchmarks.fleet_speed import NAMES, Speeds, speeds
from benchmarks.postgres_server import fresh_schema, postgres_server
from benchmarks.report import Report, columns
from milecastle import END, START, App, StateGraph
from milecastle.fleet.worker import Worker
from milecastle.ports.limits import Limit
from milecastle.stores.postgres import PostgresStore

if TYPE_CHECKING:
    from tests.postgres_cluster import Cluster

BATCH = 100
_GROUP = 500
_BUFFERS = "1GB"
"""Enough for the indexes of a million threads, as on a server that has as many."""
_LATER = 4_000_000_000_000_000
_FILL = """
INSERT INTO {schema}.threads (
    tenant, thread, fence, run_id, status, graph, started_at, told, lane, due_at, worker
)
SELECT
    'tenant ' || number % {tenants}, {name} || number, 1, 'run', 'queued', 'fair', 1, true,
    '{lane}', {due}, ''
FROM generate_series(1, {count}) AS number
"""


class Scale(msgspec.Struct, frozen=True):
    """How much is measured."""

    queued: int = 20_000
    sleeping: int = 1_000_000
    waiting: int = 100_000
    tenants: int = 1000
    rounds: int = 40
    idle: float = 20.0
    blocked: int = 50_000


QUICK = Scale(2000, 50_000, 20_000, 200, 10, 3.0, 20_000)


class Nothing(TypedDict):
    n: int


def measure(*, quick: bool = False) -> Report:
    """Measure on a private server; no figures where there is no PostgreSQL."""
    scale = QUICK if quick else Scale()
    own = ("fair_s", "fair_at_limits_s", "claim_growth", "claim_with_full_key", "idle_cpu")
    names = (*NAMES, *own)
    found: dict[str, float | None] = dict.fromkeys(names)
    with postgres_server(shared_buffers=_BUFFERS) as cluster:
        if cluster is not None:
            found |= speeds(cluster, Speeds(100, 30, 50, 5, 1) if quick else Speeds())
            found["fair_s"] = round(fairness(cluster, scale), 3)
            found["fair_at_limits_s"] = round(fairness_at_limits(cluster, scale), 3)
            found |= growth(cluster, scale)
            found["claim_with_full_key"] = round(full_key(cluster, scale), 3)
    rows = [("figure", "")]
    rows += [(name, "-" if value is None else f"{value:.3f}") for name, value in found.items()]
    return Report(figures=found, table=columns(rows))


def fairness(cluster: Cluster, scale: Scale) -> float:
    """Seconds from the submit of a tenant's first run to its start, behind many of another."""
    with (
        fresh_schema(cluster) as schema,
        closing(PostgresStore(cluster.url_of(schema))) as store,
    ):
        started = Event()
        many, few = (_app(store, tenant, started) for tenant in ("many", "few"))
        for first in range(0, scale.queued, _GROUP):
            numbers = range(first, min(first + _GROUP, scale.queued))
            many.submit_many({f"{number}": {"n": 0} for number in numbers})
        return asyncio.run(_first_start(many, few, started))


def fairness_at_limits(cluster: Cluster, scale: Scale) -> float:
    """Seconds from the submit of a tenant's first run to its start, behind many held back."""
    with (
        fresh_schema(cluster) as schema,
        closing(PostgresStore(cluster.url_of(schema))) as store,
    ):
        started = Event()
        many, few = (_app(store, tenant, started) for tenant in ("many", "zz few"))
        for number in range(scale.tenants):
            store.set_limit(Limit(tenant=f"tenant {number}", concurrency=0))
        _fill(cluster, schema, scale, "held ", scale.queued, "number")
        many.submit({"n": 0}, "first")
        return asyncio.run(_first_start(many, few, started))


def _app(store: PostgresStore | None, tenant: str, started: Event) -> App[Nothing]:
    graph: StateGraph[Nothing] = StateGraph(Nothing, name="fair")

    async def work(state: Nothing) -> dict[str, Any]:
        if state["n"]:
            started.set()
        return {}

    graph.add_node("work", work)
    graph.add_edges(START, "work", END)
    return graph.compile(store=store, tenant=tenant)


async def _first_start(many: App[Nothing], few: App[Nothing], started: Event) -> float:
    worker = Worker([many])
    running = asyncio.create_task(worker.run())
    while not many.store.threads("many", status="completed", limit=1):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    begun = time.perf_counter()
    await few.asubmit({"n": 1}, "first")
    if not await asyncio.to_thread(started.wait, 120):
        raise TimeoutError("the run did not start within two minutes")
    took = time.perf_counter() - begun
    worker.stop()
    await running
    return took


def growth(cluster: Cluster, scale: Scale) -> dict[str, float]:
    """What a claim and an idle worker cost beside many threads that sleep and wait."""
    with fresh_schema(cluster) as full, fresh_schema(cluster) as empty:
        stores = {name: PostgresStore(cluster.url_of(name)) for name in (full, empty)}
        _fill(cluster, full, scale, "asleep ", scale.sleeping, f"{_LATER} + number")
        idle = asyncio.run(_idle(stores[full], scale.idle))
        _fill(cluster, full, scale, "queued ", scale.waiting, "number")
        cluster.execute(f"VACUUM ANALYZE {full}.threads".encode())
        peers = [
            Peer("beside", lambda: _claim(stores[full]), 1),
            Peer("alone", lambda: _claim_alone(cluster, empty, stores[empty], scale), 1),
        ]
        best = best_of(scale.rounds, peers)
        for store in stores.values():
            store.close()
    return {
        "claim_growth": round(best["beside"] / best["alone"], 3),
        "idle_cpu": round(idle, 4),
    }


def full_key(cluster: Cluster, scale: Scale) -> float:
    """What a claim costs behind many due threads of a limit key at its limit."""
    with fresh_schema(cluster) as full, fresh_schema(cluster) as empty:
        stores = {name: PostgresStore(cluster.url_of(name)) for name in (full, empty)}
        for store in stores.values():
            store.set_limit(Limit(key="customer", concurrency=1))
        scale = msgspec.structs.replace(scale, tenants=1)
        _fill(cluster, full, scale, "blocked ", scale.blocked, "number")
        cluster.execute(f"UPDATE {full}.threads SET limit_key = 'customer=c7'".encode())
        cluster.execute(f"VACUUM ANALYZE {full}.threads".encode())
        if len(stores[full].claim("other", [_lane()], limit=BATCH)) != 1:
            raise AssertionError("the key is not at its limit")

        def claim(schema: str) -> float:
            cluster.execute(f"DELETE FROM {schema}.threads WHERE limit_key = '~'".encode())
            _fill(cluster, schema, scale, "queued ", BATCH, "100000 + number")
            return _claim(stores[schema])

        peers = [Peer("full", lambda: claim(full), 1), Peer("empty", lambda: claim(empty), 1)]
        best = best_of(scale.rounds, peers)
        for store in stores.values():
            store.close()
    return best["full"] / best["empty"]


def _fill(cluster: Cluster, schema: str, scale: Scale, name: str, count: int, due: str) -> None:
    given = {"lane": _lane(), "tenants": scale.tenants, "name": f"'{name}'", "count": count}
    cluster.execute(_FILL.format(schema=schema, due=due, **given).encode())


def _claim(store: PostgresStore) -> float:
    lanes = [_lane()]
    begun = time.perf_counter()
    lines = store.claim("worker", lanes, limit=BATCH)
    took = time.perf_counter() - begun
    if len(lines) != BATCH:
        raise AssertionError(f"{len(lines)} threads were claimed")
    return took


def _claim_alone(cluster: Cluster, schema: str, store: PostgresStore, scale: Scale) -> float:
    cluster.execute(f"DELETE FROM {schema}.threads".encode())
    _fill(cluster, schema, scale, "queued ", BATCH, "number")
    return _claim(store)


async def _idle(store: PostgresStore, seconds: float) -> float:
    """The share of a core that this process takes while a worker has nothing to do."""
    worker = Worker([_app(store, "default", Event())])
    running = asyncio.create_task(worker.run())
    await asyncio.sleep(2.0)
    begun, used = time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    share = (time.process_time() - used) / (time.perf_counter() - begun)
    worker.stop()
    await running
    return share


@cache
def _lane() -> str:
    """Where a worker of this graph looks."""
    return _app(None, "default", Event()).runner.lane
