"""LangGraph, the library: a node that waits is renamed, and the run ends without its last node.

    python -m benchmarks.faults.shown.langgraph_renamed_wait

Prints what `invoke` returns, and whether `ship` was called.
"""

import sqlite3
from typing import Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt


class Order(TypedDict, total=False):
    approved: str
    shipped: bool


def app(saver: SqliteSaver, waiting: str) -> Any:
    graph = StateGraph(Order)
    graph.add_node(waiting, lambda state: {"approved": interrupt("Ship?")})
    graph.add_node("ship", lambda state: {"shipped": True})
    graph.add_edge(START, waiting)
    graph.add_edge(waiting, "ship")
    graph.add_edge("ship", END)
    return graph.compile(checkpointer=saver)


if __name__ == "__main__":
    saver = SqliteSaver(sqlite3.connect(":memory:", check_same_thread=False))
    thread = {"configurable": {"thread_id": "order-1"}}
    app(saver, "approve").invoke({}, thread)
    print("waits at", app(saver, "approve").get_state(thread).next)
    renamed = app(saver, "confirm")
    print("returned", renamed.invoke(Command(resume="yes"), thread))
    print("next", renamed.get_state(thread).next)
