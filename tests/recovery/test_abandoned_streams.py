"""A stream that nobody reads any more, collected in the middle of a commit: nothing hangs."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from types import FrameType
from typing import Any, TypedDict

import pytest

import milecastle
from milecastle import END, START, App, StateGraph, Store, ThreadKey
from milecastle.app.results import Result
from milecastle.app.runs import streams as event_stream
from milecastle.app.runs.calls import Call
from milecastle.stores.memory import MemoryStore
from tests.every_store import EVERY_KIND, Stores

PACKAGE = Path(milecastle.__file__).parent
PLACES = (str(PACKAGE / "stores"), str(PACKAGE / "drivers" / "committer.py"))
LIMIT = 60.0
STRIDE = 7
"""Not every line: a commit of a database has hundreds, and locks are held over many."""


class Count(TypedDict):
    n: int


def app_on(store: Store, *, is_async: bool = False, **options: Any) -> App[Count]:
    def add(state: Count) -> dict[str, int]:
        return {"n": state["n"] + 1}

    async def aadd(state: Count) -> dict[str, int]:
        return {"n": state["n"] + 1}

    graph: StateGraph[Count] = StateGraph(Count)
    for name in ("a", "b", "c"):
        graph.add_node(name, aadd if is_async else add)
    graph.add_edges(START, "a", "b", "c", END)
    return graph.compile(store=store, **options)


def abandon(events: Iterator[Any]) -> None:
    """Read one event, and leave the rest to the garbage collector.

    The run is older than what keeps it, as it is in a long-lived process: the young generation is
    collected first, and the run ends with what referred to it.
    """
    next(events)
    gc.collect()
    ring: dict[str, Any] = {"events": events}
    ring["ring"] = ring


def abandon_stream(app: App[Count], thread: str) -> None:
    abandon(iter(app.stream({"n": 0}, thread)))


def abandon_driver(app: App[Count], thread: str) -> None:
    """The control: the generator of the run itself, which closes wherever it is collected."""
    planned = app.runner.begin(Call(input={"n": 0}, thread=thread, mode="updates"))
    assert not isinstance(planned, Result)
    abandon(planned.events())


@contextmanager
def collecting_at(line: int, reached: list[int]) -> Generator[None, None, None]:
    """Collect garbage at the n-th line of the stores; notes how many there were."""
    seen = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal seen
        if not frame.f_code.co_filename.startswith(PLACES):
            return None
        if event == "line":
            seen += 1
            if seen == line:
                gc.collect(0)
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)
        reached.append(seen)


def collect_at_lines(
    app: App[Count], reached: list[int], abandoning: Callable[[App[Count], str], None]
) -> None:
    """Begin a run, once for each line to try, and collect an abandoned stream at that line."""
    assert app.store is not None
    stopping = app_on(app.store, interrupt_before=["a"])
    line, lines = 0, 1
    while line < lines:
        line += STRIDE if app.store.blocking else 1
        abandoning(app, f"left {line}")
        with collecting_at(line, reached):
            stopping.invoke({"n": 0}, f"begun {line}")
        lines = max(lines, reached[-1])
        gc.collect()


def hangs_at(
    app: App[Count], abandoning: Callable[[App[Count], str], None] = abandon_stream
) -> int | None:
    """The line of the stores at which the process hangs; ``None`` if it does not."""
    reached: list[int] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            collect_at_lines(app, reached, abandoning)
        except BaseException as error:
            errors.append(error)

    gc.collect()
    gc.freeze()  # what is here already need not be looked at each time
    gc.disable()
    try:
        worker = Thread(target=work, daemon=True)
        worker.start()
        known, since = 0, monotonic()
        while worker.is_alive():
            worker.join(0.05)
            if len(reached) != known:
                known, since = len(reached), monotonic()
            elif monotonic() - since > (LIMIT if abandoning is abandon_stream else 3):
                return known + 1
    finally:
        gc.enable()
    assert not errors, errors
    assert len(reached) > 10
    return None


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    opened = Stores(tmp_path)
    yield opened
    opened.close()


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_stream_collected_at_any_line_of_a_commit_does_not_hang(
    stores: Stores, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when the generator of the run is closed where it is collected (no EventStream)."""
    monkeypatch.setattr(event_stream, "_PATIENCE", 0.01)
    store = stores.open(kind)
    app = app_on(store)
    assert hangs_at(app) is None
    wait_until(
        lambda: {info.status for info in store.threads("default")} == {"interrupted", "cancelled"}
    )


def test_generator_closed_where_it_is_collected_hangs() -> None:
    """The control: the same harness reports the line."""
    assert hangs_at(app_on(MemoryStore()), abandon_driver) is not None


def wait_until(holds: Callable[[], bool]) -> None:
    end = monotonic() + LIMIT
    while not holds():
        assert monotonic() < end, "it did not come to that"
        sleep(0.01)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_stream_that_is_left_in_the_middle_is_closed_at_once(
    stores: Stores, kind: str, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a stream that is dropped does not wait for its run to be closed."""
    monkeypatch.setattr(event_stream, "_PATIENCE", LIMIT)
    app = app_on(stores.open(kind), is_async=is_async)
    for _ in app.stream({"n": 0}, "t"):
        break
    assert app.state("t").status == "cancelled"
    assert app.resume("t")["n"] == 3


def test_finished_streams_are_not_retained() -> None:
    """Fails when a stream that was read to its end, failed or was closed stays registered."""
    store = MemoryStore()
    app = app_on(store)
    assert len(list(app.stream({"n": 0}, "read"))) == 3
    closed: Any = app.stream({"n": 0}, "closed")
    next(closed)
    closed.close()
    assert list(closed) == []
    app.stream({"n": 0}, "never begun")
    assert event_stream._begun == set()  # pyright: ignore[reportPrivateUsage]
    statuses = [store.runs(ThreadKey("default", name))[0].status for name in ("read", "closed")]
    assert statuses == ["completed", "cancelled"]


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_loop_that_ends_closes_the_runs_that_are_read_on_it(kind: str, tmp_path: Path) -> None:
    """Was broken: the task that closed a run was cancelled with the loop, and the run, with its
    subgraph, was left running: another process was refused while this one lived.
    """

    async def add(state: Count) -> dict[str, int]:
        return {"n": state["n"] + 1}

    inner: StateGraph[Count] = StateGraph(Count, name="inner")
    inner.add_node("b", add)
    inner.add_node("c", add)
    inner.add_edges(START, "b", "c", END)
    outer: StateGraph[Count] = StateGraph(Count)
    outer.add_node("a", add)
    outer.add_node("inner", inner.compile())
    outer.add_edges(START, "a", "inner", END)
    stores = Stores(tmp_path)
    store = stores.open(kind)
    app = outer.compile(store=store)

    async def read(thread: str, events: int) -> None:
        async for _ in app.astream({"n": 0}, thread, subgraphs=True):
            events -= 1
            if not events:
                break

    for events in (1, 2):
        thread = f"t{events}"
        asyncio.run(read(thread, events))
        assert app.state(thread).status == "cancelled"
        (run,) = store.runs(ThreadKey("default", thread))
        assert store.failure(run.key, run.run_id) is not None
        lines = store.threads("default")
        assert {line.status for line in lines} <= {"cancelled", "completed"}
    stores.close()
