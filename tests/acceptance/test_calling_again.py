"""Calling again is safe: a finished run is returned, and not repeated."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    CheckpointConfig,
    Conflict,
    ExecutionError,
    ExecutionOptions,
    InvalidRequest,
    Keyring,
    Result,
    RunCancelled,
    RunInProgress,
    StateGraph,
    ThreadKey,
    Unavailable,
    add,
    append,
    interrupt,
)
from milecastle.stores.memory import MemoryStore
from milecastle.testing import FailingStore
from tests.every_store import EVERY_KIND, Stores

KEY = ThreadKey("default", "t")

Invoke = Callable[..., Result[Any]]


class Counters(TypedDict):
    total: Annotated[int, add]
    log: Annotated[list[str], append]


def tally(**settings: Any) -> App[Counters]:
    """A script that is run again must not double its total."""
    graph = StateGraph(Counters)
    graph.add_node("count", count)
    graph.add_edges(START, "count", END)
    settings.setdefault("store", MemoryStore())
    return graph.compile(**settings)


def count(state: Counters) -> dict[str, Any]:
    return {"total": 1, "log": ["counted"]}


def tail(state: Counters) -> dict[str, Any]:
    return {"log": ["tail"]}


def call(app: App[Any], *args: Any, **given: Any) -> Result[Any]:
    return app.invoke(*args, **given)


def acall(app: App[Any], *args: Any, **given: Any) -> Result[Any]:
    return asyncio.run(app.ainvoke(*args, **given))


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    found = Stores(tmp_path)
    yield found
    found.close()


@pytest.fixture(params=[call, acall], ids=["blocking", "asynchronous"])
def invoke(request: pytest.FixtureRequest) -> Invoke:
    found: Invoke = request.param
    return found


@pytest.mark.requirement("T4", "X5", "C2", api="App.invoke")
def test_same_input_after_the_end_returns_the_result_and_runs_nothing(
    invoke: Invoke, caplog: pytest.LogCaptureFixture
) -> None:
    """Broken on purpose: the comparison in ``Start.with_input`` removed; the total was 2."""
    app = tally()
    first = invoke(app, {"total": 10}, "t")
    with caplog.at_level(logging.INFO, logger="milecastle"):
        again = invoke(app, {"total": 10}, "t")
    assert (first.reused, again.reused) == (False, True)
    assert again.state == first.state == {"total": 11, "log": ["counted"]}
    assert (again.run_id, again.status, again.nodes) == (first.run_id, "completed", ("count",))
    assert [known.seq for known in app.history("t")] == [2, 1]
    (line,) = [record for record in caplog.records if record.levelno == logging.INFO]
    assert first.run_id in line.getMessage()


@pytest.mark.requirement("T4", api="App.invoke")
def test_another_input_or_again_starts_a_new_run_on_top(invoke: Invoke) -> None:
    """Broken on purpose: ``again`` ignored."""
    app = tally()
    invoke(app, {"total": 10}, "t")
    assert invoke(app, {"total": 20}, "t").state["total"] == 32
    assert invoke(app, {"total": 20}, "t", again=True).state["total"] == 53
    assert invoke(app, {"total": 20}, "t").reused


@pytest.mark.requirement("T4", api="App.invoke")
def test_key_is_compared_instead_of_the_input(invoke: Invoke) -> None:
    """Broken on purpose: the key left out of the digest."""
    app = tally()
    first = invoke(app, {"total": 10}, "t", key="order-1")
    assert invoke(app, {"total": 99}, "t", key="order-1").state == first.state
    assert not invoke(app, {"total": 10}, "t").reused
    second = invoke(app, {"total": 10}, "t", key="order-2")
    assert (second.reused, second.state["total"]) == (False, 33)


def test_key_never_equals_an_input() -> None:
    """A key and an input with the same bytes are two things.

    Broken on purpose: the mark before the key left out of the digest, and keys encoded with
    ``surrogateescape``. Either alone is enough: no text begins with the first byte of an input.
    """
    from milecastle.app.threads.log import log_codec_for

    app = tally()
    body = app.graph.schema.read_input({"log": ["k"]})
    encoded = log_codec_for(app.graph).encode_state(body)
    for key in (encoded.decode("latin-1"), encoded.decode("utf-8", "surrogateescape")):
        app.invoke({"log": ["k"]}, "t", again=True)
        assert not app.invoke({}, "t", key=key).reused


def test_unfinished_run_is_resumed_by_its_key(invoke: Invoke) -> None:
    """Broken on purpose: the digest of a resumed run made from the input."""
    graph = StateGraph(Counters)
    graph.add_node("count", count)
    graph.add_node("tail", tail)
    graph.add_edges(START, "count", "tail", END)
    app = graph.compile(store=MemoryStore(), interrupt_before=["tail"])
    first = invoke(app, {"total": 1}, "t", key="k")
    assert invoke(app, {"total": 5}, "t", key="k").status == "interrupted"
    with pytest.raises(InvalidRequest, match="another input"):
        invoke(app, {"total": 1}, "t")
    app.resume("t")
    again = invoke(app, {"total": 5}, "t", key="k")
    assert (again.reused, again.run_id, again.state["total"]) == (True, first.run_id, 2)


@pytest.mark.parametrize("policy", [{"key": "k"}, {"again": True}])
def test_terms_without_anything_to_compare_are_refused(policy: dict[str, Any]) -> None:
    """An idempotency key that is ignored would be a trap. Broken on purpose: the check removed."""
    unsaved, given = tally(store=None), {"total": 1}
    for app, input, thread in ((tally(), given, None), (tally(), None, "t"), (unsaved, given, "t")):
        with pytest.raises(InvalidRequest, match="need an input"):
            app.invoke(input, thread, **policy)


def test_empty_key_is_refused() -> None:
    """It is a header that was not sent. Broken on purpose: the check removed."""
    with pytest.raises(InvalidRequest, match="key="):
        tally().invoke({"total": 1}, "t", key="")


def test_result_is_that_of_the_run_and_not_of_an_update_on_top() -> None:
    """Broken on purpose: the head returned; the total was 111."""
    app = tally()
    app.invoke({"total": 10}, "t")
    app.update_state("t", {"total": 100})
    again = app.invoke({"total": 10}, "t")
    assert (again.reused, again.state["total"]) == (True, 11)
    assert app.invoke({"total": 10}, "t", again=True).state["total"] == 122


def test_thread_that_went_back_to_an_earlier_turn_runs_the_later_one_again() -> None:
    """The run that counts is that of the head: a fork left the other behind."""
    app = tally()
    app.invoke({"total": 10}, "t")
    app.invoke({"total": 20}, "t")
    app.fork("t", at=2)
    assert app.invoke({"total": 10}, "t").reused
    assert not app.invoke({"total": 20}, "t").reused


@pytest.mark.parametrize(
    ("mode", "types"),
    [("updates", []), ("state", ["state"]), ("events", ["state", "graph_complete"])],
)
def test_stream_of_a_finished_run_says_how_it_ended(mode: Any, types: list[str]) -> None:
    """Broken on purpose: ``resting_events`` without the end; a reader of states got nothing."""
    app = tally()
    app.invoke({"total": 10}, "t")

    async def read() -> list[Any]:
        return [event async for event in app.astream({"total": 10}, "t", mode=mode)]

    for events in (list(app.stream({"total": 10}, "t", mode=mode)), asyncio.run(read())):
        assert [event.type for event in events] == types
        assert all(event.state["total"] == 11 for event in events if event.type == "state")
    assert [event.type for event in app.stream({"total": 10}, "t", mode=mode, again=True)] != types


def test_encrypted_thread_knows_its_input_again_by_a_keyed_digest() -> None:
    """A ``key`` as well: it may be a name. Broken on purpose: hashed without the keyring."""
    store = MemoryStore()
    ring = Keyring({"main": b"k" * 32}, store=MemoryStore())
    app = tally(store=store, encryption=ring)
    app.invoke({"total": 10}, "a", key="ann@example.org")
    assert app.invoke({"total": 11}, "a", key="ann@example.org").reused
    app.invoke({"total": 10}, "b", key="ann@example.org")
    digests = {store.runs(info.key)[0].input_digest for info in store.threads("default")}
    assert len(digests) == 2


def test_thread_that_is_not_preserved_has_nothing_to_return() -> None:
    """Its checkpoints are gone with its end, and so a second call is a new run."""
    app = tally(store=None, checkpoint=CheckpointConfig(store=MemoryStore(), preserve=False))
    assert not app.invoke({"total": 10}, "t").reused
    assert not app.invoke({"total": 10}, "t").reused


# -- a live run is not taken over by accident --------------------------------------------------


class Work(TypedDict):
    log: Annotated[list[str], append]


class Slow:
    """A graph whose first node waits until it is released, and counts how often it was started."""

    def __init__(self, **settings: Any) -> None:
        self.started = 0
        self.at_work = threading.Event()
        self.release = threading.Event()
        graph = StateGraph(Work)
        graph.add_node("model", self.model)
        graph.add_node("tail", self.tail)
        graph.add_edges(START, "model", "tail", END)
        settings.setdefault("store", MemoryStore())
        self.app = graph.compile(**settings)

    def model(self, state: Work) -> dict[str, Any]:
        self.started += 1
        self.at_work.set()
        assert self.release.wait(60)
        return {"log": ["model"]}

    def tail(self, state: Work) -> dict[str, Any]:
        return {"log": ["tail"]}

    def begin(self) -> Future[Result[Work]]:
        """Invoke in another thread, up to the middle of the node."""
        pool = ThreadPoolExecutor(1)
        running = pool.submit(self.app.invoke, {"log": ["in"]}, "t")
        pool.shutdown(wait=False)
        assert self.at_work.wait(60)
        return running


@pytest.mark.requirement("S9", "T4", api="RunInProgress")
def test_second_call_does_not_run_a_thread_that_is_in_progress() -> None:
    """Three requests with one input ran the model three times.

    Broken on purpose: the registry of driven runs left empty.
    """
    slow = Slow()
    running = slow.begin()
    for call in (
        lambda: slow.app.invoke({"log": ["in"]}, "t"),
        lambda: slow.app.invoke({"log": ["other"]}, "t"),
        lambda: slow.app.resume("t"),
        lambda: list(slow.app.stream({"log": ["in"]}, "t")),
        lambda: asyncio.run(slow.app.ainvoke({"log": ["in"]}, "t")),
        lambda: asyncio.run(slow.app.aresume("t")),
    ):
        with pytest.raises(RunInProgress) as raised:
            call()
        error = raised.value
        assert (error.tenant, error.thread, error.owner.pid) == ("default", "t", os.getpid())
        assert (error.since.tzinfo, error.head, error.expected) == (UTC, 1, 2)
    slow.release.set()
    assert running.result(60).run_id == error.run_id
    assert (slow.started, slow.app.invoke({"log": ["in"]}, "t").reused) == (1, True)


@pytest.mark.requirement("S9", api="App.invoke")
@pytest.mark.parametrize("how", ["invoke", "resume"])
def test_take_over_takes_the_thread_from_a_live_run(how: str) -> None:
    """The old run gets ``Conflict``. Broken on purpose: ``take_over`` not passed on."""
    slow = Slow()
    running = slow.begin()
    taking = ThreadPoolExecutor(1)
    slow.at_work.clear()
    if how == "invoke":
        taken = taking.submit(slow.app.invoke, {"log": ["in"]}, "t", take_over=True)
    else:
        taken = taking.submit(slow.app.resume, "t", take_over=True)
    assert slow.at_work.wait(60)
    slow.release.set()
    assert taken.result(60).state == {"log": ["in", "model", "tail"]}
    with pytest.raises(Conflict):
        running.result(60)
    taking.shutdown()
    assert [run.status for run in slow.app.store.runs(KEY)] == ["completed", "superseded"]


def test_failed_run_is_not_resumed_twice_at_once() -> None:
    """Nothing is committed until the first node ends: the registry knows of it all the same.

    Broken on purpose: runs looked up by their id alone.
    """
    slow = Slow()
    with pytest.raises(RunCancelled):
        slow.app.invoke({"log": ["in"]}, "t", options=ExecutionOptions(cancel=already_set()))
    assert slow.app.state("t").status == "cancelled"
    running = slow.begin()
    with pytest.raises(RunInProgress):
        slow.app.invoke({"log": ["in"]}, "t")
    slow.release.set()
    running.result(60)
    assert slow.started == 1


def already_set() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@pytest.mark.parametrize(
    "end", ["exception", "interruption", "closed", "dropped", "unstarted", "unsaved"]
)
def test_run_whose_driver_ended_in_this_process_is_resumed_at_once(end: str) -> None:
    """Broken on purpose: the run left in the registry when the driver ends.

    Only the run whose save failed is still recorded as running, and so looked up there.
    """
    raised: list[BaseException] = [ValueError()] if end == "exception" else [KeyboardInterrupt()]
    graph = StateGraph(Work)

    def model(state: Work) -> dict[str, Any]:
        if end in ("exception", "interruption") and raised:
            raise raised.pop()
        return {"log": ["model"]}

    graph.add_node("model", model)
    graph.add_node("tail", tail)
    graph.add_edges(START, "model", "tail", END)
    store = FailingStore(MemoryStore(), at=2) if end == "unsaved" else MemoryStore()
    app = graph.compile(store=store)
    if end in ("exception", "interruption", "unsaved"):
        with pytest.raises((ExecutionError, KeyboardInterrupt, Unavailable)):
            app.invoke({"log": ["in"]}, "t")
    else:
        events: Any = app.stream({"log": ["in"]}, "t")
        if end != "unstarted":
            next(events)
        if end == "closed":
            events.close()
        del events
    assert app.invoke({"log": ["in"]}, "t").state == {"log": ["in", "model", "tail"]}


def test_reader_of_a_stream_may_answer_as_soon_as_the_question_is_read() -> None:
    """The run is interrupted by then, though its stream was not read to the end.

    Broken on purpose: the status of the driven run not looked at.
    """
    graph = StateGraph(Work)

    def ask(state: Work) -> dict[str, Any]:
        return {"log": [interrupt("yes?", answer=str)]}

    graph.add_node("ask", ask)
    graph.add_edges(START, "ask", END)
    app = graph.compile(store=MemoryStore())
    for event in app.stream({"log": []}, "t"):
        assert event.type == "interrupt"
        assert app.resume("t", "yes").state == {"log": ["yes"]}


def test_forked_child_does_not_take_the_run_of_its_parent() -> None:
    """It drives nothing, and its parent is alive. Broken on purpose: the registry inherited, and
    so this process named as the owner."""
    slow = Slow()
    running = slow.begin()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            slow.app.invoke({"log": ["in"]}, "t")
        except RunInProgress as error:
            os.write(writer, f"{error.owner.pid} {error}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(reader, 10_000).decode()
    os.close(reader)
    os.close(writer)
    slow.release.set()
    running.result(60)
    assert said.startswith(f"{os.getpid()} ")
    assert "driven by process" in said


SCRIPT = """
import sys, time
from typing import Annotated, TypedDict
from milecastle import END, START, MilecastleError, StateGraph, append

