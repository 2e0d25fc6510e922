"""Stores that write many batches in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import pytest

from milecastle import END, START, StateGraph
from milecastle.errors import Conflict, StoreError
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch, GroupStore
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing.entries import Writer


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "group.db")
    yield opened
    opened.close()


def next_batch(writer: Writer) -> Batch:
    entry = writer.plan()
    batch = writer.batch(entry, runs=(writer.run,) if entry.seq == 1 else ())
    writer.keep(entry)
    return batch


def test_sqlite_writes_groups(store: SqliteStore) -> None:
    assert isinstance(store, GroupStore)


def test_a_conflict_fails_one_batch_and_leaves_no_trace(store: SqliteStore) -> None:
    writers = [Writer(ThreadKey("tenant", f"thread-{number}")) for number in range(5)]
    first = [next_batch(writer) for writer in writers]
    late = Writer(ThreadKey("tenant", "thread-2"), number=2)
    outcomes = store.commit_many([*first, next_batch(late)])
    assert list(outcomes[:5]) == [None] * 5
    assert isinstance(outcomes[5], Conflict)
    assert store.run(late.key, late.run.run_id) is None
    for writer in writers:
        assert [entry.seq for entry in store.history(writer.key)] == [1]


def test_batches_of_one_thread_are_taken_in_turn(store: SqliteStore) -> None:
    writer = Writer(ThreadKey("tenant", "thread"))
    outcomes = store.commit_many([next_batch(writer) for _ in range(10)])
    assert list(outcomes) == [None] * 10
    chain = store.read(writer.key)
    assert chain is not None
    assert chain.entries == tuple(writer.entries[seq] for seq in range(1, 11))
    writer.append(store)


def test_what_fails_in_the_middle_leaves_nothing_of_the_group(store: SqliteStore) -> None:
    good = Writer(ThreadKey("tenant", "good"))
    bad = next_batch(Writer(ThreadKey("tenant", "bad")))
    broken: Any = [next_batch(good), bad, None]
    with pytest.raises((AttributeError, StoreError)):
        store.commit_many(broken)
    assert store.read(good.key) is None
    assert store.read(bad.key) is None


class Count(TypedDict):
    n: int


async def up(state: Count) -> Count:
    return {"n": state["n"] + 1}


def more(state: Count) -> str:
    return "up" if state["n"] < 20 else END


def test_runs_on_an_event_loop_share_transactions(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[int] = []
    commit_many = SqliteStore.commit_many

    def counted(self: SqliteStore, batches: list[Batch]) -> object:
        groups.append(len(batches))
        return commit_many(self, batches)

    monkeypatch.setattr(SqliteStore, "commit_many", counted)
    graph = StateGraph(Count)
    graph.add_node("up", up)
    graph.add_edge(START, "up")
    graph.add_conditional_edges("up", more, ["up", END])
    app = graph.compile(store=store)

    async def many() -> list[int]:
        calls = (app.ainvoke({"n": 0}, thread=f"thread-{number}") for number in range(30))
        return [result["n"] for result in await asyncio.gather(*calls)]

    assert asyncio.run(many()) == [20] * 30
    assert sum(groups) == 30 * 21
    assert len(groups) < 30 * 21 / 3
    assert len(store.threads("default", status="completed")) == 30
