"""A person decides: the run stops before `publish`, waits for as long as it takes, and goes on."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from milecastle import END, START, StateGraph


class Post(TypedDict):
    topic: str
    text: NotRequired[str]
    approved: NotRequired[bool]
    published: NotRequired[bool]


graph = StateGraph(Post)


@graph.node
def write(state: Post) -> dict[str, Any]:
    return {"text": f"Everything about {state['topic']}."}


@graph.node
def decide(state: Post) -> dict[str, Any]:
    return {"approved": state.get("approved", False)}


@graph.node
def publish() -> dict[str, Any]:
    return {"published": True}


def after_decision(state: Post) -> str:
    return "publish" if state.get("approved") else END


graph.add_edges(START, "write", "decide")
graph.add_conditional_edges("decide", after_decision, ["publish", END])
graph.add_edge("publish", END)
app = graph.compile(store="memory://", interrupt_before=["decide"])


def main() -> None:
    for thread, answer in (("walls", True), ("moats", False)):
        waiting = app.invoke({"topic": thread}, thread=thread)
        print(f"{waiting.status} before {waiting.next[0]!r}: {waiting['text']}")
        app.update_state(thread, {"approved": answer})
        done = app.resume(thread)
        print(f"{done.status}: {'published' if done.state.get('published') else 'not published'}")


if __name__ == "__main__":
    main()
