"""How fast workers run what was submitted. PostgreSQL, private; peers take turns, best of several.

- ``one_step_vs_bare_queue``: runs of one step a second, to jobs of PgQueuer that do one INSERT.
- ``ten_step_vs_in_process``: runs of ten steps a second, to the same runs by ``ainvoke`` here.
- ``submit_vs_commit``: the commit of a submitted run, to the same one that makes nothing due.
- ``latency_vs_bare_queue``: from submit to the start of the node on an idle worker, to a job of
  PgQueuer by its asyncpg driver; the best medians of several rounds, in turn.
- ``vs_dbos``: runs of one step a second, to workflows of one step in a queue of DBOS.
- ``two_processes_vs_one``, ``four_processes_vs_one``: runs of one step a second by so many worker
  processes, from the submit of the first to the end of the last.

What was submitted before the clock starts is not in the figures. A peer that is not installed has
none.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
import msgspec.structs

from benchmarks.alternating import Peer, best_of
from benchmarks.bare import Clock
from benchmarks.postgres_server import fresh_schema
from milecastle import END, START, App, StateGraph
from milecastle.fleet.worker import Worker
from milecastle.ports.store import Batch
from milecastle.records import Handle
from milecastle.stores.postgres import PostgresStore

if TYPE_CHECKING:
    from tests.postgres_cluster import Cluster

__all__ = ["NAMES", "Speeds", "bare_runs", "speeds", "worked"]

NAMES = (
    "one_step_vs_bare_queue",
    "ten_step_vs_in_process",
    "submit_vs_commit",
    "latency_vs_bare_queue",
    "vs_dbos",
    "two_processes_vs_one",
    "four_processes_vs_one",
)

_AT_ONCE = 100

_INPUTS = """
SELECT
    entries.seq + 1, created_at, step, base_seq, roll_seq, told, held, shard, kind, source, tenant,
    thread, id, parent, origin, nodes, next, route, note, payload
