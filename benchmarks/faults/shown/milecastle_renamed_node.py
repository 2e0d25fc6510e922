"""Milecastle: a node that waits is renamed. The thread is refused, unless the rename is declared.

python -m benchmarks.faults.shown.milecastle_renamed_node
"""

from typing import TypedDict

from milecastle import END, START, App, StateGraph, interrupt, open_store
from milecastle.errors import ResumeRefused

STORE = open_store("memory://")


class Order(TypedDict, total=False):
    """The state of an order."""

    approved: str
    shipped: bool


def ask(state: Order) -> Order:
    """Ask, and wait without a process."""
    return {"approved": interrupt("Ship?")}


def app(waiting: str, *, renamed_from: tuple[str, ...] = ()) -> App[Order]:
    """The graph with its waiting node under this name."""
    graph = StateGraph(Order, name="order")
    graph.add_node(waiting, ask, renamed_from=renamed_from)
    graph.add_node("ship", lambda state: {"shipped": True})
    graph.add_edges(START, waiting, "ship", END)
    return graph.compile(store=STORE)


if __name__ == "__main__":
    app("approve").invoke({}, "order-1")
    try:
        app("confirm").resume("order-1", "yes")
    except ResumeRefused as refused:
        print("refused:", refused.message)
    print("declared:", app("confirm", renamed_from=("approve",)).resume("order-1", "yes").state)
