"""A running LangGraph system is moved, stored threads included, one thread at a time.

The new program looks for a thread in its own store first. If it is not there, the old one's state
becomes the start: a thread that waits before a node continues at this node, any other has its
messages as the input of the first run. Needs `pip install 'milecastle[langgraph]' langgraph`.
"""

from __future__ import annotations

import operator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, TypedDict

import langgraph.graph as lg
from langgraph.checkpoint.memory import InMemorySaver

from milecastle import END, START, StateGraph, ThreadNotFound, append


class OldChat(TypedDict):
    log: Annotated[list[str], operator.add]


class Chat(TypedDict):
    log: Annotated[list[str], append]


def reply(state: Any) -> dict[str, list[str]]:
    return {"log": [f"reply to {state['log'][-1]}"]}


def pay(state: Any) -> dict[str, list[str]]:
    return {"log": ["paid"]}


building: Any = lg.StateGraph(OldChat)
building.add_node("reply", reply).add_node("pay", pay)
building.add_edge(lg.START, "reply").add_edge("reply", "pay").add_edge("pay", lg.END)
old: Any = building.compile(checkpointer=InMemorySaver(), interrupt_before=["pay"])

graph = StateGraph(Chat, name="chat")
graph.add_node("reply", reply)
graph.add_node("pay", pay)
graph.add_edges(START, "reply", "pay", END)
app = graph.compile(store="memory://")


def bring_over(thread: str, folder: Path) -> list[str]:
    """Take a thread from the old store, unless it is in the new one; return what it starts with."""
    try:
        app.state(thread)
        return []
    except ThreadNotFound:
        found = old.get_state({"configurable": {"thread_id": thread}})
    if not found.next:
        return list(found.values.get("log", []))
    file = folder / "thread.json"
    app.save_checkpoint(file, found.values, found.next[0])
    app.resume_from_checkpoint(file, thread=thread)
    return []


def say(thread: str, text: str) -> None:
    with TemporaryDirectory() as folder:
        earlier = bring_over(thread, Path(folder))
    print(f"{thread}: {app.invoke({'log': [*earlier, text]}, thread).state['log']}")


def main() -> None:
    old.invoke({"log": ["hello"]}, {"configurable": {"thread_id": "waits"}})
    for given in ({"log": ["hi"]}, None):
        old.invoke(given, {"configurable": {"thread_id": "done"}})
    for thread in ("waits", "done"):
        say(thread, "and now?")


if __name__ == "__main__":
    main()
