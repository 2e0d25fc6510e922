"""M2: with ``quiet``, a burst of messages wakes a thread that waits once, with all of them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import END, START, InvalidRequest, StateGraph, Store, append, inbox
from tests.acceptance.fleet.working import line, note, serving, start, until, work


class Chat(TypedDict):
    said: Annotated[list[str], append, inbox("user")]
    turns: Annotated[list[int], append]


@pytest.mark.requirement("M2", api="App.send")
def test_a_burst_of_messages_starts_one_run(store: Store) -> None:
    """Failed with a thread that is due at its first message."""

    def answer(state: Chat) -> dict[str, Any]:
        return {"turns": [len(state["said"])]}

    graph: StateGraph[Chat] = StateGraph(Chat, name="chat")
    graph.add_node("answer", answer)
    graph.add_edges(START, "answer", END)
    app = graph.compile(store=store)
    app.submit({"said": ["first"], "turns": []}, "t")
    work(app)

    async def talk() -> None:
        async with serving(app):
            for number in range(5):
                await app.asend("t", f"m{number}", "user", quiet=1.0)
                await asyncio.sleep(0.1)

            async def has_answered() -> bool:
                return len((await app.astate("t")).state["turns"]) > 1

            await until(has_answered)

    asyncio.run(talk())
    assert app.state("t").state["turns"] == [1, 6]


@pytest.mark.requirement("M2", api="App.send")
@pytest.mark.parametrize(
    "times",
    [
        {"at_most": 3.0},
        {"quiet": -1.0},
        {"quiet": 1e9},
        {"quiet": float("nan")},
        {"quiet": 1.0, "at_most": -1.0},
    ],
    ids=str,
)
def test_wrong_times_are_refused(store: Store, times: dict[str, Any]) -> None:
    app = line(store, ("a", note("a")))
    app.submit(start(), "t")
    with pytest.raises(InvalidRequest, match=r"(quiet|at_most)="):
        app.send("t", "m", **times)
    assert list(app.mailbox("t")) == []
