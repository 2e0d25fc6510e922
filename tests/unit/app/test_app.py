"""Small things of an app that no scenario shows."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest

from milecastle import END, START, App, InvalidRequest, Result, StateGraph
from milecastle.ports.store import Batch
from milecastle.stores.memory import MemoryStore
from milecastle.stores.opening import find_store, register_store
from milecastle.testing import FailingStore, ManualClock, with_store


class State(TypedDict):
    n: int


def one(state: State) -> dict[str, Any]:
    return {"n": state["n"] + 1}


def made(**options: Any) -> App[State]:
    graph: StateGraph[State] = StateGraph(State, name="numbers")
    graph.add_node(one)
    graph.add_edges(START, "one", END)
    return graph.compile(**options)


def test_an_app_shows_its_graph_and_its_store() -> None:
    store = MemoryStore()
    app = made(store=store)
    assert app.store is store
    assert (app.graph.name, app.fingerprint) == ("numbers", app.graph.manifest.fingerprint)


def test_an_app_can_be_used_with_another_store_and_clock() -> None:
    app = made(store="memory://")
    clock = ManualClock()
    store = MemoryStore()
    other = with_store(app, store, clock=clock)
    result = other.invoke({"n": 0}, "t")
    assert int(result.timestamp.timestamp() * 1_000_000) == clock.now()
    assert (other.store, app.graph) == (store, other.graph)


def test_a_result_of_any_form_is_read_by_key() -> None:
    result = made().invoke({"n": 1})
    assert result["n"] == 2
    assert isinstance(result, Result)
    assert result.interrupts == ()
    with pytest.raises(KeyError):
        result["m"]


def test_entry_whose_run_has_no_record_is_reported() -> None:
    """A store that tears a batch apart breaks its promise; the error says what is missing."""
    inner = MemoryStore()
    app = made(store=FailingStore(inner, at=1, fault="cut"))
    with pytest.raises(Exception, match="failed on purpose"):
        app.invoke({"n": 0}, "t")
    for call in (
        lambda: app.state("t"),
        lambda: app.resume("t"),
        lambda: app.invoke({"n": 0}, "t"),
    ):
        with pytest.raises(InvalidRequest, match="has no record"):
            call()


def test_stores_are_found_by_name() -> None:
    assert isinstance(find_store("memory"), MemoryStore)
    register_store("two", lambda url: MemoryStore())
    assert isinstance(find_store("two://anything"), MemoryStore)


def test_a_run_without_changes_writes_small_entries() -> None:
    sizes: list[int] = []

    class Weighing(MemoryStore):
        def commit(self, batch: Batch) -> None:
            sizes.extend(len(entry.payload) for entry in batch.entries)
            super().commit(batch)

    made(store=Weighing()).invoke({"n": 0}, "t")
    assert len(sizes) == 2
    assert max(sizes) < 64


def test_store_of_an_app_without_one_is_an_error_that_says_what_to_write() -> None:
    """So its type is a store, which checkers accept. Broken on purpose: ``None`` returned."""
    app = made()
    assert (app.has_store, made(store="memory://").has_store) == (False, True)
    with pytest.raises(InvalidRequest, match=r"compile\(store="):
        app.store.close()
