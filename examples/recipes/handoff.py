"""Several agents: a desk hands a conversation over to a specialist, who asks another agent.

A handoff changes who continues the same conversation; a subagent has its own, and gives back a
result. The models are scripted.
"""

from __future__ import annotations

from typing import Any

from milecastle.agents import Role, Subagent, agent

Message = dict[str, Any]


def results_of(messages: list[Message]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "tool"]


def call(name: str, **args: Any) -> Message:
    return {"tool_calls": [{"name": name, "args": args}]}


def desk_model(messages: list[Message], tools: list[Message]) -> Message:
    return call("hand_off", to="billing", note="it is about an invoice")


def billing_model(messages: list[Message], tools: list[Message]) -> Message:
    found = results_of(messages)
    if len(found) == 1:  # the result of the handoff
        return call("law", task="May a customer return a lamp after 20 days?")
    return {"content": f"You get your money back. {found[-1]}"}


def law_model(messages: list[Message], tools: list[Message]) -> Message:
    return {"content": "Goods may be returned for 30 days."}


law = Subagent(agent(law_model, [], name="law"), "Ask a lawyer.")
desk = agent(
    desk_model,
    [],
    handoffs={"billing": Role(billing_model, [], system="You know invoices.")},
    subagents={"law": law},
    name="desk",
)
app = desk.compile(store="memory://")


def main() -> None:
    said = {"role": "user", "content": "I want to return my lamp."}
    done = app.invoke({"messages": [said]}, thread="t-18")
    print(done["messages"][-1]["content"])


if __name__ == "__main__":
    main()