class Work(TypedDict):
    log: Annotated[list[str], append]

graph = StateGraph(Work)

@graph.node
def model(state: Work) -> dict:
    print("at work", flush=True)
    sys.stdin.readline()
    return {"log": ["model"]}

graph.add_edges(START, "model", END)
app = graph.compile(store=sys.argv[1])
try:
    print(app.invoke({"log": ["in"]}, "t")["log"], flush=True)
except MilecastleError as error:
    print(type(error).__name__, flush=True)
app.close()
"""


class Other:
    """Another process that invokes the thread."""

    def __init__(self, script: Path, url: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(script), url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def release(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.requirement("S9", "T1", api="RunInProgress")
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("kind", [kind for kind in EVERY_KIND if kind.values != ("memory",)])
def test_process_on_the_same_host_is_left_alone_until_it_is_gone(
    kind: str, stores: Stores, tmp_path: Path
) -> None:
    """The second process ran the model beside the first; now it takes over once that was killed.

    Broken on purpose: no owner written; the owner taken for unknown; one that is gone for alive.
    """
    stores.open(kind)
    script = tmp_path / "work.py"
    script.write_text(SCRIPT, "utf-8")
    others: list[Other] = []

    def start() -> Other:
        others.append(Other(script, stores.url(kind)))
        return others[-1]

    try:
        first = start()
        assert first.says() == "at work"
        assert start().says() == "RunInProgress"
        first.kill()
        third = start()
        assert third.says() == "at work"
        third.release()
        assert third.says() == "['in', 'model']"
        assert start().says() == "['in', 'model']"
    finally:
        for other in others:
            other.kill()
