"""No history that calls of the public interface leave is refused by a provider."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any, cast

import pytest

from milecastle import App, Remove
from milecastle.agents import loop, wire
from milecastle.errors import MilecastleError
from milecastle.stores.memory import MemoryStore
from tests.recovery.agent_scripts import Message, Script, Service, decide, play
from tests.unit.agents.provider_rules import anthropic_refuses, openai_refuses

HISTORIES = int(os.environ.get("MILECASTLE_AGENT_HISTORIES", "10000"))


def refusals(seed: int) -> Iterator[str]:
    """Play a script, with a fork, a cancellation, a remark or a lost message here and there."""
    chance, seen = random.Random(seed), list[list[Message]]()
    script = Script.random(seed)
    app = play(script, MemoryStore(), Service(), seen=seen)
    answer = decide(script)
    thread = "t0"
    _try(app.invoke, {"messages": [{"role": "user", "content": "go"}]}, thread=thread)
    for number in range(4):
        thread = _disturb(app, thread, number, chance)
        snapshot = app.state(thread)
        if asks := [asked for asked in snapshot.interrupts if asked.asks]:
            asked = asks[0]
            _try(app.resume, thread, answers={asked.id: answer(asked)})
        elif snapshot.next:
            _try(app.resume, thread)
        else:
            more = {"messages": [{"role": "user", "content": f"more {number}"}]}
            _try(app.invoke, more, thread=thread)
    for messages in seen:
        yield from openai_refuses(wire.to_openai(messages))
        yield from anthropic_refuses(wire.to_anthropic(messages)[1])


def _disturb(app: App[Any], thread: str, number: int, chance: random.Random) -> str:
    match chance.randint(0, 5):
        case 0:
            at = chance.choice([each.seq for each in app.history(thread)])
            app.fork(thread, at, as_thread=f"t{number + 1}")
            return f"t{number + 1}"
        case 1:
            app.cancel(thread)
        case 2:
            app.send(thread, chance.choice(["", "be brief"]), "user")
        case 3:
            app.update_state(thread, {"messages": [{"role": "user", "content": "a remark"}]})
        case 4:
            found = app.state(thread).state["messages"]
            app.update_state(thread, {"messages": [Remove(chance.choice(found)["id"])]})
        case _:
            pass
    return thread


def _try(call: Any, *given: Any, **named: Any) -> None:
    try:
        call(*given, **named)
    except MilecastleError as error:
        if error.code not in ("MC206", "MC301", "MC302", "MC305"):
            raise


@pytest.mark.parametrize("seeds", [range(60)])
def test_no_history_is_refused(seeds: range) -> None:
    """The controls below are refused."""
    assert {seed: found for seed in seeds if (found := [*refusals(seed)])} == {}


@pytest.mark.slow
def test_none_of_many_histories_is_refused() -> None:
    for seed in range(1000, 1000 + HISTORIES):
        assert [*refusals(seed)] == [], seed


def test_histories_that_are_not_closed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: messages as they are in the state."""

    def as_they_are(messages: Any) -> list[Message]:
        return [*messages]

    monkeypatch.setattr(loop, "closed", as_they_are)
    monkeypatch.setattr(wire, "closed", as_they_are)
    assert any([*refusals(seed)] for seed in range(60))


def test_imported_histories_are_made_fit() -> None:
    history: list[Message] = [
        {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "name": "n", "args": {}}]},
        {"role": "user", "content": " "},
        {"role": "tool", "tool_call_id": "z", "name": "n", "content": "of no call"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "well?"},
    ]
    assert [*openai_refuses(wire.to_openai(history))] == []
    assert [*anthropic_refuses(wire.to_anthropic(history)[1])] == []
    broken = cast("Any", [{"role": "tool", "tool_call_id": "z", "content": ""}])
    assert [*openai_refuses(broken)] != []
