"""An agent that is steered while it runs: a person writes again before the answer is there.

`inbox("user")` lets the messages of a topic join the state at the end of each step, so the next
step reads them. Nothing is cancelled, and no work is lost.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from milecastle import END, START, StateGraph, append, inbox


class Chat(TypedDict):
    said: Annotated[list[str], append, inbox("user")]
    found: Annotated[list[str], append]
    answers: Annotated[list[str], append]


graph = StateGraph(Chat)


def look_up(said: str) -> str:
    return f"trains {said}"  # a slow tool, in real life


@graph.node
def search(state: Chat) -> dict[str, Any]:
    return {"found": [look_up(said) for said in state["said"][len(state["found"]) :]]}


@graph.node
def answer(state: Chat) -> dict[str, Any]:
    return {"answers": [f"I found {' and '.join(state['found'])}"]}


def next_step(state: Chat) -> str:
    return "search" if len(state["found"]) < len(state["said"]) else END


graph.add_edges(START, "search", "answer")
graph.add_conditional_edges("answer", next_step, ["search", END])
app = graph.compile(store="memory://")


def main() -> None:
    for event in app.stream({"said": ["to Hexham"]}, thread="chat"):
        print(f"{event.node}: {event.update}")
        # Ann writes after the first search; her browser sends it again after each event
        app.send("chat", "back on Sunday", "user", key="second", by="ann")
    print(app.state("chat").status, "unread:", len(app.mailbox("chat")))


if __name__ == "__main__":
    main()