FROM {}.entries
"""
_FINISH = """
WITH entry AS (
    INSERT INTO {0}.entries (
        seq, created_at, step, base_seq, roll_seq, told, held, shard, kind, source, tenant, thread,
        id, parent, origin, nodes, next, route, note, payload
    ) VALUES (
        %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s
    ) RETURNING shard, tenant, thread
), line AS (
    UPDATE {0}.threads AS known SET status = 'completed', due_at = NULL, worker = ''
    FROM entry WHERE known.tenant = entry.tenant AND known.thread = entry.thread
)
UPDATE {0}.runs AS known SET status = 'completed'
FROM entry
WHERE known.shard = entry.shard AND known.tenant = entry.tenant AND known.thread = entry.thread
"""


class Speeds(msgspec.Struct, frozen=True):
    """How much is measured."""

    one_step: int = 1500
    ten_step: int = 300
    submits: int = 400
    pings: int = 40
    rounds: int = 3


class Count(TypedDict):
    n: int


def speeds(cluster: Cluster, scale: Speeds) -> dict[str, float | None]:
    """The ratios."""
    found: dict[str, float | None] = dict.fromkeys(NAMES)
    runs = best_of(scale.rounds, [*_throughput(cluster, scale)])
    one, ten = scale.one_step / runs["one"], scale.ten_step / runs["ten"]
    found["ten_step_vs_in_process"] = round(ten * runs["ainvoke"] / scale.ten_step, 3)
    if "pgqueuer" in runs:
        found["one_step_vs_bare_queue"] = round(one * runs["pgqueuer"] / scale.one_step, 3)
    if "dbos" in runs:
        found["vs_dbos"] = round(one * runs["dbos"] / scale.one_step, 3)
    found["submit_vs_commit"] = round(_submitting(cluster, scale), 3)
    found["two_processes_vs_one"] = round(runs["1"] / runs["2"], 3)
    found["four_processes_vs_one"] = round(runs["1"] / runs["4"], 3)
    if _has_pgqueuer():
        rounds = range(scale.rounds)
        pings = [(_pings(cluster, scale.pings), _bare_pings(cluster, scale.pings)) for _ in rounds]
        ours, theirs = (min(each) for each in zip(*pings, strict=True))
        found["latency_vs_bare_queue"] = round(ours / theirs, 3)
    return found


def _has_pgqueuer() -> bool:
    return find_spec("pgqueuer") is not None and find_spec("asyncpg") is not None


def _throughput(cluster: Cluster, scale: Speeds) -> Sequence[Peer]:
    peers = [
        Peer("one", lambda: worked(cluster, scale.one_step, 1)),
        Peer("ten", lambda: worked(cluster, scale.ten_step, 10)),
        Peer("ainvoke", lambda: _invoked(cluster, scale.ten_step)),
        *(Peer(f"{n}", partial(_by_processes, cluster, scale.one_step, n)) for n in (1, 2, 4)),
    ]
    if _has_pgqueuer():
        peers.append(Peer("pgqueuer", lambda: asyncio.run(_bare_jobs(cluster, scale.one_step))))
    if find_spec("dbos") is not None:
        peers.append(Peer("dbos", lambda: _dbos(cluster, scale.one_step)))
    return peers


def _graph(steps: int) -> StateGraph[Count]:
    graph: StateGraph[Count] = StateGraph(Count, name="speed")

    async def work(state: Count) -> dict[str, Any]:
        return {"n": state["n"] + 1}

    graph.add_node("work", work)
    graph.add_edge(START, "work")
    graph.add_edge("work", END, when=lambda state: state["n"] >= steps)
    graph.add_edge("work", "work")
    return graph


one_step = _graph(1)


def _app(store: PostgresStore, steps: int) -> App[Count]:
    return _graph(steps).compile(store=store)


def worked(cluster: Cluster, runs: int, steps: int, clock: Clock = perf_counter) -> float:
    """The seconds in which one worker ends so many runs."""
    with (
        fresh_schema(cluster) as schema,
        closing(PostgresStore(cluster.url_of(schema))) as store,
    ):
        app = _app(store, steps)
        app.submit_many({f"{number}": {"n": 0} for number in range(runs)})
        return asyncio.run(_until_idle(app, clock))


def bare_runs(cluster: Cluster, runs: int, clock: Clock = perf_counter) -> float:
    """The seconds of one statement a run, which writes what a worker does at its end."""
    import psycopg
    from psycopg import sql

    with (
        fresh_schema(cluster) as schema,
        closing(PostgresStore(cluster.url_of(schema))) as store,
        psycopg.connect(cluster.url, autocommit=True) as connection,
    ):
        _app(store, 1).submit_many({f"{number}": {"n": 0} for number in range(runs)})
        given = connection.execute(sql.SQL(_INPUTS).format(sql.Identifier(schema))).fetchall()
        statement = sql.SQL(_FINISH).format(sql.Identifier(schema)).as_bytes(connection)
        cursor = connection.cursor()
        began = clock()
        for row in given:
            cursor.execute(statement, row, prepare=True)
        return clock() - began


async def _until_idle(app: App[Count], clock: Clock) -> float:
    worker = Worker([app])
    began = clock()
    await worker.run_until_idle()
    return clock() - began


def _by_processes(cluster: Cluster, runs: int, processes: int) -> float:
    """The seconds in which so many worker processes end so many runs of one step."""
    with fresh_schema(cluster) as schema, closing(PostgresStore(cluster.url_of(schema))) as store:
        command = [sys.executable, "-m", "milecastle", "worker", f"{__name__}:one_step"]
        command += ["--store", cluster.url_of(schema), "--processes", f"{processes}"]
        worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _until(lambda: len(store.workers()) == processes)
            began = perf_counter()
            one_step.compile(store=store).submit_many({f"{n}": {"n": 0} for n in range(runs)})
            _until(lambda: not store.depths())
            return perf_counter() - began
        finally:
            worker.terminate()
            worker.wait()


def _until(done: Callable[[], bool]) -> None:
    limit = perf_counter() + 300
    while not done():
        if perf_counter() > limit:
            raise TimeoutError("the workers did not do it within five minutes")
        sleep(0.02)


def _invoked(cluster: Cluster, runs: int) -> float:
    """The seconds in which ``ainvoke`` ends so many runs of ten steps, as many at a time."""

    async def run(app: App[Count]) -> float:
        free = asyncio.Semaphore(_AT_ONCE)

        async def one(thread: str) -> None:
            async with free:
                await app.ainvoke({"n": 0}, thread)

        began = perf_counter()
        await asyncio.gather(*(one(f"{number}") for number in range(runs)))
        return perf_counter() - began

    with (
        fresh_schema(cluster) as schema,
        closing(PostgresStore(cluster.url_of(schema))) as store,
    ):
        return asyncio.run(run(_app(store, 10)))


def _submitting(cluster: Cluster, scale: Speeds) -> float:
    """What a commit that makes a thread due costs, to one that does not."""
    with (
        fresh_schema(cluster) as schema,
        closing(_Kept(cluster.url_of(schema))) as store,
    ):
        app = _app(store, 1)
        for number in range(scale.submits):
            app.submit({"n": 0}, f"{number}")
        due, silent = store.batches, [_without_due(batch) for batch in store.batches]
    peers = [
        Peer("due", lambda: _committed(cluster, due)),
        Peer("silent", lambda: _committed(cluster, silent)),
    ]
    best = best_of(scale.rounds, peers)
    return best["due"] / best["silent"]


class _Kept(PostgresStore):
    """A store that keeps what it was given."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.batches: list[Batch] = []

    def commit(self, batch: Batch) -> None:
        """Keep it, and commit it."""
        self.batches.append(batch)
        super().commit(batch)


