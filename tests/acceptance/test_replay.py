"""Replay: new code against recorded threads, without writing and without calling steps."""

from __future__ import annotations

import builtins
import io
import operator
import os
import random
import socket
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    CheckpointStore,
    Command,
    ExecutionError,
    ExecutionOptions,
    InvalidRequest,
    Retention,
    Send,
    StateGraph,
    flow,
    gather,
    interrupt,
    receive,
    step,
)
from milecastle.ports.batch import Batch
from milecastle.stores.memory import MemoryStore

ran: Counter[str] = Counter()


class ReadOnly(MemoryStore):
    is_open = True

    def commit(self, batch: Batch) -> None:
        assert self.is_open, "a replay has written"
        super().commit(batch)


def work(at: int) -> int:
    ran["work"] += 1
    return at * 2


def counted(store: Any) -> App[Any]:
    @flow(name="f")
    def code(order: int) -> list[int]:
        found: list[int] = [step(work, order)]
        if order % 7 == 3:
            found.append(step(work, order, name="seventh"))
        interrupt("go on?")
        return [*found, *gather(lambda: step(work, 1), lambda: step(work, 2))]

    return code.compile(store=store)


@contextmanager
def nothing_outside() -> Generator[None]:
    """Neither network nor disk: every file or socket is refused."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a replay has used the network or the disk")

    with pytest.MonkeyPatch.context() as patch:
        for place, name in (
            (builtins, "open"),
            (io, "open"),
            (os, "open"),
            (socket, "socket"),
            (sqlite3, "connect"),
            (subprocess, "Popen"),
        ):
            patch.setattr(place, name, refuse)
        yield


def seeded(store: Any) -> App[Any]:
    """The same with one bug: it forgets the seventh."""

    @flow(name="f")
    def code(order: int) -> list[int]:
        found: list[int] = [step(work, order)]
        interrupt("go on?")
        return [*found, *gather(lambda: step(work, 1), lambda: step(work, 2))]

    return code.compile(store=store)


@pytest.mark.requirement("D4")
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_exactly_the_affected_threads_differ(ends: bool, count: int) -> None:
    store = ReadOnly()
    app = counted(store)
    for number in range(count):
        app.invoke({"order": number}, thread=str(number))
        if ends:
            app.resume(str(number), answer=1)
    store.is_open, before = False, ran["work"]

    with nothing_outside():
        same = {app.replay(str(number)).verdict for number in range(count)}
        found = [seeded(store).replay(str(number)) for number in range(count)]

    assert same == {"same"}
    assert [int(one.thread) for one in found if one.verdict == "differs"] == list(
        range(3, count, 7)
    )
    assert "call 2 was step 'seventh', and the code now makes interrupt" in found[3].detail
    assert ran["work"] == before


def test_a_replay_that_uses_the_disk_is_noticed(tmp_path: Path) -> None:
    """The control of the test above: code that reads a file between its calls."""

    @flow
    def reads(path: str) -> str:
        return Path(path).read_text("utf-8")

    (tmp_path / "file").write_text("read")
    app = reads.compile(store=MemoryStore())
    app.invoke(reads.input(str(tmp_path / "file")), thread="t")
    assert app.replay("t").verdict == "same"
    with nothing_outside():
        assert "AssertionError" in app.replay("t").detail


def test_code_that_makes_more_calls_continues_after_the_record() -> None:
    @flow(name="f")
    def more(order: int) -> int:
        return int(step(work, step(work, order), name="more"))

    @flow(name="f")
    async def waits(order: int) -> Any:
        return await receive("go")

    store = ReadOnly()
    app = waits.compile(store=store)
    app.invoke({"order": 1}, thread="t")
    store.is_open = False

    assert app.replay("t").verdict == "same"
    assert more.compile(store=store).replay("t").detail == (
        "in flow 'f' call 1 waits in receive 'go', and the code now makes step 'work'"
    )
    store.is_open = True
    app.send("t", 1, "go")
    store.is_open = False
    assert app.replay("t").verdict == "same"


def test_a_result_that_differs_is_reported() -> None:
    def compiled(store: Any, plus: int) -> App[Any]:
        @flow(name="f")
        def code(order: int) -> int:
            return int(step(work, order)) + plus

        return code.compile(store=store)

    store = ReadOnly()
    compiled(store, 0).invoke({"order": 1}, thread="t")

    assert compiled(store, 0).replay("t").verdict == "same"
    assert compiled(store, 1).replay("t").detail == "its result is not the recorded one"


class Loop(TypedDict):
    n: int


def loop(store: Any, limit: int) -> App[Loop]:
    graph = StateGraph(Loop, name="loop")
    graph.add_node("up", lambda state: {"n": state["n"] + 1})
    graph.add_node("big", lambda state: {"n": state["n"] * 2})
    graph.add_edge(START, "up")
    graph.add_conditional_edges(
        "up", lambda state: "big" if state["n"] >= limit else "up", ["up", "big"]
    )
    graph.add_edge("big", END)
    return graph.compile(store=store)


@pytest.mark.requirement("D4")
def test_a_graphs_edges_are_evaluated_on_recorded_states() -> None:
    """With its control: a router that was not changed leads nowhere else."""
    store = ReadOnly()
    app = loop(store, 3)
    start = random.Random(1)
    starts = {str(number): start.randrange(6) for number in range(20)}
    for thread, n in starts.items():
        app.invoke({"n": n}, thread=thread)
    store.is_open = False

    assert {app.replay(thread).verdict for thread in starts} == {"same"}
    other = loop(store, 2)
    assert [thread for thread in starts if other.replay(thread).verdict == "differs"] == [
        thread for thread, n in starts.items() if n < 2
    ]
    thread = next(thread for thread, n in starts.items() if n == 0)
    assert other.replay(thread).detail == (
        "after step 2 ('up',) it led to 'up', and now leads to 'big'".replace("('up',)", "(up)")
    )


def test_a_flow_of_which_nothing_is_left_is_the_same() -> None:
    """Fails if a fork of its last checkpoint, which has no calls, is run, and differs."""
    store = ReadOnly()
    app = counted(store)
    app.invoke({"order": 3}, thread="t")
    app.resume("t", answer=1)
    app.fork("t", next(iter(app.history("t"))).seq, as_thread="fork")
    store.is_open = False
    found = seeded(store).replay("fork")
    assert (found.verdict, found.calls) == ("same", 0)


def test_a_flow_that_fails_is_the_same_only_if_its_run_did() -> None:
    """Fails if code that raises where the record went on is called the same."""

    def compiled(fails: bool) -> App[Any]:
        @flow(name="f")
        def code(order: int) -> int:
            found = int(step(work, order))
            if fails:
                raise LookupError("no")
            interrupt("go on?")
            return found

        return code.compile(store=store)

    store = ReadOnly()
    with pytest.raises(ExecutionError):
        compiled(fails=True).invoke({"order": 1}, thread="failed")
    compiled(fails=False).invoke({"order": 1}, thread="asks")
    store.is_open = False

    assert compiled(fails=True).replay("failed").verdict == "same"
    found = compiled(fails=True).replay("asks")
    assert (found.verdict, found.detail) == (
        "differs",
        "node 'f' failed at step 1 with LookupError",
    )
    assert compiled(fails=False).replay("failed").detail == "then call 2, interrupt 'go on?'"


def test_edges_that_raise_or_cannot_be_replayed_are_reported() -> None:
    """Fails if a router of the new code ends the replay, or an async one is never called."""

    def leads(router: Any) -> App[Loop]:
        graph = StateGraph(Loop, name="loop")
        graph.add_node("up", lambda state: {"n": state["n"] + 1})
        graph.add_edge(START, "up")
        graph.add_conditional_edges("up", router, {"end": END})
        return graph.compile(store=store)

    async def later(state: Loop) -> str:
        return "end"

    def fails(state: Loop) -> str:
        raise KeyError("gone")

    def ends(state: Loop) -> str:
        return "end"

    store = ReadOnly()
    leads(ends).invoke({"n": 1}, thread="t")
    store.is_open = False

    assert leads(ends).replay("t").verdict == "same"
    assert leads(later).replay("t").detail == (
        "after step 1 (up) it cannot be replayed: an edge is async"
    )
    assert "its edges raise" in leads(fails).replay("t").detail


class Score(TypedDict):
    n: int
    score: int
    log: Annotated[list[str], operator.add]


def scored(store: Any, factor: int = 2, *, is_async: bool = False) -> App[Score]:
    graph = StateGraph(Score, name="scored")

    def score(state: Score) -> dict[str, Any]:
        ran["score"] += 1
        return {"score": state["n"] * factor, "log": ["scored"]}

    async def ascore(state: Score) -> dict[str, Any]:
        return score(state)

    def pay(state: Score) -> Command[Any]:
        ran["pay"] += 1
        return Command(update={"n": state["n"] - 1}, goto="score" if state["n"] > 1 else "ask")

    def ask(state: Score) -> dict[str, Any]:
        return {"log": [interrupt("well?")]}

    graph.add_node("score", ascore if is_async else score)
    graph.add_node("pay", pay, goto=["score", "ask"])
    graph.add_node("ask", ask)
    graph.add_edge(START, "score")
    graph.add_edge("score", "pay")
    graph.add_edge("ask", END)
    return graph.compile(store=store)


@pytest.mark.requirement("D4", api="App.replay")
@pytest.mark.parametrize("is_async", [False, True])
def test_named_nodes_are_called_and_what_they_write_is_compared(is_async: bool) -> None:
    """With its controls: unnamed nodes are not called, and the same code writes the same.

    Fails if the run does not stop after the step (``pay`` is called), or stops before it.
    """
    store = ReadOnly()
    app = scored(store, is_async=is_async)
    app.invoke({"n": 2, "score": 0, "log": []}, thread="t")
    app.resume("t", answer="yes")
    store.is_open, paid = False, ran["pay"]

    assert app.replay("t", nodes=["score"]).verdict == "same"
    assert ran["pay"] == paid
    assert app.replay("t", nodes=["score", "pay", "ask"]).verdict == "same"
    assert ran["pay"] == paid + 2
    other = scored(store, 3, is_async=is_async)
    assert other.replay("t").verdict == "same"
    found = other.replay("t", nodes=["score"])
    assert found.detail == "in step 1 (score) it now writes another 'score'"


def test_a_step_whose_state_before_it_was_pruned_is_not_called() -> None:
    """Fails with ``CheckpointNotFound``."""
    store = MemoryStore()
    app = loop(store, 200)
    app.invoke({"n": 1}, thread="t", options=ExecutionOptions(max_steps=300))
    pruned = CheckpointStore(store).apply_retention("default", Retention(keep_last=5))
    left = len(list(app.history("t")))

    assert pruned.dropped > 100
    assert app.replay("t", nodes=["up", "big"]).calls == left


def test_a_named_node_that_raises_waits_or_is_no_function_is_reported() -> None:
    store = ReadOnly()
    scored(store).invoke({"n": 2, "score": 0, "log": []}, thread="t")
    store.is_open = False

    def fails(state: Score) -> dict[str, Any]:
        raise KeyError("secret")

    def waits(state: Score) -> dict[str, Any]:
        return {"score": interrupt("secret")}

    for node, detail in ((fails, "it now raises KeyError"), (waits, "it now waits: interrupted")):
        graph = StateGraph(Score, name="scored")
        graph.add_node("score", node)
        graph.add_node("pay", lambda state: {})
        graph.add_edge(START, "score")
        graph.add_edge("score", "pay")
        graph.add_edge("pay", END)
        found = graph.compile(store=store).replay("t", nodes=["score"])
        assert found.detail == f"in step 1 (score) {detail}"
    with pytest.raises(InvalidRequest, match="'nope' is not in this graph"):
        scored(store).replay("t", nodes=["nope"])


def test_a_fan_out_is_called_on_its_recorded_items() -> None:
    """Fails if the items of the step, which are not part of the state, are lost."""

    class Sum(TypedDict):
        n: int
        found: Annotated[list[int], operator.add]

    def summed(plus: int) -> App[Sum]:
        graph = StateGraph(Sum, name="sum")
        graph.add_node("spread", lambda state: {})
        graph.add_node("item", lambda state: {"found": [state["n"] + plus]})
        graph.add_edge(START, "spread")
        graph.add_conditional_edges(
            "spread", lambda state: [Send("item", {"n": n}) for n in range(5)], ["item"]
        )
        graph.add_edge("item", END)
        return graph.compile(store=store)

    store = ReadOnly()
    summed(0).invoke({"n": 0, "found": []}, thread="t")
    store.is_open = False
    assert summed(0).replay("t", nodes=["item"]).verdict == "same"
    assert summed(1).replay("t", nodes=["item"]).detail == (
        "in step 2 (item) it now writes another 'found'"
    )
