"""What a long thread takes on disk and to read: SQLite and PostgreSQL, LangGraph beside them.

Each step appends an item of 400 bytes to a list. Bytes on disk are those of the closed SQLite
file, and of all tables, indexes and TOAST of the PostgreSQL schema. Figures are ratios, and less
is better:

- ``bytes_vs_raw``: bytes on disk after 1,000 steps, to the bytes of the items.
- ``10x``: bytes on disk after 10,000 steps, to those after 1,000.
- ``head_vs_snapshot``: reading and decoding the head after 10,000 steps, to reading and decoding
  one row that holds the same state.
- ``page_growth``: a page of 100 history entries out of 100,000, the newest or the oldest, to one
  out of 100.

LangGraph stores every state whole, so that 10,000 steps would be 20 GB: its long thread has 1,000
steps, and its short one 100.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import msgspec.structs

from benchmarks.alternating import best_of, timed
from benchmarks.growing import (
    ITEM,
    KEY,
    QUICK,
    VALUE,
    Keeper,
    PostgresKeeper,
    Size,
    SqliteKeeper,
    grow,
    make_items,
    overwrite,
    record_count,
)
from benchmarks.postgres_server import postgres_server
from benchmarks.report import Report, columns
from milecastle.codec.deltas import LogCodec
from milecastle.codec.envelope import PayloadPlace
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.engine.position import restore
from milecastle.model.checkpoint import SNAPSHOT
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch, Store

STORES = ("sqlite", "postgres", "langgraph_sqlite", "langgraph_postgres")
FIGURES = ("bytes_vs_raw", "10x", "head_vs_snapshot", "page_growth")
OVERWRITE = "overwritten"
PAGE = 100
"""History entries of a page."""


Found = dict[str, float]


def measure(*, quick: bool = False) -> Report:
    """Measure both stores and, where they are installed, LangGraph's savers."""
    found = compare(QUICK if quick else Size())
    figures = {
        f"{store}_{name}": _rounded(found.get(store, {}).get(name))
        for name in FIGURES
        for store in STORES
    }
    return Report(figures=figures, table=_table(found))


def compare(size: Size) -> dict[str, Found]:
    """Return what was found for each store; PostgreSQL only where there is one."""
    found: dict[str, Found] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(postgres_server(synchronous_commit="off"))
        found["sqlite"] = study(SqliteKeeper(folder), size)
        if cluster is not None:
            found["postgres"] = study(PostgresKeeper(cluster), size)
        if find_spec("langgraph") is None:
            return found
        from benchmarks import langgraph_growth

        return found | langgraph_growth.study(folder, cluster, size)


def study(keeper: Keeper, size: Size) -> Found:
    """Measure one store."""
    return sizes(keeper, size) | {
        "head_vs_snapshot": head_against_snapshot(keeper, "long", size.rounds),
        "page_growth": page_growth(keeper, size),
        OVERWRITE: overwritten(keeper, size.overwrites),
    }


def sizes(keeper: Keeper, size: Size) -> Found:
    """Bytes after some steps and after ten times as many; the stores stay there."""
    items = make_items(10 * size.steps)
    for name, count in (("short", size.steps), ("long", 10 * size.steps)):
        with closing(keeper.open(name)) as store:
            grow(store, items[:count])
    short, long = keeper.size("short"), keeper.size("long")
    return {"bytes_vs_raw": short / (size.steps * ITEM), "10x": long / short}


def overwritten(keeper: Keeper, steps: int) -> float:
    """Bytes on disk to those of the large values that were written."""
    with closing(keeper.open(OVERWRITE)) as store:
        overwrite(store, steps)
    return keeper.size(OVERWRITE) / (steps * VALUE)


def head_against_snapshot(keeper: Keeper, name: str, rounds: int) -> float:
    """The time of reading and decoding the head to that of one row with the same state."""
    codec = LogCodec(ValueCodec(TypeRegistry()))
    alone = ThreadKey(KEY.tenant, "alone")
    with closing(keeper.open(name)) as store:
        _put_alone(store, codec, alone)
        keeper.settle()
        best = best_of(
            rounds,
            [
                timed("head", partial(_read, store, codec, KEY)),
                timed("alone", partial(_read, store, codec, alone)),
            ],
        )
    return best["head"] / best["alone"]


def _put_alone(store: Store, codec: LogCodec, key: ThreadKey) -> None:
    """Store the state of the head again, as a thread of one snapshot."""
    chain = store.read(KEY)
    if chain is None:
        raise LookupError(str(KEY))
    head = chain.entries[-1]
    payload = codec.seal(
        codec.encode_state(restore(chain, codec).values), PayloadPlace(1, SNAPSHOT)
    )
    entry = msgspec.structs.replace(
        head, seq=1, parent_id=None, kind=SNAPSHOT, base_seq=1, roll_seq=1, payload=payload
    )
    store.commit(Batch(key=key, head=0, entries=(entry,)))


def _read(store: Store, codec: LogCodec, key: ThreadKey) -> None:
    chain = store.read(key)
    if chain is None or not restore(chain, codec).values["items"]:
        raise LookupError(str(key))


def page_growth(keeper: Keeper, size: Size) -> float:
    """The time of a page of a long history, the newest or the oldest, to that of a short one."""
    with ExitStack() as stack:
        stores: dict[str, Store] = {}
        for name, count in (("few", PAGE), ("many", size.checkpoints)):
            stores[name] = stack.enter_context(closing(keeper.open(name)))
            for batch in record_count(count):
                stores[name].commit(batch)
        keeper.settle()
        few, many = stores["few"], stores["many"]
        peers = [
            timed("few", partial(_page, few), 5),
            timed("newest", partial(_page, many), 5),
            timed("oldest", partial(_page, many, before=PAGE + 1), 5),
        ]
        best = best_of(2 * size.rounds, peers)
    return max(best["newest"], best["oldest"]) / best["few"]


def _page(store: Store, before: int | None = None) -> None:
    if len(list(store.history(KEY, limit=PAGE, before=before))) != PAGE:
        raise AssertionError("a page was not full")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _table(found: dict[str, Found]) -> str:
    rows = [("ratio, less is better", *found)]
    for name in (*FIGURES, OVERWRITE):
        values = (one.get(name) for one in found.values())
        rows.append((name, *("-" if value is None else f"{value:.2f}" for value in values)))
    return columns(rows)
