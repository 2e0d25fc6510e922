"""No crash changes what an agent says, does or spends; the controls show that it would be seen."""

from __future__ import annotations

import os
from typing import Any

import pytest

from milecastle import Context
from milecastle.agents import loop
from milecastle.stores.memory import MemoryStore
from milecastle.testing import CrashMismatch, crash_everywhere
from tests.recovery.agent_scripts import Script, Service, decide, play, told

SCRIPTS = int(os.environ.get("MILECASTLE_AGENT_SCRIPTS", "1000"))
INPUT = {"messages": [{"role": "user", "content": "go", "id": "u"}]}


def crash(script: Script, *, key: str = "key", in_threads: bool = False) -> Service:
    """Crash the script everywhere; return the service that its tools used in all courses."""
    service = Service()
    app = play(script, MemoryStore(), service, key=key, in_threads=in_threads)
    report = crash_everywhere(
        app, INPUT, answer=decide(script), compare=lambda a, b: told(a) == told(b)
    )
    assert report.crashes == 2 * report.effects
    # Each course has a thread of its own, and so keys of its own.
    assert not service.changed
    courses = report.crashes + 1
    acts = len(service.amounts) / courses
    assert acts == int(acts), "a course did more, or less, than the undisturbed one"
    return service


@pytest.mark.parametrize("seed", range(8))
def test_no_crash_changes_a_random_conversation(seed: int) -> None:
    """The controls below are caught by the same comparison."""
    crash(Script.random(seed), in_threads=seed % 4 == 3)


@pytest.mark.slow
def test_no_crash_changes_any_of_many_random_conversations() -> None:
    for seed in range(SCRIPTS):
        crash(Script.random(1000 + seed), in_threads=seed % 10 == 9)


TWO_PAYMENTS = Script(
    [[("pay", {"amount": 4}), ("pay", {"amount": 5})], [("pay", {"amount": 6})]], False, None, 0
)


def test_keys_made_of_the_ids_of_models_lose_payments() -> None:
    """Control: models repeat their ids in each turn."""
    assert len(crash(TWO_PAYMENTS).amounts) % 3 == 0
    with pytest.raises(AssertionError):
        crash(TWO_PAYMENTS, key="given_id")


def test_tools_without_a_task_of_their_own_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: calls that had ended are repeated, all with the same key."""
    real = loop.AgentLoop.turn

    async def turn_with_tools(self: Any, state: Any, ctx: Context) -> Any:
        made = await real(self, state, ctx)
        for call in made["messages"][-1].get("tool_calls", ()):
            made["messages"] += (await self.run({**state, "call": call}, ctx))["messages"]
        return made

    monkeypatch.setattr(loop.AgentLoop, "turn", turn_with_tools)
    with pytest.raises((AssertionError, CrashMismatch)):
        crash(TWO_PAYMENTS)
