"""A graph for chat front ends: answers in pieces, asks before it deletes, fails if told to."""

from __future__ import annotations

import asyncio
from typing import Any, NotRequired, TypedDict

from milecastle import END, START, Context, MessagesState, StateGraph, interrupt


class Answer(TypedDict):
    decisions: list[dict[str, Any]]


class Chat(MessagesState):
    turns: NotRequired[int]
    mood: NotRequired[str]
    pause: NotRequired[float]


def said(state: Chat) -> str:
    content = state["messages"][-1]["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


async def answer(state: Chat, ctx: Context) -> dict[str, Any]:
    text = f"You said: {said(state)}"
    id = f"answer-{len(state['messages'])}"
    await asyncio.sleep(state.get("pause", 0.0))
    for word in ("You ", "said: "):
        await ctx.aemit({"id": id, "delta": word})
    await ctx.aemit({"progress": 1})
    message = {"id": id, "role": "assistant", "content": text}
    return {"messages": [message], "turns": state.get("turns", 0) + 1}


def delete(state: Chat) -> dict[str, Any]:
    asked = {
        "action_requests": [{"name": "delete", "args": {"what": said(state)}}],
        "review_configs": [{"action_name": "delete", "allowed_decisions": ["approve", "reject"]}],
    }
    found = interrupt(asked, answer=Answer)
    kind = found["decisions"][0]["type"]
    return {"messages": [{"role": "assistant", "content": f"Deleted: {kind}"}]}


def fail(state: Chat) -> dict[str, Any]:
    raise RuntimeError("no ink")


def where(state: Chat) -> str:
    first = said(state).split(" ")[0]
    return first if first in ("delete", "fail") else "answer"


def build() -> StateGraph[Chat]:
    graph: StateGraph[Chat] = StateGraph(Chat, name="chat")
    graph.add_node("answer", answer)
    graph.add_node("delete", delete)
    graph.add_node("fail", fail)
    targets = {name: name for name in ("answer", "delete", "fail")}
    graph.add_conditional_edges(START, where, targets)
    graph.add_edge("answer", END).add_edge("delete", END).add_edge("fail", END)
    return graph


graph = build()

PAUSES = (0.2, 2.0, 10.0, 30.0)
"""What a node emits before the stream has begun is not sent: on a busy machine it waits longer."""
