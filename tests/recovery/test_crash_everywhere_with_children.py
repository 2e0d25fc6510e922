"""No crash of a parent, a child or the worker that notifies loses a child's end or doubles it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import END, START, App, Context, StateGraph, Store, Worker, append
from milecastle.app.runs import cancelling, spawning
from milecastle.fleet.worker import WorkerOptions
from milecastle.model.children import OUTSTANDING
from milecastle.model.keys import ThreadKey
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing import CrashMismatch, crash_everywhere

QUICK = WorkerOptions(poll=0.02, heartbeat=5.0, silent_after=30.0)


class Sum(TypedDict):
    n: int
    log: Annotated[list[int], append]


def doubling(store: Store) -> App[Sum]:
    graph: StateGraph[Sum] = StateGraph(Sum, name="doubling")
    graph.add_node("double", lambda state: {"n": state["n"] * 2})
    graph.add_edges(START, "double", END)
    return graph.compile(store=store)


def adding(store: Store, child: App[Sum]) -> App[Sum]:
    graph: StateGraph[Sum] = StateGraph(Sum, name="adding")

    @graph.node
    def both(state: Sum, ctx: Context) -> dict[str, Any]:
        names = [ctx.spawn(child, {"n": n, "log": []}) for n in (1, 2)]
        return {"log": [ctx.join(name).state["n"] for name in names]}

    @graph.node
    def more(state: Sum, ctx: Context) -> dict[str, Any]:
        return {"log": [ctx.join(ctx.spawn(child, {"n": 3, "log": []})).state["n"]]}

    graph.add_edges(START, "both", "more", END)
    return graph.compile(store=store)


class CrashingWorkers:
    """Runs children whenever the parent waits; the first notifications are cut short."""

    def __init__(self, store: Store, child: App[Sum], monkeypatch: pytest.MonkeyPatch) -> None:
        self._store, self._child, self._patch = store, child, monkeypatch
        self._commit = store.commit

    def __call__(self, topics: tuple[str, ...]) -> list[tuple[str, Any]]:
        assert all(topic.startswith("__child ") for topic in topics)
        with self._patch.context() as patched:
            patched.setattr(cancelling, "Batch", _crash)  # the message is sent, and not cleared
            patched.setattr("milecastle.fleet.run_segments.Segments._refuse", _keep)
            asyncio.run(Worker([self._child], QUICK).run_until_idle())
        asyncio.run(Worker([self._child], QUICK).run_until_idle())
        return []


def _crash(**_: Any) -> None:
    raise RuntimeError("the worker ends between the message and the row")


def _keep(*_: Any) -> None:
    """A worker that crashed gives nothing back: it retires, and its threads are due again."""


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "runs.db")


@pytest.mark.requirement("M9")
def test_no_crash_loses_or_doubles_the_end_of_a_child(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control below shows that a lost notification is found."""
    child = doubling(store)
    workers = CrashingWorkers(store, child, monkeypatch)
    report = crash_everywhere(adding(store, child), {"n": 0, "log": []}, send=workers)
    assert report.effects > 5
    for row in store.threads("default", limit=1000):
        assert OUTSTANDING not in row.waiting_topics


@pytest.mark.requirement("M9")
def test_a_notification_that_is_not_repeated_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row is cleared first: a crash before the message loses it."""
    store = MemoryStore()
    child = doubling(store)
    honest, seen = spawning.notify_parent, set[ThreadKey]()

    def cleared_first(*args: Any) -> None:
        key = args[2].key
        if key not in seen and len(seen) == 4:  # one child of a course with a crash
            return
        seen.add(key)
        honest(*args)

    monkeypatch.setattr(cancelling, "notify_parent", cleared_first)

    def works(topics: tuple[str, ...]) -> list[tuple[str, Any]]:
        asyncio.run(Worker([child], QUICK).run_until_idle())
        return []

    with pytest.raises(CrashMismatch):
        crash_everywhere(adding(store, child), {"n": 0, "log": []}, send=works)
