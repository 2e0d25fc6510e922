"""Stores that write many batches in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, TypedDict

import pytest

from milecastle import END, START, StateGraph
from milecastle.errors import Conflict, StoreError
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch
from milecastle.stores.postgres import PostgresStore
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing.contract_reading import check_reads
from milecastle.testing.entries import Writer, a_key, a_result, a_run
from tests.postgres_cluster import needs_postgres, new_schema, secured_url, the_cluster

Groups = SqliteStore | PostgresStore


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgres", marks=needs_postgres),
        pytest.param("postgres with row security", marks=needs_postgres),
    ]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Groups]:
    if request.param == "sqlite":
        opened: Groups = SqliteStore(tmp_path / "group.db")
    elif request.param == "postgres":
        opened = PostgresStore(the_cluster().url_of(new_schema()))
    else:
        opened = PostgresStore(secured_url(prepare="off"))
    yield opened
    opened.close()


def next_batch(writer: Writer) -> Batch:
    entry = writer.plan()
    batch = writer.batch(entry, runs=(writer.run,) if entry.seq == 1 else ())
    writer.keep(entry)
    return batch


def test_the_store_writes_groups(store: Groups) -> None:
    assert store.commit_many is not None


def test_a_conflict_fails_one_batch_and_leaves_no_trace(store: Groups) -> None:
    writers = [Writer(ThreadKey("tenant", f"thread-{number}")) for number in range(5)]
    first = [next_batch(writer) for writer in writers]
    late = Writer(ThreadKey("tenant", "thread-2"), number=2)
    outcomes = store.commit_many([*first, next_batch(late)])
    assert list(outcomes[:5]) == [None] * 5
    assert isinstance(outcomes[5], Conflict)
    assert store.run(late.key, late.run.run_id) is None
    for writer in writers:
        assert [entry.seq for entry in store.history(writer.key)] == [1]


def test_writers_of_threads_that_were_created_again_are_refused(store: Groups) -> None:
    keys = [ThreadKey("tenant", f"thread-{number}") for number in range(4)]
    old = [Writer(key).begin(store, 3) for key in keys]
    for key in keys[:3]:
        store.delete(key)
    new = [Writer(key, 2).begin(store, 3) for key in keys[:3]]
    late = [
        old[0].batch(old[0].plan()),
        old[1].batch(results=(a_result(3),)),
        old[2].batch(old[2].plan(), runs=(old[2].run,)),
        old[3].batch(old[3].plan()),
    ]
    outcomes = store.commit_many(late)
    assert [type(outcome) for outcome in outcomes] == [Conflict, Conflict, Conflict, type(None)]
    for writer in new:
        check_reads(store, writer)


def test_batches_of_one_thread_are_taken_in_turn(store: Groups) -> None:
    writer = Writer(ThreadKey("tenant", "thread"))
    outcomes = store.commit_many([next_batch(writer) for _ in range(10)])
    assert list(outcomes) == [None] * 10
    chain = store.read(writer.key)
    assert chain is not None
    assert chain.entries == tuple(writer.entries[seq] for seq in range(1, 11))
    writer.append(store)


def test_what_fails_in_the_middle_leaves_nothing_of_the_group(store: Groups) -> None:
    good = Writer(ThreadKey("tenant", "good"))
    bad = next_batch(Writer(ThreadKey("tenant", "bad")))
    broken: Any = [next_batch(good), bad, None]
    with pytest.raises((AttributeError, StoreError)):
        store.commit_many(broken)
    assert store.read(good.key) is None
    assert store.read(bad.key) is None


def test_a_group_has_batches_of_every_kind_and_of_many_tenants(store: Groups) -> None:
    """Steps, first entries, records, results, several of one thread: as if committed one by one."""
    writers = [
        Writer(a_key(thread, tenant), number).begin(store, 2)
        for number, (tenant, thread) in enumerate(product(("one", "two"), "abcd"), 1)
    ]
    batches: list[Batch] = []
    for number, writer in enumerate(writers):
        batches.append(next_batch(writer))
        if number % 2:
            batches.append(writer.batch(results=(a_result(3), a_result(3, "other"))))
        if number % 3:
            batches.append(writer.batch(runs=(a_run(writer.key, 50),)))
        batches.append(Batch(key=writer.key, head=1, entries=(writer.entries[2],)))
        new = Writer(a_key(f"new {number}", writer.key.tenant))
        batches += [next_batch(new), next_batch(new)]
    outcomes = store.commit_many(batches)
    refused = [batch.head for batch, outcome in zip(batches, outcomes, strict=True) if outcome]
    assert refused == [1] * len(writers)
    for number, writer in enumerate(writers):
        check_reads(store, writer)
        chain = store.read(writer.key)
        assert chain is not None
        assert len(chain.results) == (2 if number % 2 else 0)
        assert len(store.runs(writer.key)) == (2 if number % 3 else 1)
        new_key = a_key(f"new {number}", writer.key.tenant)
        assert [entry.seq for entry in store.history(new_key)] == [2, 1]


def test_an_empty_group_is_nothing(store: Groups) -> None:
    assert list(store.commit_many([])) == []


class Count(TypedDict):
    n: int


async def up(state: Count) -> Count:
    return {"n": state["n"] + 1}


def more(state: Count) -> str:
    return "up" if state["n"] < 20 else END


def test_runs_on_an_event_loop_share_transactions(
    store: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[int] = []
    commit_many = store.commit_many

    def counted(batches: list[Batch]) -> object:
        groups.append(len(batches))
        return commit_many(batches)

    monkeypatch.setattr(store, "_commit_many", counted)
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
