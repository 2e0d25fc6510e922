"""What a call of the PostgreSQL store costs beside 10,000,000 checkpoints of 1,000,000 threads.

Figures are ratios of the time of one call, in the full store to an empty one, alternating, best of
several; at most 1.3 is wanted:

- ``put_growth``: the commit of a step, to a thread that has ten checkpoints.
- ``get_growth``: the read of what rebuilds the newest checkpoint of a thread.
- ``claim_growth``: a worker's claim of 100 queued threads; the others are complete.
- ``page_growth``: a page of a thread's history and a page of the newest threads.

The threads of the full store are copies of one that really ran, made by the server. Each call
meets threads that are drawn at random, the same ones in each run of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import TYPE_CHECKING, TypedDict

from msgspec.structs import replace
from psycopg import sql

from benchmarks.alternating import best_of, timed
from benchmarks.postgres_server import fresh_schema
from milecastle import END, START, StateGraph
from milecastle.model.checkpoint import Entry
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch
from milecastle.stores.postgres import PostgresStore

if TYPE_CHECKING:
    from tests.postgres_cluster import Cluster

TENANT = "default"
STEPS = 9
"""With the input, ten checkpoints."""
CLAIMED = 100
_CALLS = 100
_MODEL = ThreadKey(TENANT, "model")
_LANE = "queued"

_COLUMNS = """
SELECT column_name FROM information_schema.columns
WHERE table_schema = %s AND table_name = %s AND column_name NOT IN ('changed', 'place')
"""
_COPY = """
INSERT INTO {table} ({columns})
SELECT {values} FROM names, {table} AS model WHERE model.thread = 'model'
"""
_COPIED = {"thread": sql.Identifier("names", "name"), "shard": sql.Identifier("names", "shard")}
_QUEUE = """
INSERT INTO {schema}.threads (
    tenant, thread, fence, run_id, status, graph, started_at, told, lane, due_at
)
SELECT 'default', 'queued ' || number, 1, 'run', 'queued', 'count', 1, true, 'queued', number
FROM generate_series(1, %s) AS number
"""


@dataclass(frozen=True, slots=True)
class Scale:
    """How many threads the stores have, small and large, and how often is measured."""

    threads: tuple[int, int] = (1_000, 1_000_000)
    rounds: int = 15


QUICK = Scale(threads=(200, 20_000), rounds=3)


class Count(TypedDict):
    """A number, and a text that is long enough to look like a state."""

    n: int
    text: str


def growth(cluster: Cluster, scale: Scale) -> Mapping[str, float]:
    """The four figures."""
    with ExitStack() as stack:
        small, large = (
            _calls(cluster, stack.enter_context(fresh_schema(cluster)), threads, scale, stack)
            for threads in scale.threads
        )
        cluster.execute(b"VACUUM ANALYZE")
        found = dict[str, float]()
        for name, call in small.items():
            peers = [timed("small", call), timed("large", large[name])]
            best = best_of(scale.rounds, peers)
            found[f"{name}_growth"] = round(best["large"] / best["small"], 3)
        return found


def _calls(
    cluster: Cluster, schema: str, threads: int, scale: Scale, stack: ExitStack
) -> Mapping[str, Callable[[], object]]:
    """A store with so many threads, and what is measured on it."""
    store = stack.enter_context(closing(PostgresStore(cluster.url_of(schema))))
    step = _run_model(store)
    _fill(cluster, schema, threads, queued=CLAIMED * scale.rounds)
    random, ids = Random(threads), count()
    heads = dict[ThreadKey, int]()

    def some() -> list[ThreadKey]:
        return [_key(random.randrange(threads)) for _ in range(_CALLS)]

    def put() -> None:
        for key in some():
            head = heads.get(key, step.seq)
            entry = replace(step, seq=head + 1, id=f"{next(ids):032x}")
            store.commit(Batch(key=key, head=head, entries=(entry,)))
            heads[key] = head + 1

    def get() -> None:
        for key in some():
            if store.read(key) is None:
                raise AssertionError(f"{key} is not in the store")

    def claim() -> None:
        if len(store.claim("worker", [_LANE], limit=CLAIMED)) != CLAIMED:
            raise AssertionError("too few threads were claimed")

    def page() -> None:
        for key in some():
            list(store.history(key, limit=50))
            store.recent_threads(TENANT, limit=50)

    return {"put": put, "get": get, "claim": claim, "page": page}


def _key(number: int) -> ThreadKey:
    return ThreadKey(TENANT, f"thread-{number:07}")


def _run_model(store: PostgresStore) -> Entry:
    """Run the thread that all others are copies of; its last step."""
    graph = StateGraph(Count, name="count")

    def add(state: Count) -> Count:
        return {"n": state["n"] + 1, "text": Random(state["n"]).randbytes(60).hex()}

    graph.add_node("add", add)
    graph.add_edge(START, "add")
    graph.add_conditional_edges(
        "add", lambda state: "add" if state["n"] < STEPS else END, ["add", END]
    )
    graph.compile(store=store).invoke({"n": 0, "text": ""}, _MODEL.thread)
    (step,) = store.entries(_MODEL, after=STEPS)
    return step


def _fill(cluster: Cluster, schema: str, threads: int, queued: int) -> None:
    """Copy the model to so many threads, each in its shard, and queue some more."""
    place = sql.Identifier(schema)
    with cluster.connect() as connection:
        connection.execute("CREATE TEMPORARY TABLE names (name text, shard smallint)")
        with connection.cursor().copy("COPY names FROM STDIN") as copy:
            for number in range(threads):
                key = _key(number)
                copy.write_row((key.thread, key.shard))
        for table in ("entries", "threads", "runs"):
            columns = connection.execute(_COLUMNS, (schema, table)).fetchall()
            names = [sql.Identifier(name) for (name,) in columns]
            values = [_COPIED.get(name, sql.Identifier("model", name)) for (name,) in columns]
            connection.execute(
                sql.SQL(_COPY).format(
                    table=sql.Identifier(schema, table),
                    columns=sql.SQL(", ").join(names),
                    values=sql.SQL(", ").join(values),
                )
            )
        connection.execute(sql.SQL(_QUEUE).format(schema=place), (queued,))
