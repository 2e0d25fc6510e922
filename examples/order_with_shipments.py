"""An order that spawns shipments: each is a run of another graph, on a thread of its own.

The order waits without a process until all have ended. Cancelling it cancels the shipments that
have not ended; a shipment that fails does not fail the order.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, TypedDict

from milecastle import END, START, Context, StateGraph, Worker, append
from milecastle.stores.memory import MemoryStore


class Shipment(TypedDict):
    item: str
    parcel: str


class Order(TypedDict):
    items: list[str]
    log: Annotated[list[str], append]


shipping = StateGraph(Shipment, name="shipping")


@shipping.node
def pack(state: Shipment) -> dict[str, Any]:
    return {"parcel": f"parcel with {state['item']}"}


shipping.add_edges(START, "pack", END)
ordering = StateGraph(Order, name="ordering")
store = MemoryStore()
shipments = shipping.compile(store=store)


@ordering.node
def ship(state: Order, ctx: Context) -> dict[str, Any]:
    inputs = [{"item": item, "parcel": ""} for item in state["items"]]
    children = ctx.spawn_many(shipments, inputs)
    ended = [ctx.join(child) for child in children]
    return {"log": [one.state["parcel"] if one.state else f"{one.failure}" for one in ended]}


ordering.add_edges(START, "ship", END)
app = ordering.compile(store=store)


def work() -> None:
    """Runs what is due, then stops; in production: `milecastle worker`."""
    asyncio.run(Worker([app, shipments]).run_until_idle())


def main() -> None:
    app.submit({"items": ["lamp", "rope"]}, "order-7")
    work()
    found = app.state("order-7")
    print(f"{found.status}: {'; '.join(found.state['log'])}")
    for shipment in app.threads(tag="parent:order-7"):
        print(shipment.key.thread.partition("-7/")[2].partition("-")[0], shipment.status)


if __name__ == "__main__":
    main()
