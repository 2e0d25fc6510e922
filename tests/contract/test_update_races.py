"""Updates of one thread from several places: what was acknowledged is in the state, always."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Barrier
from time import sleep
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import END, START, App, CheckpointStore, Conflict, StateGraph, ThreadKey, append
from milecastle.ports.store import Batch, Store
from milecastle.stores.memory import MemoryStore
from milecastle.testing import WrappedStore
from milecastle.testing.races import switching_often
from tests.every_store import EVERY_KIND, Stores

KEY = ThreadKey("default", "t")
UPDATES = 60
CALLS = ("open", "read", "locate", "history", "run", "runs", "manifest", "commit")


class Notes(TypedDict):
    notes: Annotated[list[str], append]


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    opened = Stores(tmp_path)
    yield opened
    opened.close()


def worked(state: Notes) -> dict[str, list[str]]:
    return {"notes": ["worked"]}


def app_on(store: Any, **options: Any) -> App[Notes]:
    graph: StateGraph[Notes] = StateGraph(Notes)
    graph.add_node("work", worked)
    graph.add_edges(START, "work", END)
    return graph.compile(store=store, interrupt_before=["work"], **options)


def waiting_on(store: Any) -> App[Notes]:
    app = app_on(store)
    app.invoke({"notes": []}, "t")
    return app


class Meddled(WrappedStore):
    """Lets somebody else act right before its n-th call, counted from 1."""

    def __init__(self, store: Store, at: int, act: Callable[[], object]) -> None:
        super().__init__(store)
        self.calls = 0
        self._at = at
        self._act = act

    def __getattribute__(self, name: str) -> Any:
        if name in CALLS:
            self.calls += 1
            if self.calls == self._at:
                self._act()
        return super().__getattribute__(name)


class BeforeCommit(WrappedStore):
    """Lets somebody else act right before a commit."""

    def __init__(self, store: Store, act: Callable[[], object]) -> None:
        super().__init__(store)
        self._act = act

    def commit(self, batch: Batch) -> None:
        self._act()
        super().commit(batch)


Update = Callable[[Any, str], object]


def fenced(store: Any, note: str) -> None:
    app_on(store).update_state("t", {"notes": [note]})


def careless(store: Any, note: str) -> None:
    """Cheats: its fence is not the head whose state it read."""
    checkpoints = CheckpointStore(store)
    latest = checkpoints.get_latest(KEY)
    assert latest is not None
    sleep(0.001)
    checkpoints.update_state(KEY, latest.id, new_state={"notes": [*latest.state["notes"], note]})


def lost(store: Store, act: Callable[[App[Notes]], object], update: Update = fenced) -> list[int]:
    """At which store calls of an update somebody else's act, acknowledged, gets lost."""
    found, at = list[int](), 0
    while True:
        at += 1
        store.delete(KEY)
        app = waiting_on(store)
        meddled = Meddled(store, at, partial(act, app))
        expected = {"inner"}
        with suppress(Conflict):
            update(meddled, "outer")
            expected.add("outer")
        if meddled.calls < at:
            return found
        if not expected <= set(app.state("t").state["notes"]):
            found.append(at)


def update_too(app: App[Notes]) -> None:
    app.update_state("t", {"notes": ["inner"]})


def run_to_the_end(app: App[Notes]) -> None:
    app.update_state("t", {"notes": ["inner"]})
    app.resume("t")


@pytest.mark.parametrize("act", [update_too, run_to_the_end])
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_update_loses_nothing_committed_at_any_of_its_store_calls(
    stores: Stores, kind: str, act: Callable[[App[Notes]], object]
) -> None:
    """Fails when the fence is the head read after the state (the head read again in _append)."""
    assert lost(stores.open(kind), act) == []


def test_update_with_a_fence_read_later_is_reported() -> None:
    """The control: what came in between its two reads is gone."""
    assert lost(MemoryStore(), update_too, careless)


def acknowledged(store: Store, update: Update, who: str, begin: Barrier) -> list[str]:
    """What was acknowledged to one writer."""
    told: list[str] = []
    begin.wait()
    for number in range(UPDATES):
        with suppress(Conflict):
            update(store, f"{who}{number}")
            told.append(f"{who}{number}")
    return told


def missing_after_a_race(store: Store, update: Update = fenced) -> list[str]:
    """Acknowledged updates of two writers that the state does not have."""
    app = waiting_on(store)
    begin = Barrier(2, timeout=60)
    with switching_often(), ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(acknowledged, store, update, who, begin) for who in "ab"]
        told = [note for writer in writers for note in writer.result()]
    assert told
    return [note for note in told if note not in app.state("t").state["notes"]]


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_racing_updates_that_were_acknowledged_are_in_the_state(stores: Stores, kind: str) -> None:
    """Fails when the fence is the head read after the state."""
    assert missing_after_a_race(stores.open(kind)) == []


def test_race_with_a_fence_read_later_loses_updates() -> None:
    """The control."""
    assert missing_after_a_race(MemoryStore(), careless)


def update_the_first(store: Store) -> None:
    app_on(store).update_state("t", {"notes": ["old"]}, at=1)


def fork_the_first(store: Store) -> None:
    app_on(store).fork("t", at=1)


def replace_the_first(store: Store) -> None:
    CheckpointStore(store).update_state(KEY, store.entries(KEY)[0].id, new_state={"notes": ["old"]})


@pytest.mark.parametrize("branch", [update_the_first, fork_the_first, replace_the_first])
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_branch_is_refused_if_the_thread_began_again_meanwhile(
    stores: Stores, kind: str, branch: Callable[[Store], object]
) -> None:
    """Fails when a branch names the seq of the head but not its id (head_id in _append)."""
    store = stores.open(kind)
    waiting_on(store).update_state("t", {"notes": ["first"]})

    def begin_again() -> None:
        store.delete(KEY)
        waiting_on(store).update_state("t", {"notes": ["new"]})

    with pytest.raises(Conflict):
        branch(BeforeCommit(store, begin_again))
    assert app_on(store).state("t").state["notes"] == ["new"]
