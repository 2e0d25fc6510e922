"""Threads that wait, in fan-outs and in a subgraph, are read and resumed forever.

The golden folder was written by ``python -m tests.migration.test_waits FOLDER``. Until the first
release is tagged, a change of version 1 makes it again; then it never changes.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated, Any, TypedDict
from unittest.mock import patch

import pytest

from milecastle import END, START, App, Context, StateGraph, append, interrupt
from milecastle.model.checkpoint import to_datetime
from milecastle.stores.jsonl import JsonlStore
from milecastle.testing import ManualClock, with_store

GOLDEN = Path(__file__).parent / "golden" / "waits-v1"
BEGAN = 1_700_000_000_000_000


class State(TypedDict):
    items: list[str]
    item: str
    out: Annotated[list[str], append]


def work(state: State, ctx: Context) -> dict[str, Any]:
    """Sleeps and asks, in the order of its item: ``s`` sleeps an hour, ``q`` asks."""
    found: list[str] = []
    for what in state["item"]:
        if what == "s":
            ctx.sleep(3600)
            found.append("slept")
        else:
            found.append(interrupt(f"{state['item']}?", answer=str))
    return {"out": [" ".join(found)]}


def last(state: State) -> dict[str, Any]:
    return {"out": [interrupt("all?", answer=str)]}


def golden_app(folder: Path, now: int) -> App[State]:
    inner: StateGraph[State] = StateGraph(State, name="inner")
    inner.add_node("work", work)
    inner.map(START, "work", over="items", item="item")
    inner.add_edge("work", END)
    graph: StateGraph[State] = StateGraph(State, name="golden")
    graph.add_node("work", work)
    graph.add_node("sub", inner.compile())
    graph.add_node("last", last)
    graph.map(START, "work", over="items", item="item")
    graph.add_edges("work", "sub", "last", END)
    app = graph.compile(store="memory://")
    return with_store(app, JsonlStore(folder), clock=ManualClock(now))


def write(folder: Path) -> None:
    starting = "milecastle.app.runs.starting"
    with (
        patch(f"{starting}.describe_environment", dict),
        patch(f"{starting}.current_owner", lambda: None),
    ):
        _write(folder)


def _write(folder: Path) -> None:
    app, hour = golden_app(folder, BEGAN), 3601
    app.invoke({"items": ["sq", "qs", "s"]}, "first")
    app.invoke({"items": ["sq", "s"]}, "second")
    later = golden_app(folder, BEGAN + hour * 1_000_000)
    later.resume("second")
    app.invoke({"items": ["q", "s"]}, "third")
    later.resume("third", "in the first step")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "store"))


def answer_all(app: App[State], thread: str) -> list[str]:
    """Answer every open question, one after the other; the result of the thread."""
    while found := app.state(thread).interrupts:
        app.resume(thread, answers={found[0].id: f"yes to {found[0].question}"})
    return app.state(thread).state["out"]


def test_golden_questions_and_sleeps_are_still_waited_for(folder: Path) -> None:
    """Fails if ``__waits__`` has another name or form."""
    app = golden_app(folder, BEGAN)
    found = {
        name: (
            app.state(name).status,
            app.state(name).wake_at,
            [(one.id, one.question) for one in app.state(name).interrupts],
        )
        for name in ("first", "second", "third")
    }
    begins, again = (to_datetime(BEGAN + late * 1_000_000) for late in (3600, 7201))
    assert found == {
        "first": ("interrupted", begins, [("1.1:work#1/0", "qs?")]),
        "second": ("interrupted", None, [("1.1:work#0/0", "sq?")]),
        "third": ("interrupted", again, [("4.2:sub/1.1:work#0/0", "q?")]),
    }


def test_golden_threads_continue_to_their_ends(folder: Path) -> None:
    """A sleep that was over is not slept again, and no old question comes back later.

    Fails if sleeps or answers have other labels: ``second`` sleeps or asks again.
    """
    now = BEGAN + 3601 * 1_000_000
    app = golden_app(folder, now)
    app.resume("second", "fine")
    assert app.state("second").wake_at == to_datetime(now + 3600 * 1_000_000)  # the subgraph's
    later = golden_app(folder, now + 4000 * 1_000_000)
    later.resume("second")
    assert answer_all(later, "second") == [
        "slept fine",
        "slept",
        "slept yes to sq?",
        "slept",
        "yes to all?",
    ]
    later.resume("third")
    assert answer_all(later, "third") == [
        "in the first step",
        "slept",
        "yes to q?",
        "slept",
        "yes to all?",
    ]


def test_forks_of_golden_threads_keep_their_waits(folder: Path) -> None:
    """Tried: ``branched`` that keeps no labels; the forks ask nothing."""
    app = golden_app(folder, BEGAN)
    head = app.state("first").seq
    app.fork("first", head, as_thread="copy")
    assert [one.question for one in app.state("copy").interrupts] == ["qs?"]
    app.fork("first", head)
    assert [one.question for one in app.state("first").interrupts] == ["qs?"]
    assert app.state("first").wake_at == to_datetime(BEGAN + 3600 * 1_000_000)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
