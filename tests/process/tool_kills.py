"""Agents that are killed in their tools and models: ``python -m ...tool_kills``.

The argument is a JSON object, ``Plan``; the ``Found`` of it is printed. Each attempt is a process,
forked from this one, which only imports.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any, cast

import msgspec

from milecastle import open_store
from milecastle.agents import Budget, agent

Message = dict[str, Any]
ASKED = cast("Any", {"messages": [{"role": "user", "content": "go", "id": "u"}]})
TOKENS = 100
"""What one call of the model uses."""


class Plan(msgspec.Struct):
    """``chance`` of a kill in each call, of a tool or, with a ``budget``, of the model."""

    url: str
    folder: str
    seed: int
    runs: int = 1
    turns: int = 5
    chance: float = 0.1
    key: str = "key"
    budget: int = 0
    reserve: int = 0


class Found(msgspec.Struct):
    """Of each run ``keys`` and ``model_calls``; of all, ``kills`` and ``changed`` amounts."""

    kills: int
    requests: int
    keys: list[int]
    changed: int
    model_calls: list[int]


def work(plan: Plan, run: int, attempt: int) -> None:
    """Invoke one run, or die of it."""
    chance = random.Random(f"{plan.seed}/{run}/{attempt}")

    def note(file: str, line: str, *, kills: bool) -> None:
        with Path(plan.folder, f"{file}-{run}").open("a", encoding="utf-8") as found:
            found.write(f"{line}\n")
            found.flush()
            os.fsync(found.fileno())
        if kills and chance.random() < plan.chance:
            os.kill(os.getpid(), signal.SIGKILL)

    def model(messages: list[Message], tools: list[Any]) -> Message:
        note("models", "call", kills=plan.budget > 0)
        made = sum(message["role"] == "assistant" for message in messages)
        calls = [
            {"id": f"call_{n}", "name": "pay", "args": {"amount": 2 * made + n}} for n in (0, 1)
        ]
        done = not plan.budget and made == plan.turns
        return {"tool_calls": [] if done else calls, "usage": {"input": TOKENS}}

    def pay(amount: int, *, call: dict[str, Any]) -> str:
        note("keys", f"{call[plan.key]} {amount}", kills=not plan.budget)
        return f"paid {amount}"

    budget = Budget(tokens=plan.budget, reserve=plan.reserve) if plan.budget else None
    app = agent(model, [pay], budget=budget).compile(store=open_store(plan.url))
    app.invoke(ASKED, thread=f"{plan.seed}-{run}")
    app.close()


def survive(plan: Plan, run: int) -> int:
    """Invoke a run in one process after another, until it ends; return the kills."""
    kills = 0
    while (status := _forked(plan, run, kills)) == -signal.SIGKILL:
        kills += 1
    if status != 0:
        raise RuntimeError(f"a run ended with {status}")
    return kills


def _forked(plan: Plan, run: int, attempt: int) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work(plan, run, attempt)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(plan: Plan) -> Found:
    found = Found(0, 0, [], 0, [])
    for run in range(plan.runs):
        found.kills += survive(plan, run)
        lines = _lines(plan, f"keys-{run}")
        pairs = {tuple(line.split()) for line in lines}
        keys = {key for key, _ in pairs}
        found.requests += len(lines)
        found.keys.append(len(keys))
        found.changed += len(pairs) - len(keys)
        found.model_calls.append(len(_lines(plan, f"models-{run}")))
    return found


def _lines(plan: Plan, name: str) -> list[str]:
    path = Path(plan.folder, name)
    return path.read_text("utf-8").splitlines() if path.exists() else []


if __name__ == "__main__":
    print(msgspec.json.encode(main(msgspec.json.decode(sys.argv[1], type=Plan))).decode())
