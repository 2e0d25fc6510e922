"""A support agent that remembers its customers across threads, and counts their calls exactly.

Each call is a thread of its own. What the agent learns is written by the commit of its step: a
process that is killed in between neither loses a fact nor counts a call twice.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from milecastle import END, START, Context, StateGraph


class Call(TypedDict):
    customer: str
    message: str
    reply: NotRequired[str]


graph = StateGraph(Call)


@graph.node
def learn(state: Call, ctx: Context) -> dict[str, Any]:
    """Note what the customer tells, and that there was a call."""
    about, memory = ("customers", state["customer"]), ctx.memory
    calls = memory.get(about, "calls")
    memory.put(about, "calls", calls.value + 1 if calls else 1)
    if (said := state["message"]).startswith("My "):
        fact = {"kind": "fact", "text": said.removeprefix("My ")}
        memory.put((*about, "facts"), fact["text"].split()[0], fact, words="text")
    return {}


@graph.node
def answer(state: Call, ctx: Context) -> dict[str, Any]:
    """Answer from what is known about this customer, and about no other."""
    about = ("customers", state["customer"])
    calls = ctx.memory.get(about, "calls")
    hits = ctx.memory.search((*about, "facts"), words=state["message"], where={"kind": "fact"})
    known = "; ".join(hit.item.value["text"] for hit in hits) or "nothing about that"
    return {"reply": f"call {calls.value if calls else 0}: I know {known}"}


graph.add_edges(START, "learn", "answer", END)
app = graph.compile(store="memory://")


def main() -> None:
    calls = [
        ("ann", "My lamp is broken"),
        ("bob", "My rope is short"),
        ("ann", "What is with the lamp, and with the rope?"),
    ]
    for number, (customer, message) in enumerate(calls):
        result = app.invoke({"customer": customer, "message": message}, thread=f"call-{number}")
        print(f"{customer}, {result['reply']}")
    print("erased:", app.memory.erase(subject="ann"), "left:", app.memory.namespaces())


if __name__ == "__main__":
    main()
