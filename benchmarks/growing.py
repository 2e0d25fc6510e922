"""Growing threads, and where they are stored.

An item is 400 random printable letters: no repetition is there to be found, and what is left to
a compressor is that a letter has 6.6 bits and takes 8.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Protocol, TypedDict

import msgspec.structs

from milecastle import END, START, ExecutionOptions, StateGraph, append
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch, Store
from milecastle.stores.memory import MemoryStore
from milecastle.stores.opening import find_store

if TYPE_CHECKING:
    from tests.postgres_cluster import Cluster

ITEM = 400
VALUE = 100_000
OTHER = 10_000
KEY = ThreadKey("default", "loop")

_LETTERS = string.ascii_letters + string.digits + string.punctuation + " "
_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    steps: int = 1_000
    checkpoints: int = 100_000
    their_steps: int = 100
    overwrites: int = 50
    rounds: int = 15


QUICK = Size(steps=50, checkpoints=1_000, their_steps=10, overwrites=5, rounds=3)


class Items(TypedDict):
    """A list that grows."""

    items: Annotated[list[str], append]


class Counted(TypedDict):
    """A number and one item, overwritten each step: cheap to run for very long."""

    n: int
    item: str


class Wide(TypedDict):
    """One large value among ten others."""

    n: int
    value: bytes
    a: bytes
    b: bytes
    c: bytes
    d: bytes
    e: bytes
    f: bytes
    g: bytes
    h: bytes
    i: bytes
    j: bytes


def make_items(count: int) -> list[str]:
    """The items of so many steps, the same ones each time."""
    random = Random(7)
    return ["".join(random.choices(_LETTERS, k=ITEM)) for _ in range(count)]


def wide_state() -> Wide:
    """What the thread with the large value begins with."""
    a, b, c, d, e, f, g, h, i, j = (Random(name).randbytes(OTHER) for name in "abcdefghij")
    return Wide(n=0, value=b"", a=a, b=b, c=c, d=d, e=e, f=f, g=g, h=h, i=i, j=j)


def make_value(number: int) -> bytes:
    """The large value of a step."""
    return Random(number).randbytes(VALUE)


def grow(store: Store, items: Sequence[str]) -> None:
    """Run a thread that appends the items, one a step."""

    def add(state: Items) -> Items:
        return {"items": [items[len(state["items"])]]}

    def route(state: Items) -> str:
        return "add" if len(state["items"]) < len(items) else END

    graph = StateGraph(Items)
    graph.add_node("add", add)
    graph.add_edge(START, "add")
    graph.add_conditional_edges("add", route, ["add", END])
    options = ExecutionOptions(max_steps=len(items))
    result = graph.compile(store=store).invoke({"items": []}, KEY, options=options)
    if result.state["items"] != items:
        raise AssertionError("the list did not grow as it should")


def overwrite(store: Store, steps: int) -> None:
    """Run a thread that overwrites a large value each step and leaves ten others alone."""

    def turn(state: Wide) -> dict[str, object]:
        return {"n": state["n"] + 1, "value": make_value(state["n"])}

    graph = StateGraph(Wide)
    graph.add_node("turn", turn)
    graph.add_edge(START, "turn")
    graph.add_conditional_edges(
        "turn", lambda state: "turn" if state["n"] < steps else END, ["turn", END]
    )
    options = ExecutionOptions(max_steps=steps)
    graph.compile(store=store).invoke(wide_state(), KEY, options=options)


class Recording(MemoryStore):
    """Stores only the batches of a run."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Batch] = []

    def commit(self, batch: Batch) -> None:
        """Keep the batch."""
        self.batches.append(batch)


def record_count(steps: int) -> list[Batch]:
    """The batches of a thread of so many steps, joined to large ones: quick to write anywhere."""
    items = make_items(_AT_ONCE)

    def count(state: Counted) -> Counted:
        n = state["n"] + 1
        return {"n": n, "item": items[n % _AT_ONCE]}

    graph = StateGraph(Counted)
    graph.add_node("count", count)
    graph.add_edge(START, "count")
    graph.add_conditional_edges(
        "count", lambda state: "count" if state["n"] < steps else END, ["count", END]
    )
    recording = Recording()
    options = ExecutionOptions(max_steps=steps)
    graph.compile(store=recording).invoke({"n": 0, "item": ""}, KEY, options=options)
    found = recording.batches
    return [_joined(found[at : at + _AT_ONCE]) for at in range(0, len(found), _AT_ONCE)]


def _joined(batches: Sequence[Batch]) -> Batch:
    """One batch with the effect of these; a run's newest record represents it."""
    runs = {run.run_id: run for batch in batches for run in batch.runs}
    return msgspec.structs.replace(
        batches[0],
        entries=tuple(entry for batch in batches for entry in batch.entries),
        runs=tuple(runs.values()),
    )


class Keeper(Protocol):
    """Where stores are made and weighed."""

    def open(self, name: str) -> Store:
        """Open the store of that name."""
        ...

    def size(self, name: str) -> int:
        """The bytes on disk of a store that is closed."""
        ...

    def settle(self) -> None:
        """Do the background work that the database would do when idle, before it is read."""
        ...


class SqliteKeeper:
    """Files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, name: str) -> Store:
        """Open a file; durability is not what is measured here."""
        return find_store(f"sqlite:///{self._folder / name}.db?synchronous=normal")

    def size(self, name: str) -> int:
        """The file and its side files."""
        return sum(file.stat().st_size for file in self._folder.glob(f"{name}.db*"))

    def settle(self) -> None:
        """Nothing: SQLite has no background work."""


class PostgresKeeper:
    """Schemas in a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def open(self, name: str) -> Store:
        """Open a schema; durability is not what is measured here."""
        return find_store(self._cluster.url_of(name, synchronous_commit="off"))

    def size(self, name: str) -> int:
        """Every table with its indexes and TOAST data."""
        return schema_size(self._cluster, name)

    def settle(self) -> None:
        """Gather statistics, as autovacuum does within a minute."""
        self._cluster.execute(b"ANALYZE")


def schema_size(cluster: Cluster, schema: str) -> int:
    """Bytes of the tables of a schema, with indexes and TOAST."""
    from psycopg import sql

    query = sql.SQL(
        "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class AS c "
        "JOIN pg_namespace AS n ON n.oid = c.relnamespace "
        "WHERE c.relkind = 'r' AND n.nspname = {}"
    ).format(sql.Literal(schema))
    ((size,),) = cluster.execute(query)
    if not isinstance(size, int):
        raise LookupError(schema)
    return size
