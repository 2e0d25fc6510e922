"""The same support agent, on Milecastle. The services, the tools and the model are unchanged.

python langgraph_after.py ask "My lamp arrived broken."     # stops at the first question
python langgraph_after.py answer yes                        # in another process, on another day
python langgraph_after.py resume                            # after a crash
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import InjectedToolCallId, tool

from milecastle import (
    END,
    START,
    Context,
    ExecutionConfig,
    MessagesState,
    Retry,
    StateGraph,
    interrupt,
    merge,
)

TICKET = "ticket-17"
RISKY = {"refund", "voucher"}
REQUESTS = Path("requests.jsonl")  # what the bank, the mail and the ticket service received


# -- the services --------------------------------------------------------------------------


def request(key: str, kind: str, **details: Any) -> str:
    """Send a request. A service ignores a second request with the same key."""
    if os.environ.get("KILL_AT") == kind and not Path("killed").exists():
        Path("killed").touch()  # for the test: die once, in the middle of a tool
        os.kill(os.getpid(), signal.SIGKILL)
    with REQUESTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"key": key, "kind": kind, **details}) + "\n")
    return f"{kind} done"


def effects() -> list[dict[str, Any]]:
    """What the services did: one entry for each key, ordered by it."""
    lines = REQUESTS.read_text("utf-8").splitlines() if REQUESTS.exists() else []
    found = {entry["key"]: entry for entry in map(json.loads, lines)}
    return [found[key] for key in sorted(found)]


# -- the tools -----------------------------------------------------------------------------

Key = Annotated[str, InjectedToolCallId]  # the id of the call is the idempotency key


@tool
def find_order(order: str) -> str:
    """Look up an order."""
    return json.dumps({"order": order, "item": "lamp", "price": 40, "mail": "ann@example.org"})


@tool
def read_policy(topic: str) -> str:
    """Read what the company promises."""
    return f"{topic}: the full price is refunded within 30 days"


@tool
def refund(order: str, amount: int, key: Key) -> str:
    """Pay money back."""
    return request(key, "refund", order=order, amount=amount)


@tool
def voucher(order: str, amount: int, key: Key) -> str:
    """Give a voucher."""
    return request(key, "voucher", order=order, amount=amount)


@tool
def send_mail(to: str, text: str, key: Key) -> str:
    """Send a mail to the customer."""
    return request(key, "mail", to=to, text=text)


@tool
def close_ticket(ticket: str, key: Key) -> str:
    """Close the ticket."""
    return request(key, "close", ticket=ticket)


TOOLS = {
    each.name: each for each in (find_order, read_policy, refund, voucher, send_mail, close_ticket)
}


# -- the model -----------------------------------------------------------------------------


def call(id: str, name: str, **args: Any) -> ToolCall:
    return ToolCall(id=id, name=name, args=args)


class ScriptedModel(BaseChatModel):
    """A chat model without a network. Its reply depends on the conversation."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        results = {m.tool_call_id: str(m.content) for m in messages if isinstance(m, ToolMessage)}
        reply = AIMessage("", tool_calls=self.next_calls(results))
        if not reply.tool_calls:
            reply = AIMessage(f"Your ticket is closed. Refund: {results['c3']}.")
        return ChatResult(generations=[ChatGeneration(message=reply)])

    def next_calls(self, results: dict[str, str]) -> list[ToolCall]:
        if "c1" not in results:
            return [
                call("c1", "find_order", order="1041"),
                call("c2", "read_policy", topic="damage"),
            ]
        order = json.loads(results["c1"])
        if "c3" not in results:
            asked = {"order": order["order"], "amount": order["price"]}
            return [call("c3", "refund", **asked), call("c4", "voucher", **{**asked, "amount": 10})]
        if "c5" not in results:
            text = f"Refund: {results['c3']}. Voucher: {results['c4']}."
            return [
                call("c5", "send_mail", to=order["mail"], text=text),
                call("c6", "close_ticket", ticket=TICKET),
            ]
        return []


model = ScriptedModel()


# -- the graph -----------------------------------------------------------------------------


class Desk(MessagesState):
    decisions: Annotated[dict[str, bool], merge]  # by the id of the call


def calls_of(state: Desk) -> list[ToolCall]:
    last = state["messages"][-1]
    return last.tool_calls if isinstance(last, AIMessage) else []


def agent(state: Desk) -> dict[str, Any]:
    return {"messages": [model.invoke(state["messages"])]}


def review(state: Desk) -> dict[str, Any]:
    """Ask a person about each risky call."""
    decisions = {}
    for each in calls_of(state):
        if each["name"] in RISKY:
            decisions[str(each["id"])] = interrupt(
                f"{each['name']}?", show=each["args"], answer=bool
            )
    return {"decisions": decisions}


def act(state: Desk, ctx: Context) -> dict[str, Any]:
    """Make the calls; a call that a person refused is answered with the refusal."""
    results: list[Any] = []
    for each in calls_of(state):
        if state["decisions"].get(str(each["id"]), True):
            given = {**each, "type": "tool_call"}
            results.append(ctx.once(f"call {each['id']}", TOOLS[each["name"]].invoke, given))
        else:
            results.append(ToolMessage("refused by a person", tool_call_id=each["id"]))
    return {"messages": results}


def route(state: Desk) -> Literal["review", "act", "__end__"]:
    names = {each["name"] for each in calls_of(state)}
    return "review" if names & RISKY else "act" if names else END


builder = StateGraph(Desk)
builder.add_node("agent", agent, retry=Retry(attempts=3, delay=0.1))
builder.add_node("review", review)
builder.add_node("act", act)
builder.add_edge(START, "agent")
builder.add_conditional_edges("agent", route)
builder.add_edge("review", "act")
builder.add_edge("act", "agent")
builder.with_default_config(ExecutionConfig(max_steps=30))


# -- the program ---------------------------------------------------------------------------


def main(verb: str, *words: str) -> None:
    app = builder.compile(store="sqlite:///desk.db")
    if verb == "ask":
        app.invoke({"messages": [HumanMessage(words[0])], "decisions": {}}, thread=TICKET)
    elif verb == "answer":
        app.resume(TICKET, answer=words[0] == "yes")
    elif verb == "resume":
        app.resume(TICKET)
    state = app.state(TICKET)
    questions = [{"question": asked.question, "show": asked.show} for asked in state.interrupts]
    report = {
        "questions": questions,
        "decisions": state["decisions"],
        "answer": None if state.next else state["messages"][-1].content,
        "effects": effects(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
