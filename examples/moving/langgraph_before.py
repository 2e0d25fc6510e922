"""A support agent, on LangGraph: a model calls tools, and a person approves the risky ones.

python langgraph_before.py ask "My lamp arrived broken."    # stops at the first question
python langgraph_before.py answer yes                       # in another process, on another day
python langgraph_before.py resume                           # after a crash
"""

from __future__ import annotations

import json
import operator
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, RetryPolicy, interrupt

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
    decisions: Annotated[dict[str, bool], operator.or_]  # by the id of the call


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
                {"question": f"{each['name']}?", "show": each["args"]}
            )
    return {"decisions": decisions}


def act(state: Desk) -> dict[str, Any]:
    """Make the calls; a call that a person refused is answered with the refusal."""
    results: list[Any] = []
    for each in calls_of(state):
        if state["decisions"].get(str(each["id"]), True):
            results.append(TOOLS[each["name"]].invoke({**each, "type": "tool_call"}))
        else:
            results.append(ToolMessage("refused by a person", tool_call_id=each["id"]))
    return {"messages": results}


def route(state: Desk) -> Literal["review", "act", "__end__"]:
    names = {each["name"] for each in calls_of(state)}
    return "review" if names & RISKY else "act" if names else END


builder = StateGraph(Desk)
builder.add_node("agent", agent, retry_policy=RetryPolicy(max_attempts=3, initial_interval=0.1))
builder.add_node("review", review)
builder.add_node("act", act)
builder.add_edge(START, "agent")
builder.add_conditional_edges("agent", route)
builder.add_edge("review", "act")
builder.add_edge("act", "agent")


# -- the program ---------------------------------------------------------------------------


def main(verb: str, *words: str) -> None:
    config: Any = {"configurable": {"thread_id": TICKET}, "recursion_limit": 30}
    with SqliteSaver.from_conn_string("desk.db") as saver:
        graph = builder.compile(checkpointer=saver)
        run = partial(graph.invoke, config=config, durability="sync")
        if verb == "ask":
            run({"messages": [HumanMessage(words[0])], "decisions": {}})
        elif verb == "answer":
            run(Command(resume=words[0] == "yes"))
        elif verb == "resume":
            run(None)
        state = graph.get_state(config)
        questions = [asked.value for task in state.tasks for asked in task.interrupts]
        report = {
            "questions": questions,
            "decisions": state.values["decisions"],
            "answer": None if state.next else state.values["messages"][-1].content,
            "effects": effects(),
        }
        print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
