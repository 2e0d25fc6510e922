"""Faulty stores do the damage that they promise, and no other."""

from __future__ import annotations

from typing import TypedDict

import pytest

from milecastle import END, START, App, StateGraph, Store, ThreadKey, Unavailable
from milecastle.errors import Conflict
from milecastle.stores.memory import MemoryStore
from milecastle.testing import FailingStore, TornStore, Volatile, WrappedStore
from milecastle.testing.faulty_stores import Fault

KEY = ThreadKey("default", "t")


class Number(TypedDict):
    n: int


def add_one(state: Number) -> dict[str, int]:
    return {"n": state["n"] + 1}


def two_steps(store: Store) -> App[Number]:
    """Three commits: the input, and two steps."""
    graph = StateGraph(Number)
    for name in ("a", "b"):
        graph.add_node(name, add_one)
    graph.add_edges(START, "a", "b", END)
    return graph.compile(store=store)


def seqs(store: Store) -> list[int]:
    return [entry.seq for entry in store.history(KEY)]


def test_a_wrapped_store_passes_everything_on() -> None:
    inner = MemoryStore()
    store = WrappedStore(inner)
    app = two_steps(store)
    run = app.invoke({"n": 0}, thread="t").run_id
    head = app.state("t")
    assert (store.blocking, store.rollup_after) == (False, inner.rollup_after)
    assert store.locate(KEY, head.id) == 3
    assert store.run(KEY, run) == inner.run(KEY, run)
    assert store.runs(KEY, limit=1) == inner.runs(KEY, limit=1)
    assert store.failure(KEY, run) is None
    assert [info.key for info in store.threads("default")] == [KEY]
    assert store.manifest(KEY, app.fingerprint) == inner.manifest(KEY, app.fingerprint)
    with pytest.raises(Conflict):
        store.prune(KEY, head=9, cut=1, rewritten=())
    assert store.delete(KEY) is True
    assert inner.read(KEY) is None
    store.close()
    with pytest.raises(Unavailable):
        inner.read(KEY)


@pytest.mark.parametrize(
    ("fault", "kept"), [("refused", [1]), ("unknown", [2, 1]), ("cut", [2, 1])]
)
def test_failed_commit_stops_the_run_and_the_next_call_continues(
    fault: Fault, kept: list[int]
) -> None:
    inner = MemoryStore()
    app = two_steps(FailingStore(inner, at=2, fault=fault))
    with pytest.raises(Unavailable):
        app.invoke({"n": 0}, thread="t")
    assert seqs(inner) == kept
    assert app.invoke({"n": 0}, thread="t")["n"] == 2


def test_a_cut_commit_leaves_its_run_record_behind() -> None:
    inner = MemoryStore()
    app = two_steps(FailingStore(inner, at=1, fault="cut"))
    with pytest.raises(Unavailable):
        app.invoke({"n": 0}, thread="t")
    assert (seqs(inner), inner.runs(KEY)) == ([1], [])


def test_a_dropped_commit_is_noticed_by_the_next_one() -> None:
    app = two_steps(FailingStore(MemoryStore(), at=2, fault="dropped"))
    with pytest.raises(Conflict):
        app.invoke({"n": 0}, thread="t")


def test_a_torn_store_looks_whole_until_it_crashes() -> None:
    inner = MemoryStore()
    store = TornStore(inner, late={"entries"})
    assert isinstance(store, Volatile)
    assert two_steps(store).invoke({"n": 0}, thread="t")["n"] == 2
    assert seqs(inner) == [2, 1]
    store.crash()
    assert seqs(store) == [2, 1]


def test_what_a_torn_store_promised_is_written_when_it_is_next_used() -> None:
    inner = MemoryStore()
    store = TornStore(inner, late={"entries", "runs", "results", "failure", "manifest"})
    two_steps(store).invoke({"n": 0}, thread="t")
    assert seqs(inner) == [2, 1]
    assert seqs(store) == [3, 2, 1]
    assert [run.status for run in inner.runs(KEY)] == ["completed"]