def _without_due(batch: Batch) -> Batch:
    line = batch.thread and msgspec.structs.replace(batch.thread, lane="", due_at=None)
    return msgspec.structs.replace(batch, thread=line)


def _committed(cluster: Cluster, batches: Sequence[Batch]) -> float:
    with (
        fresh_schema(cluster) as schema,
        closing(PostgresStore(cluster.url_of(schema))) as store,
    ):
        began = perf_counter()
        for batch in batches:
            store.commit(batch)
        return perf_counter() - began


def _pings(cluster: Cluster, count: int) -> float:
    """The median of the seconds from submit to the start of the node, on an idle worker."""

    async def run(store: PostgresStore) -> float:
        started = asyncio.Event()
        graph: StateGraph[Count] = StateGraph(Count, name="ping")

        @graph.node
        async def answer(state: Count) -> dict[str, Any]:
            started.set()
            return {}

        graph.add_edges(START, "answer", END)
        app = graph.compile(store=store)
        worker = Worker([app])
        serving = asyncio.create_task(worker.run())
        await worker.entered.wait()
        times: list[float] = []
        for number in range(count):
            await asyncio.sleep(0.05)
            started.clear()
            began = perf_counter()
            handle: Handle[Count] = await app.asubmit({"n": 0}, f"{number}")
            await started.wait()
            times.append(perf_counter() - began)
            await handle.aresult()
        worker.stop()
        await serving
        return median(times)

    with (
        fresh_schema(cluster) as schema,
        closing(PostgresStore(cluster.url_of(schema))) as store,
    ):
        return asyncio.run(run(store))


async def _bare_queue(cluster: Cluster, jobs: int, pings: int) -> float:
    """Seconds for so many jobs, or the median of pings to an idle manager."""
    asyncpg, db = import_module("asyncpg"), import_module("pgqueuer.db")
    queries_of = import_module("pgqueuer.queries").Queries
    drain = import_module("pgqueuer.types").QueueExecutionMode.drain

    pool = await asyncpg.create_pool(cluster.url, min_size=4, max_size=16)
    queries = queries_of(db.AsyncpgPoolDriver(pool))
    await queries.install()
    await pool.execute("CREATE TABLE jobs_done (id bigint)")
    single = await asyncpg.connect(cluster.url)
    driver = db.AsyncpgDriver(single) if pings else db.AsyncpgPoolDriver(pool)
    manager = import_module("pgqueuer.qm").QueueManager(queries_of(driver))
    started = asyncio.Event()

    async def work(job: Any) -> None:
        started.set()
        if not pings:
            await pool.execute("INSERT INTO jobs_done VALUES ($1)", int(job.id))

    manager.entrypoint("work")(work)

    try:
        if not pings:
            await queries.enqueue(["work"] * jobs, [None] * jobs, [0] * jobs)
            began = perf_counter()
            await manager.run(batch_size=_AT_ONCE, mode=drain)
            return perf_counter() - began
        running = asyncio.create_task(manager.run(batch_size=10))
        await asyncio.sleep(1.0)
        times: list[float] = []
        for _ in range(pings):
            await asyncio.sleep(0.05)
            started.clear()
            began = perf_counter()
            await queries.enqueue("work", None)
            await started.wait()
            times.append(perf_counter() - began)
        manager.shutdown.set()
        await asyncio.wait([running], timeout=35)
        return median(times)
    finally:
        await queries.uninstall()
        await pool.execute("DROP TABLE jobs_done")
        await single.close()
        await pool.close()


async def _bare_jobs(cluster: Cluster, jobs: int) -> float:
    return await _bare_queue(cluster, jobs, 0)


def _bare_pings(cluster: Cluster, count: int) -> float:
    return asyncio.run(_bare_queue(cluster, 0, count))


def _dbos(cluster: Cluster, runs: int) -> float:
    """The seconds in which DBOS, in a process of its own, ends so many queued workflows."""
    command = [sys.executable, "-m", "benchmarks.dbos_queue", cluster.url, str(runs)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    return float(done.stdout.split()[-1])
