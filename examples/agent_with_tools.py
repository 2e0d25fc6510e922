"""An agent: a model asks for tools until it knows enough, and each call is recorded.

The model is scripted, so that this runs anywhere. `ctx.once` stores the result of a tool: a call is
not made again by a retry, a resume or a takeover.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypedDict

from milecastle import END, START, Command, Context, Retry, StateGraph, append

Message = dict[str, Any]


class Chat(TypedDict):
    messages: Annotated[list[Message], append]


SCRIPT: list[Message] = [
    {"role": "model", "calls": [["weather", "Hexham"], ["trains", "Hexham"]]},
    {"role": "model", "calls": [["book", "the 9:14 to Hexham"]]},
    {"role": "model", "text": "Rain until noon. You are on the 9:14."},
]


def fake_model(messages: list[Message]) -> Message:
    said = [message for message in messages if message["role"] == "model"]
    return SCRIPT[len(said)]


TOOLS: dict[str, Callable[[str], str]] = {
    "weather": lambda place: f"rain in {place} until noon",
    "trains": lambda place: f"{place}: 9:14, 10:14",
    "book": lambda train: f"booked {train}",
}

graph = StateGraph(Chat)


@graph.node(retry=Retry(attempts=3, delay=0.1))
def model(state: Chat) -> Command[Literal["tools", "__end__"]]:
    reply = fake_model(state["messages"])
    return Command(update={"messages": [reply]}, goto="tools" if "calls" in reply else END)


@graph.node
def tools(state: Chat, ctx: Context) -> dict[str, Any]:
    results: list[Message] = []
    for number, (name, argument) in enumerate(state["messages"][-1]["calls"]):
        text = ctx.once(f"{number} {name}", TOOLS[name], argument)
        results.append({"role": "tool", "name": name, "text": text})
    return {"messages": results}


graph.add_edge(START, "model")
graph.add_edge("tools", "model")
app = graph.compile(store="memory://")


def main() -> None:
    question = {"role": "user", "text": "Can I walk the wall tomorrow?"}
    done = app.invoke({"messages": [question]}, thread="walk")
    for message in done.state["messages"]:
        print(f"{message['role']}: {message.get('text') or message['calls']}")


if __name__ == "__main__":
    main()
