"""Updates outside of a run cut the chain as steps do: reading a thread stays short."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import END, START, CheckpointStore, StateGraph, Store, ThreadKey, append
from tests.every_store import EVERY_KIND, Stores

KEY = ThreadKey("default", "t")
FIRST = {"lines": ["first"]}


class Log(TypedDict):
    lines: Annotated[list[str], append]


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    opened = Stores(tmp_path)
    yield opened
    opened.close()


def updates_by_app(store: Store) -> tuple[Callable[[int], Any], Callable[[int | None], Any]]:
    graph = StateGraph(Log)
    graph.add_node("work", lambda state: {})
    graph.add_edges(START, "work", END)
    app = graph.compile(store=store)
    app.invoke(FIRST, thread="t")
    return (
        lambda number: app.update_state("t", {"lines": [str(number)]}),
        lambda at: app.state("t", at=at).state["lines"],
    )


def updates_without_a_graph(
    store: Store,
) -> tuple[Callable[[int], Any], Callable[[int | None], Any]]:
    log = CheckpointStore(store)
    log.put(KEY, FIRST)
    lines = list(FIRST["lines"])

    def update(number: int) -> None:
        lines.append(str(number))
        log.put(KEY, {"lines": lines}, delta=True)

    def read(at: int | None) -> Any:
        newest = log.get_latest(KEY)
        assert newest is not None
        ids = {one.seq: one.id for one in log.list_history(KEY)}
        found = newest if at is None else log.get_by_id(KEY, ids[at])
        assert found is not None
        return found.state["lines"]

    return update, read


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("writer", [updates_by_app, updates_without_a_graph])
def test_updates_are_rolled_up(
    kind: str, writer: Any, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the journal of an update is not told ``rollup_after``: every entry is read then."""
    store = stores.open(kind)
    if store.rollup_after is not None:  # a store in memory has its entries there already
        monkeypatch.setattr(store, "rollup_after", 8)
    update, read = writer(store)
    first = store.read(KEY)
    assert first is not None
    for number in range(30):
        update(number)
    expected = ["first", *map(str, range(30))]
    assert read(None) == expected
    for number in (7, 13, 25):
        assert read(first.entries[-1].seq + number) == expected[: number + 1]
    chain = store.read(KEY)
    assert chain is not None
    if store.rollup_after is not None:
        assert len(chain.entries) < 15
