"""The head of a thread and the record of its run are read as of one moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import END, START, App, RunInProgress, StateGraph, Store, append, interrupt
from milecastle.model.keys import ThreadKey
from milecastle.server.service import Service
from milecastle.server.threads import show_thread
from tests.every_store import EVERY_KIND, Stores


class Log(TypedDict):
    log: Annotated[list[str], append]


@pytest.fixture(params=EVERY_KIND)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    stores = Stores(tmp_path)
    yield stores.open(request.param)
    stores.close()


class Racing:
    """A run that asks its question while another call reads the thread."""

    def __init__(self, store: Store) -> None:
        self.inside, self.may_continue = threading.Event(), threading.Event()
        graph: StateGraph[Log] = StateGraph(Log)
        graph.add_node("a", self.wait)
        graph.add_node("ask", lambda state: {"log": [interrupt("well?", answer=str)]})
        graph.add_edges(START, "a", "ask", END)
        self.app: App[Log] = graph.compile(store=store)
        self.pool = ThreadPoolExecutor(1)
        self.run: Future[Any] = self.pool.submit(self.app.invoke, {"log": []}, "t")
        assert self.inside.wait(60)

    def wait(self, state: Log) -> dict[str, Any]:
        self.inside.set()
        self.may_continue.wait(60)
        return {"log": ["a"]}

    def finish(self) -> None:
        """Let the run come to its question."""
        self.may_continue.set()
        self.run.result(60)


def between_reads(store: Store, racing: Racing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the run ask when a reader has the head, and comes for the record."""
    read = store.run

    def later(key: ThreadKey, run_id: str) -> Any:
        racing.finish()
        return read(key, run_id)

    monkeypatch.setattr(store, "run", later)


def test_a_state_that_is_read_while_a_run_stops_is_not_interrupted_without_a_question(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was broken: the head before the question came with the record after it, and the thread was
    said to be interrupted at a node that asks nothing.
    """
    racing = Racing(store)
    between_reads(store, racing, monkeypatch)
    found = racing.app.state("t")
    assert (found.status, found.interrupts) == ("running", ())
    racing.finish()


def test_what_is_shown_while_a_run_stops_is_not_interrupted_without_a_question(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was broken: ``show`` and the API read the record of the run after the head."""
    racing = Racing(store)
    between_reads(store, racing, monkeypatch)
    found = show_thread(Service([racing.app], worker=False), ThreadKey("default", "t"))
    asked = [one.question for one in found.questions]
    assert (found.status, asked) in (("running", []), ("interrupted", ["well?"]))
    racing.finish()


def test_a_call_again_while_a_run_stops_gets_no_invented_interrupt(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was broken: ``invoke`` returned an older state as interrupted."""
    racing = Racing(store)
    between_reads(store, racing, monkeypatch)
    with pytest.raises(RunInProgress):
        racing.app.invoke({"log": []}, "t")
    racing.finish()
    again = racing.app.invoke({"log": []}, "t")
    assert [one.question for one in again.interrupts] == ["well?"]
