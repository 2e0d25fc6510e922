"""Random scripts of a model, and the agents that play them.

A script is a list of turns, each a list of calls; a model plays the turn whose number is that of
the assistant's messages. So it says the same after a crash. Tools that act count their keys.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from milecastle import App, Context, Retry, Store, current
from milecastle.agents import Budget, Handoff, Role, agent, tool
from milecastle.records import Interrupt

Message = dict[str, Any]
Calls = list[tuple[str, dict[str, Any]]]

_KINDS: dict[str, Callable[[random.Random], tuple[str, dict[str, Any]]]] = {
    "acts": lambda chance: ("pay", {"amount": chance.randint(1, 9)}),
    "asks": lambda chance: ("refund", {"amount": chance.randint(1, 9)}),
    "fails": lambda chance: ("fail", {}),
    "is retried": lambda chance: ("insist", {"amount": chance.randint(1, 9)}),
    "wrong": lambda chance: ("pay", {"amount": "much"}),
    "unknown": lambda chance: ("nothing", {}),
    "hands off": lambda chance: ("move", {"to": chance.choice(["billing", "agent", "nobody"])}),
    "steers": lambda chance: ("steer", {"text": f"remark {chance.randint(1, 9)}"}),
    "delegates": lambda chance: ("research", {"task": f"task {chance.randint(1, 9)}"}),
    "delegates wrongly": lambda chance: ("research", {"tasks": 1}),
}


class Script(NamedTuple):
    """What a model asks for, turn by turn; and whether it is steered during its last reply."""

    turns: list[Calls]
    is_steered: bool
    budget: Budget | None
    answers: int

    @classmethod
    def random(cls, seed: int) -> Script:
        chance = random.Random(seed)
        turns = [
            [chance.choice([*_KINDS.values()])(chance) for _ in range(chance.randint(1, 3))]
            for _ in range(chance.randint(1, 3))
        ]
        budgets = [None, None, Budget(tokens=200), Budget(tokens=120, then="ask")]
        return cls(turns, chance.random() < 0.4, chance.choice(budgets), seed)


class Service:
    """Does each thing once for each key."""

    def __init__(self) -> None:
        self.amounts: dict[str, int] = {}
        self.requests: Counter[str] = Counter()
        self.changed: list[str] = []

    def pay(self, key: str, amount: int) -> None:
        self.requests[key] += 1
        if self.amounts.setdefault(key, amount) != amount:
            self.changed.append(key)


def play(
    script: Script,
    store: Store,
    service: Service,
    *,
    key: str = "key",
    in_threads: bool = False,
    seen: list[list[Message]] | None = None,
) -> App[Any]:
    """Compile an agent that plays the script. ``key`` is what its tools take for the key.

    ``seen`` gets the messages of each call.
    """

    def reply(messages: Sequence[Message]) -> Message:
        place = sum(message["role"] == "assistant" for message in messages)
        if place < len(script.turns):
            calls = [
                {"id": f"call_{n}", "name": name, "args": args}
                for n, (name, args) in enumerate(script.turns[place])
            ]
            return {"tool_calls": calls, "usage": {"input": 30, "output": 10}}
        ctx = current()
        if script.is_steered and place == len(script.turns) and ctx.thread is not None:
            ctx.send(ctx.thread.thread, "one more thing", "user")
        return {"content": f"done after {len(messages)}", "usage": {"input": 30, "output": 10}}

    async def reply_on_loop(messages: list[Message], tools: list[Any]) -> Message:
        return reply([each for each in messages if each["role"] != "system"])

    def reply_here(messages: list[Message], tools: list[Any]) -> Message:
        if seen is not None:
            seen.append(messages)
        return reply(messages)

    def pay(amount: int, *, call: dict[str, Any]) -> str:
        service.pay(call.get(key, ""), amount)
        return f"paid {amount}"

    def refund(amount: int, *, call: dict[str, Any]) -> str:
        service.pay(call.get(key, ""), amount)
        return f"refunded {amount}"

    def insist(amount: int, *, ctx: Context, call: dict[str, Any]) -> str:
        service.pay(call.get(key, ""), amount)
        if ctx.attempt < 2:
            raise ConnectionError("not yet")
        return f"insisted on {amount}"

    def fail() -> None:
        raise ValueError("it always fails")

    def move(to: str) -> Handoff:
        return Handoff(to)

    def steer(text: str, *, ctx: Context) -> str:
        assert ctx.thread is not None
        ctx.send(ctx.thread.thread, text, "user")
        return "steered"

    def answer_task(messages: list[Message]) -> Message:
        return {"content": f"did {messages[-1]['content']}", "usage": {"input": 5, "output": 5}}

    model = reply_on_loop if in_threads else reply_here
    tools: list[Any] = [
        pay,
        tool(refund, approve=lambda args: args["amount"] > 3),
        tool(insist, retry=Retry(attempts=20, delay=0)),
        fail,
        move,
        steer,
    ]
    graph = agent(
        model,
        tools,
        budget=script.budget,
        handoffs={"billing": Role(model, [pay, steer], "You are billing.")},
        subagents={"research": agent(answer_task, name="researcher")},
    )
    return graph.compile(store=store)


def decide(script: Script) -> Callable[[Interrupt], Any]:
    """Approve, edit or refuse, as the call says; grant a little when the budget is used up."""

    def answer(asked: Interrupt) -> Any:
        show: Mapping[str, Any] = asked.show
        if "used" in show:
            return {"tokens": 60 if show["used"].get("input", 0) < 100 else 0}
        choice = (script.answers + show["args"]["amount"]) % 3
        choices: list[Any] = [
            {"approve": True},
            {"approve": True, "args": {"amount": 2}},
            {"approve": False, "reason": "too much"},
        ]
        return choices[choice]

    return answer


def told(state: Any) -> dict[str, Any]:
    """What must be the same whatever crashed: all but ids, and the order of remarks that follow
    each other: tools of one turn run in parallel, and those that steer send in any order.
    """
    said: list[Any] = []
    for is_remark, run in groupby(state["messages"], lambda each: each["role"] == "user"):
        found = [
            (each["role"], each["content"], [call["args"] for call in each.get("tool_calls", ())])
            for each in run
        ]
        said += sorted(found) if is_remark else found
    rest = ("used", "active", "stopped", "turns", "granted", "steering")
    return {"messages": said} | {name: state.get(name) for name in rest}
