"""N1, N2: an agent is a graph like any other, and its budget is part of its state."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from milecastle import App, ExecutionError
from milecastle.agents import AgentState, Budget, ToolDecision, agent, tool

Message = dict[str, Any]
ASKED = cast(
    "Any", {"messages": [{"role": "user", "content": "My lamp arrived broken.", "id": "u"}]}
)


class Bank:
    """Fails once after it has paid, as a service whose answer is lost."""

    def __init__(self) -> None:
        self.paid: dict[str, int] = {}
        self.requests: Counter[str] = Counter()

    def refund(self, order: str, amount: int, *, call: dict[str, Any]) -> str:
        self.requests[call["key"]] += 1
        self.paid[call["key"]] = amount
        return f"paid {amount}"


def desk(bank: Bank, store: str) -> App[AgentState]:
    """Models repeat their ids in each turn: they are not keys."""

    def model(messages: list[Message], tools: list[Message]) -> Message:
        assert [each["name"] for each in tools] == ["refund"]
        made = sum(each["role"] == "assistant" for each in messages)
        if made == 2:
            return {"content": messages[-1]["content"], "usage": {"input": 90, "output": 5}}
        calls = [
            {"id": f"call_{number}", "name": "refund", "args": {"order": "1041", "amount": amount}}
            for number, amount in enumerate((40, 10 + made))
        ]
        return {"tool_calls": calls, "usage": {"input": 50, "output": 5}}

    tools = [tool(bank.refund, approve=lambda args: args["amount"] > 20)]
    graph = agent(model, tools, system="You are a support agent.", budget=Budget(tokens=500))
    return graph.compile(store=store)


@pytest.mark.requirement("N1", api="milecastle.agents.agent")
def test_an_agent_is_an_ordinary_graph_with_approvals(tmp_path: Path) -> None:
    """A model and tools become a graph; each tool call has a task and a key of its own."""
    bank, store = Bank(), f"sqlite:///{tmp_path}/desk.db"
    with closing(desk(bank, store)) as app:
        assert [*app.graph.nodes] == ["call_model", "run_tool"]
        asked = app.invoke(ASKED, thread="t-17").interrupts
        assert [each.question for each in asked] == ["Call refund?"]
        assert [*bank.paid.values()] == [10]
    with closing(desk(bank, store)) as app:  # days later, in another process
        app.resume("t-17", ToolDecision(approve=True, args={"order": "1041", "amount": 30}))
        done = app.resume("t-17", ToolDecision(approve=False))
    assert done["messages"][-1]["content"].endswith("paid 11")
    assert sorted(bank.paid.values()) == [10, 11, 30]
    assert {*bank.requests.values()} == {1}


@pytest.mark.requirement("N2", api="milecastle.agents.Budget")
def test_a_budget_is_part_of_the_state_and_holds_across_processes(tmp_path: Path) -> None:
    """Tokens that were used are in the state; a lost call counts as what was reserved."""
    lost = [True, False, True]

    def model(messages: list[Message]) -> Message:
        if lost and lost.pop(0):
            raise ConnectionError("the answer is lost")
        calls: list[Any] = [{"name": "look", "args": {}}]
        return {"tool_calls": calls, "usage": {"input": 90, "output": 10}}

    def look() -> str:
        return "nothing"

    store = f"sqlite:///{tmp_path}/b.db"
    graph = agent(model, [look], budget=Budget(tokens=500, reserve=100))
    for _ in range(2):
        with closing(graph.compile(store=store)) as app, pytest.raises(ExecutionError):
            app.invoke(ASKED, thread="t")
    with closing(graph.compile(store=store)) as app:
        state: Any = app.invoke(ASKED, thread="t").state
    assert state["stopped"] == "budget"
    assert state["used"] == {"input": 270, "output": 30, "lost": 200}


@pytest.mark.requirement("N1", api="milecastle.agents.agent")
def test_a_message_to_an_agent_is_answered_behind_the_results(tmp_path: Path) -> None:
    """A person steers an agent: the order is one that providers accept."""

    def model(messages: list[Message]) -> Message:
        if len(messages) == 1:
            app.send("t", "be brief", "user", by="ann")
            return {"tool_calls": [{"name": "look", "args": {}}]}
        return {"content": "yes" if messages[-1]["content"] == "be brief" else "no"}

    def look() -> str:
        return "nothing"

    app = agent(model, [look]).compile(store=f"sqlite:///{tmp_path}/s.db")
    roles = [each["role"] for each in app.invoke(ASKED, thread="t")["messages"]]
    assert roles == ["user", "assistant", "tool", "user", "assistant"]
    app.close()
