"""The overview and the groups of failures, from real runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import pytest

from milecastle import END, START, App, Keyring, Retry, StateGraph, ThreadKey, interrupt
from milecastle.app.runs.submission import require_shared
from milecastle.errors import ExecutionError
from milecastle.model.run import FAILED_NODE, FAILED_TYPE, Owner
from milecastle.ports.workers import WorkerInfo
from milecastle.stores.memory import MemoryStore
from milecastle.views.failures import FailuresDocument, failures_document, recent_runs
from milecastle.views.node_statistics import StatisticsCache
from milecastle.views.overview import OverviewDocument, overview_document

HOUR = 3600 * 1_000_000


class State(TypedDict, total=False):
    n: int


def _price(state: State) -> Any:
    if state.get("n") == 13:
        raise LookupError("no price")
    return {}


def _ship(state: State) -> Any:
    if state.get("n") == 7:
        raise ConnectionError("refused")
    if state.get("n") == 42:
        interrupt("sure?")
    return {}


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App[State]]:
    graph = StateGraph(State, name="orders")
    graph.add_node("price", _price)
    graph.add_node("ship", _ship)
    graph.add_edges(START, "price", "ship", END)
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/store.db"
    app = graph.compile(store=url)
    yield app
    app.close()


def _now() -> int:
    return time.time_ns() // 1000


def _run(app: App[State], *numbers: int) -> None:
    for number in numbers:
        name = f"t{number}-{time.monotonic_ns()}"
        with contextlib.suppress(ExecutionError):
            app.invoke({"n": number}, thread=name, tags=(["trade"] if number == 13 else []))


def _failures(app: App[State], **given: Any) -> FailuresDocument:
    return failures_document(app.store, "default", now=_now(), span=HOUR, **given)


def _overview(app: App[State], **given: Any) -> OverviewDocument:
    cache = StatisticsCache(app.store)
    return overview_document(app.store, "default", cache, now=_now(), **given)


def test_a_failed_run_names_its_error_and_node(app: App[State]) -> None:
    """Fails if the record is written before the failure is described: groups would read each."""
    _run(app, 13, 1)
    runs = {run.status: run for run in app.store.recent_runs("default").items}
    assert runs["failed"].cause == ("LookupError", "price")
    assert runs["failed"].metadata[FAILED_TYPE] == "LookupError"
    assert runs["completed"].cause is None


def test_a_resumed_run_does_not_have_the_cause_of_the_one_before(app: App[State]) -> None:
    with pytest.raises(ExecutionError):
        app.invoke({"n": 13}, thread="t")
    app.update_state("t", {"n": 42})
    app.resume("t")
    runs = app.store.runs(ThreadKey("default", "t"))
    assert runs[0].status == "interrupted"
    assert FAILED_TYPE not in runs[0].metadata
    assert runs[-1].metadata[FAILED_NODE] == "price"


def test_failures_are_grouped_by_error_and_node(app: App[State]) -> None:
    _run(app, 13, 7, 13, 13, 1)
    found = _failures(app)
    groups = [(one.error_type, one.node, one.graph, one.count) for one in found.groups]
    assert groups == [
        ("LookupError", "price", "orders", 3),
        ("ConnectionError", "ship", "orders", 1),
    ]
    assert (found.held, found.retried, found.settled) == (4, 0, 0)
    assert found.groups[0].message == "no price"
    assert sum(part.held for part in found.parts) == 4
    assert "_price" in found.groups[0].traceback[-1]


def test_what_all_runs_of_a_group_share_and_no_completed_one_has(app: App[State]) -> None:
    _run(app, 1, 13, 13)
    (group,) = _failures(app).groups
    assert [(one.what, one.value) for one in group.shared] == [("tag", "trade")]


def test_a_thread_that_went_on_settles_its_failure(app: App[State]) -> None:
    _run(app, 13)
    (info,) = app.store.threads("default")
    app.update_state(info.key, {"n": 1})
    app.resume(info.key)
    found = _failures(app, state="settled")
    assert (found.held, found.settled, len(found.groups)) == (0, 1, 1)


def test_failures_are_grouped_by_graph(app: App[State]) -> None:
    """Fails if the graph is not compared."""
    _run(app, 13)
    assert [one.error_type for one in _failures(app).groups] == ["LookupError"]
    assert not _failures(app, graph="other").groups


def test_the_overview_counts_and_says_what_to_look_at(app: App[State]) -> None:
    _run(app, 1, 1, 13, 42)
    found = _overview(app)
    assert (found.completed, found.failed.count, found.failed.of) == (2, 1, 4)
    assert (found.questions.count, found.running.count) == (1, 0)
    assert sum(part.completed for part in found.parts) == 2
    assert [(one.kind, one.error, one.node) for one in found.attention] == [
        ("failures", "LookupError", "price")
    ]
    assert [one.questions for one in found.asking] == [1]
    assert {one.node for one in found.slowest} == {"price", "ship"}
    assert not _overview(app, graph="other").completed


def test_queued_runs_without_a_worker_and_silent_workers_need_attention(app: App[State]) -> None:
    shared = require_shared(app.store)
    owner = Owner(host="elsewhere", boot_id="b", pid=1, started="1")
    shared.beat(
        WorkerInfo(id="w", owner=owner, lanes=("other@1",), started_at=1, silent_after=0.001)
    )
    app.submit({"n": 1}, "t")
    time.sleep(0.02)
    found = _overview(app)
    assert [one.kind for one in found.attention] == ["no-worker", "silent"]
    assert (found.waiting.count, found.alive.count, found.alive.of) == (1, 0, 1)
    assert found.attention[0].graph == "orders"
    assert [lane.due for lane in found.lanes] == [1]


def test_old_questions_and_long_runs_need_attention(app: App[State]) -> None:
    _run(app, 42)
    cache = StatisticsCache(app.store)
    later = overview_document(app.store, "default", cache, now=_now() + 2 * HOUR, span=3 * HOUR)
    assert [(one.kind, round(one.seconds / 3600)) for one in later.attention] == [("question", 2)]


def test_runs_without_a_checkpoint_for_long_need_attention(app: App[State]) -> None:
    """Fails if the run's age is taken for it: the thread that was updated since has one."""
    later: list[OverviewDocument] = []

    def look(state: State) -> Any:
        later.extend([_overview_at(app, HOUR // 12), _overview_at(app, 2 * HOUR)])

    def _overview_at(app: App[Any], after: int) -> OverviewDocument:
        cache = StatisticsCache(app.store)
        return overview_document(app.store, "default", cache, now=_now() + after, span=3 * HOUR)

    graph = StateGraph(State, name="orders")
    graph.add_node("look", look)
    graph.add_edges(START, "look", END)
    graph.compile(store=app.store).invoke({"n": 1}, thread="t")
    soon, late = later
    assert [(one.kind, one.thread) for one in late.attention] == [("long", "t")]
    assert round(late.attention[0].seconds / 3600) == 2
    assert not soon.attention


def test_a_subgraph_that_asks_is_not_a_thread_of_its_own() -> None:
    """Broken before: the question of a subgraph was counted in its own thread as well."""
    inner = StateGraph(State, name="inner")
    inner.add_node("ship", _ship)
    inner.add_edges(START, "ship", END)
    graph = StateGraph(State, name="orders")
    graph.add_node("inner", inner.compile())
    graph.add_edges(START, "inner", END)
    app = graph.compile(store="memory://")
    app.invoke({"n": 42}, thread="t")
    found = _overview(app)
    assert found.questions.count == 1
    assert [one.thread for one in found.asking] == ["t"]


def test_at_most_six_lines_the_worst_first(app: App[State]) -> None:
    _run(app, 13, *[42] * 8)
    cache = StatisticsCache(app.store)
    found = overview_document(
        app.store, "default", cache, now=_now() + HOUR // 2 + HOUR, span=3 * HOUR
    )
    assert len(found.attention) == 6
    levels = [one.level for one in found.attention]
    assert levels == sorted(levels, reverse=True)


def test_statistics_are_remembered_for_a_minute(app: App[State]) -> None:
    cache = StatisticsCache(app.store)
    _run(app, 1)
    first = cache.of("default")
    _run(app, 1, 1)
    assert cache.of("default") is first
    assert first.runs == 1
    assert cache.of("default", "orders").runs == 3


def test_statistics_without_the_key_of_the_threads() -> None:
    """Broken before: a keyring without the key that wraps a thread's key ended the overview."""
    graph = StateGraph(State, name="orders")
    graph.add_node("price", _price)
    graph.add_edges(START, "price", END)
    keys = MemoryStore()
    app = graph.compile(store="memory://", encryption=Keyring({"old": b"o" * 32}, store=keys))
    _run(app, 1)
    other = Keyring({"new": b"n" * 32}, store=keys)
    (node,) = StatisticsCache(app.store, lambda name: other).of("default").nodes
    assert (node.node, node.attempts) == ("price", 1)


def test_statistics_of_a_fan_out_are_of_its_items() -> None:
    """Fails if a step's time is taken for an item's: 400 items in turn took longer than each."""

    class Items(TypedDict, total=False):
        items: list[int]
        item: int

    graph = StateGraph(Items, name="g")
    graph.add_node("work", lambda state: {})
    graph.map(START, "work", over="items", item="item")
    graph.add_edges("work", END)
    app = graph.compile(store="memory://")
    app.invoke({"items": [*range(400)]}, thread="t")
    (node,) = StatisticsCache(app.store).of("default").nodes
    assert (node.node, node.attempts) == ("work", 400)


def test_attempts_that_failed_are_counted_and_not_measured(app: App[State]) -> None:
    """Fails if the time of a failed attempt is in the percentiles of those that succeeded."""
    left = {"price": 2, "ship": 0}

    def price(state: State) -> Any:
        left["price"] -= 1
        if left["price"] >= 0:
            raise ConnectionError("refused")
        return {}

    graph = StateGraph(State, name="orders")
    graph.add_node("price", price, retry=Retry(attempts=3, delay=0))
    graph.add_node("ship", lambda state: {})
    graph.add_edges(START, "price", END)
    graph.add_edges(START, "ship", END)
    graph.compile(store=app.store).invoke({"n": 1}, thread="t")
    nodes = {one.node: one for one in StatisticsCache(app.store).of("default").nodes}
    assert (nodes["price"].attempts, nodes["price"].retried) == (1, 2)
    assert (nodes["ship"].attempts, nodes["ship"].retried) == (1, 0)


def test_failed_items_of_a_wide_fan_out_did_not_succeed(app: App[State]) -> None:
    """Broken before: 405 of 400 items succeeded, and the node beside them never did."""

    class Items(TypedDict, total=False):
        items: list[int]
        item: int

    failed: set[int] = set()

    def work(state: Items) -> Any:
        item = state.get("item", 0)
        if item < 5 and item not in failed:
            failed.add(item)
            raise ConnectionError("refused")
        return {}

    graph = StateGraph(Items, name="g")
    graph.add_node("work", work, retry=Retry(attempts=2, delay=0))
    graph.add_node("beside", lambda state: time.sleep(0.5))  # the slowest, on a busy machine too
    graph.map(START, "work", over="items", item="item")
    graph.add_edges(START, "beside", END)
    graph.add_edges("work", END)
    graph.compile(store=app.store).invoke({"items": [*range(400)]}, thread="t")
    nodes = {one.node: one for one in StatisticsCache(app.store).of("default").nodes}
    assert (nodes["work"].attempts, nodes["work"].retried) == (400, 5)
    assert (nodes["beside"].attempts, nodes["beside"].retried) == (1, 0)
    assert 500_000 <= nodes["beside"].p50 < 5_000_000


def test_a_resumed_node_is_measured_from_the_start_of_its_run(app: App[State]) -> None:
    """Fails if the time in which the thread waited to be resumed is taken for the node's."""
    is_up: list[bool] = []

    def ship(state: State) -> Any:
        if not is_up:
            raise ConnectionError("refused")
        return {}

    graph = StateGraph(State, name="orders")
    graph.add_node("price", _price)
    graph.add_node("ship", ship)
    graph.add_edges(START, "price", "ship", END)
    later = graph.compile(store=app.store)
    with pytest.raises(ExecutionError):
        later.invoke({"n": 1}, thread="t")
    time.sleep(0.2)
    is_up.append(True)
    later.resume("t")
    nodes = {one.node: one for one in StatisticsCache(app.store).of("default").nodes}
    assert (nodes["ship"].attempts, nodes["ship"].failed) == (1, 1)
    assert nodes["ship"].p95 < 200_000


def test_the_newest_two_hundred_runs_are_measured(
    app: App[State], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the number of runs read grows with the store."""
    monkeypatch.setattr("milecastle.views.node_statistics._RUNS", 2)
    _run(app, 1, 1, 13)
    found = StatisticsCache(app.store).of("default")
    assert found.runs == 2
    assert {one.node: one.attempts for one in found.nodes} == {"price": 1, "ship": 1}
    for name, value in (("_RUNS", 200), ("_PAGE", 1), ("_SCANNED", 2)):
        monkeypatch.setattr(f"milecastle.views.node_statistics.{name}", value)
    assert StatisticsCache(app.store).of("default").runs == 2


def test_remembered_statistics_are_bounded(
    app: App[State], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if each name a caller asks for stays in memory."""
    monkeypatch.setattr("milecastle.views.node_statistics._REMEMBERED", 2)
    cache = StatisticsCache(app.store)
    for name in ("a", "b", "c"):
        first = cache.of("default", name)
    assert cache.of("default", "c") is first
    assert len(vars(cache)["_known"]) == 1


def test_failures_are_read_from_as_many_runs_as_allowed(
    app: App[State], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a cut list claims the whole span, or runs before it are counted."""
    _run(app, 13, 13, 13)
    monkeypatch.setattr("milecastle.views.failures._PAGE", 1)
    found = recent_runs(app.store, "default", 0, most=2)
    assert (len(found.runs), found.is_cut) == (2, True)
    assert found.since == found.runs[-1].started_at
    newest = found.runs[0].started_at
    after = recent_runs(app.store, "default", newest)
    assert ([run.started_at for run in after.runs], after.is_cut) == ([newest], False)
