"""Writers race for one thread of the log: one wins each seq, the others stop, nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Annotated, TypedDict

from milecastle import END, START, App, Conflict, StateGraph, append
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch, Store
from milecastle.stores.memory import MemoryStore
from milecastle.testing import race_in_tasks, race_in_threads
from milecastle.testing.entries import a_key
from milecastle.testing.races import switching_often
from tests.broken_stores.reads import LooksBeforeItLocks

RACES = 10_000
APP_RACES = 150
INPUT: dict[str, list[str]] = {"trail": []}


class State(TypedDict):
    trail: Annotated[list[str], append]


def test_of_racing_threads_one_wins_each_seq() -> None:
    store = MemoryStore()
    outcome = race_in_threads(store, a_key(), races=RACES, writers=3)
    assert outcome.problems(store) == []
    assert len(outcome.won) == RACES


def test_of_racing_tasks_one_wins_each_seq() -> None:
    store = MemoryStore()
    outcome = asyncio.run(race_in_tasks(store, a_key(), races=RACES, writers=3))
    assert outcome.problems(store) == []
    assert len(outcome.won) == RACES


def test_tasks_race_for_a_store_that_may_wait() -> None:
    class Waiting(MemoryStore):
        blocking = True

    store = Waiting()
    outcome = asyncio.run(race_in_tasks(store, a_key(), races=200, writers=3))
    assert outcome.problems(store) == []


def test_a_store_that_lets_two_win_is_reported() -> None:
    store = LooksBeforeItLocks()
    outcome = race_in_threads(store, a_key(), races=20, writers=3)
    assert any("was won by" in problem for problem in outcome.problems(store))


def test_a_store_that_loses_what_was_won_is_reported() -> None:
    class Loses(MemoryStore):
        def commit(self, batch: Batch) -> None:
            super().commit(batch)
            if batch.head == 4:
                self.delete(batch.key)

    store = Loses()
    problems = race_in_threads(store, a_key(), races=5, writers=2).problems(store)
    assert problems == ["what the store kept is not what was won"]


def test_an_error_in_a_writer_is_reported() -> None:
    store = MemoryStore()
    store.close()
    outcome = race_in_threads(store, a_key(), races=5, writers=2)
    assert any("Unavailable" in repr(error) for error in outcome.errors)


def sync_app(store: Store) -> App[State]:
    graph = StateGraph(State, name="racing")

    def node(name: str) -> Callable[[State], dict[str, list[str]]]:
        return lambda state: {"trail": [name]}

    for name in ("a", "b", "c"):
        graph.add_node(name, node(name))
    graph.add_edges(START, "a", "b", "c", END)
    return graph.compile(store=store)


def async_app(store: Store) -> App[State]:
    graph = StateGraph(State, name="racing")

    def node(name: str) -> Callable[[State], Awaitable[dict[str, list[str]]]]:
        async def run(state: State) -> dict[str, list[str]]:
            await asyncio.sleep(0)
            return {"trail": [name]}

        return run

    for name in ("a", "b", "c"):
        graph.add_node(name, node(name))
    graph.add_edges(START, "a", "b", "c", END)
    return graph.compile(store=store)


def check_thread(app: App[State], key: ThreadKey, completed: int) -> None:
    """Every run that ended is in the state, whole; the log has no gap; no loser left a mark."""
    store = app.store
    seqs = [entry.seq for entry in store.history(key)]
    assert seqs == list(range(len(seqs), 0, -1))
    assert app.state(key).state["trail"] == ["a", "b", "c"] * completed
    statuses = [run.status for run in store.runs(key)]
    assert statuses.count("completed") == completed
    assert set(statuses) <= {"completed", "superseded"}


def test_apps_in_threads_race_for_one_thread() -> None:
    store = MemoryStore()
    apps = [sync_app(store), sync_app(store)]
    lost = 0
    with switching_often(), ThreadPoolExecutor(2) as pool:
        for number in range(APP_RACES):
            key = ThreadKey("default", f"race {number}")
            barrier = Barrier(2, timeout=30)

            def contend(app: App[State], key: ThreadKey = key, start: Barrier = barrier) -> bool:
                start.wait()
                try:
                    return app.invoke(INPUT, key, again=True).status == "completed"
                except Conflict:
                    return False

            ended = list(pool.map(contend, apps))
            lost += ended.count(False)
            check_thread(apps[0], key, ended.count(True))
    assert lost > 0


def test_apps_in_tasks_race_for_one_thread() -> None:
    store = MemoryStore()
    apps = [async_app(store), async_app(store)]

    async def contend(app: App[State], key: ThreadKey) -> bool:
        try:
            return (await app.ainvoke(INPUT, key, again=True)).status == "completed"
        except Conflict:
            return False

    async def race() -> int:
        lost = 0
        for number in range(APP_RACES):
            key = ThreadKey("default", f"race {number}")
            ended = await asyncio.gather(*(contend(app, key) for app in apps))
            lost += ended.count(False)
            check_thread(apps[0], key, ended.count(True))
        return lost

    assert asyncio.run(race()) > 0
