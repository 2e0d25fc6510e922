"""Parents and children in different databases of one map."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

import pytest

from milecastle import END, START, App, Context, StateGraph, ThreadKey, interrupt
from milecastle.model.children import OUTSTANDING
from milecastle.stores.sharded import ShardedStore, move_shard, read_map
from tests.acceptance.fleet.working import work
from tests.postgres_cluster import needs_postgres
from tests.process.sharded_moves import same_shard

pytestmark = needs_postgres


class Shipment(TypedDict):
    box: str


class Order(TypedDict):
    children: list[str]
    boxes: list[str]


class Family:
    """A parent in database ``a``, and its children in ``b`` and ``c``."""

    def __init__(self, store: ShardedStore, path: Path) -> None:
        self.store, self.path = store, path
        self.shipping, self.ordering = self._shipping(), self._ordering()
        self.parent, *self.children = (key for name in "abc" for key in same_shard(1, name, path))
        names = [key.thread for key in self.children]
        self.ordering.submit({"children": names, "boxes": []}, self.parent)

    def _shipping(self) -> App[Shipment]:
        graph: StateGraph[Shipment] = StateGraph(Shipment, name="shipping")
        graph.add_node("pack", lambda state: {"box": interrupt("which box?", answer=str)})
        graph.add_edges(START, "pack", END)
        return graph.compile(store=self.store)

    def _ordering(self) -> App[Order]:
        def ship(state: Order, ctx: Context) -> dict[str, Any]:
            inputs = [{"box": ""} for _ in state["children"]]
            names = ctx.spawn_many("shipping", inputs, state["children"])
            ended = [ctx.join(name) for name in names]
            return {"boxes": [one.state["box"] if one.state else one.status for one in ended]}

        graph: StateGraph[Order] = StateGraph(Order, name="ordering")
        graph.add_node("ship", ship)
        graph.add_edges(START, "ship", END)
        return graph.compile(store=self.store)

    def work(self) -> None:
        work(self.ordering, self.shipping)

    def answer(self) -> None:
        for key in self.children:
            self.shipping.answer(key, f"box of {key.thread}")

    def move(self, key: ThreadKey, database: str) -> None:
        assert move_shard(read_map(self.path), key.shard, database)

    def has_joined(self) -> bool:
        boxes = self.ordering.state(self.parent).state["boxes"]
        return boxes == [f"box of {key.thread}" for key in self.children]

    def is_settled(self) -> bool:
        rows = self.store.threads(self.parent.tenant, limit=9)
        assert len(rows) == 3
        return not any(OUTSTANDING in row.waiting_topics or row.due_at for row in rows)


@pytest.fixture
def family(store: ShardedStore, path: Path) -> Family:
    return Family(store, path)


def test_children_in_other_databases_are_joined(family: Family) -> None:
    """Was broken: notifications that are not sent."""
    family.work()
    owners = read_map(family.path).owners
    assert [owners[key.shard] for key in (family.parent, *family.children)] == ["a", "b", "c"]
    family.answer()
    family.work()
    assert family.has_joined()
    assert family.is_settled()


def test_children_in_other_databases_are_cancelled_with_their_parent(family: Family) -> None:
    """Was broken: the cascade did not happen."""
    family.work()
    assert family.ordering.cancel(family.parent)
    family.work()
    statuses = {row.status for row in family.store.threads(family.parent.tenant, limit=9)}
    assert statuses == {"cancelled"}
    assert family.is_settled()


@pytest.mark.parametrize("moved", ["parent", "child"])
def test_children_are_joined_though_a_shard_has_moved(family: Family, moved: str) -> None:
    """Between the answer and the child's end. Was broken: notifications that are not sent."""
    family.work()
    family.answer()
    if moved == "parent":
        family.move(family.parent, "b")
    else:
        family.move(family.children[0], "a")
    family.work()
    assert family.has_joined()
    assert family.is_settled()
