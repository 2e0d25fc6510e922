"""A run that dies half-way, and the same call again: it goes on where it stopped.

The death is played here, so that the whole story fits into one process. With a store on disk the
second call may be made by another process, on another day.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from milecastle import END, START, ExecutionError, StateGraph, append


class Order(TypedDict):
    items: list[str]
    log: Annotated[list[str], append]
    total: int


warehouse = {"online": True}
graph = StateGraph(Order)


@graph.node
def price(state: Order) -> dict[str, Any]:
    print("  pricing")
    return {"total": 10 * len(state["items"]), "log": ["priced"]}


@graph.node
def reserve(state: Order) -> dict[str, Any]:
    if not warehouse["online"]:
        raise ConnectionError("the warehouse does not answer")
    print("  reserving")
    return {"log": [f"reserved {item}" for item in state["items"]]}


graph.add_edges(START, "price", "reserve", END)
app = graph.compile(store="memory://")


def main() -> None:
    order = {"items": ["lamp", "rope"]}
    warehouse["online"] = False
    try:
        app.invoke(order, thread="order-7")
    except ExecutionError as error:
        print(f"died in '{error.node}'; saved next: {app.state('order-7').next}")
    warehouse["online"] = True
    done = app.invoke(order, thread="order-7")
    print(f"total {done['total']}, {', '.join(done['log'])}")


if __name__ == "__main__":
    main()
