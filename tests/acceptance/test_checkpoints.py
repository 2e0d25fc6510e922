"""C: checkpoints. What is saved, when, and what it holds."""

from __future__ import annotations

import platform
import re
import threading
import uuid
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypedDict

import pytest

import milecastle
from milecastle import (
    END,
    START,
    App,
    CheckpointConfig,
    Context,
    ExecutionError,
    InvalidRequest,
    Origin,
    StateGraph,
    ThreadKey,
    Unavailable,
    UnserializableState,
    append,
    register_store,
)
from milecastle.stores.memory import MemoryStore
from milecastle.testing import FailingStore, ManualClock
from tests.acceptance.running import CountingStore, Runner, SlowStore, Wrap, always

KEY = ThreadKey("default", "t")


class Count(TypedDict):
    n: int
    log: Annotated[list[str], append]
    anything: Any


def count(state: Count, name: str) -> dict[str, Any]:
    return {"n": state["n"] + 1, "log": [name]}


def line(wrap: Wrap, *names: str, **functions: Any) -> StateGraph[Count]:
    graph: StateGraph[Count] = StateGraph(Count, name="line")
    for name in names:
        graph.add_node(name, wrap(functions.get(name, count)))
    graph.add_edges(START, *names, END)
    return graph


# -- C1 ------------------------------------------------------------------------------------


@pytest.mark.requirement("C1", api="Checkpoint")
def test_a_checkpoint_holds_all_that_is_known(run: Runner, wrap: Wrap) -> None:
    """Ids, thread, step, seq, state, nodes, next, run, source, fingerprint, time, metadata."""
    app = line(wrap, "a", "b").compile(store="memory://", tenant="acme")
    before = datetime.now(UTC)
    result = run.invoke(app, {"n": 0}, "t")
    after = datetime.now(UTC)
    first, second, third = (run.state(app, "t", at=seq) for seq in (1, 2, 3))
    assert [item.key for item in (first, second, third)] == [ThreadKey("acme", "t")] * 3
    assert [item.seq for item in (first, second, third)] == [1, 2, 3]
    assert [item.step for item in (first, second, third)] == [0, 1, 2]
    assert [item.parent_id for item in (first, second, third)] == [None, first.id, second.id]
    assert [item.nodes for item in (first, second, third)] == [(), ("a",), ("b",)]
    assert [item.next for item in (first, second, third)] == [("a",), ("b",), ()]
    assert [item.source for item in (first, second, third)] == ["input", "step", "step"]
    assert [item.state["n"] for item in (first, second, third)] == [0, 1, 2]
    assert {item.run_id for item in (first, second, third)} == {result.run_id}
    assert {item.fingerprint for item in (first, second, third)} == {app.fingerprint}
    for item in (first, second, third):
        assert uuid.UUID(item.id).version == 7
        assert before <= item.timestamp <= after
        assert item.timestamp.utcoffset() == timedelta(0)
    assert uuid.UUID(result.run_id).version == 7


@pytest.mark.requirement("C1", api="Checkpoint.metadata")
def test_the_metadata_of_the_run_is_read_through_its_checkpoints(run: Runner, wrap: Wrap) -> None:
    """Library version, Python and host are kept once per run."""
    store = CountingStore()
    app = line(wrap, "a", "b").compile(store=store)
    run.invoke(app, {"n": 0}, "t")
    for seq in (1, 2, 3):
        metadata = run.state(app, "t", at=seq).metadata
        assert metadata["milecastle"] == milecastle.__version__
        assert metadata["python"] == platform.python_version()
        assert metadata["host"] == platform.node()
    assert [len(batch.runs) for batch in store.batches] == [1, 0, 1]


@pytest.mark.requirement("C1", api="Checkpoint.metadata")
def test_the_git_commit_is_in_the_metadata_when_there_is_one(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is whatever the environment tells of the folder that the process runs in."""
    made = {"milecastle": "1", "python": "3", "host": "h", "git_commit": "ab" * 20}
    monkeypatch.setattr("milecastle.app.starting.describe_environment", lambda: made)
    app = line(lambda function: function, "a").compile(store="memory://")
    run.invoke(app, {"n": 0}, "t")
    assert run.state(app, "t").metadata["git_commit"] == "ab" * 20


@pytest.mark.requirement("C1", api="CheckpointMetadata.source")
def test_every_source_of_a_checkpoint_is_named(run: Runner, wrap: Wrap) -> None:
    """Input, step, interrupt, update, fork and takeover."""
    app = line(wrap, "a", "b").compile(store="memory://", interrupt_before=["b"])
    run.invoke(app, {"n": 0}, "t")
    run.update_state(app, "t", {"n": 5})
    run.fork(app, "t", 2)
    sources = [known.source for known in run.history(app, "t")]
    assert sources == ["fork", "update", "interrupt", "step", "input"]


# -- C2 ------------------------------------------------------------------------------------


@pytest.mark.requirement("C2", api="App.invoke")
def test_a_step_is_saved_before_the_next_one_starts(run: Runner, wrap: Wrap) -> None:
    """Each node finds the step before it in the store."""
    store = CountingStore()
    heads: list[tuple[str, int]] = []

    def look(state: Count, name: str) -> dict[str, Any]:
        heads.append((name, store.written[-1].seq))
        return count(state, name)

    app = line(wrap, "a", "b", "c", a=look, b=look, c=look).compile(store=store)
    run.invoke(app, {"n": 0}, "t")
    assert heads == [("a", 1), ("b", 2), ("c", 3)]


@pytest.mark.requirement("C2", api="Unavailable")
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_save_that_fails_stops_the_run(run: Runner, wrap: Wrap, at: int) -> None:
    """No step goes on unsaved, and nothing is written after the failed save."""
    ran: list[str] = []

    def note(state: Count, name: str) -> dict[str, Any]:
        ran.append(name)
        return count(state, name)

    inner = MemoryStore()
    store = FailingStore(inner, at=at)
    app = line(wrap, "a", "b", "c", a=note, b=note, c=note).compile(store=store)
    with pytest.raises(Unavailable):
        run.invoke(app, {"n": 0}, "t")
    assert ran == ["a", "b"][: at - 1]
    assert store.commits == at
    assert [entry.seq for entry in inner.history(KEY)] == [*range(at - 1, 0, -1)]
    assert run.invoke(app, {"n": 0}, "t").state == {"n": 3, "log": ["a", "b", "c"]}


@pytest.mark.requirement("C2", api="Unavailable")
def test_a_save_that_fails_at_a_sibling_s_result_stops_the_run(run: Runner, wrap: Wrap) -> None:
    """The result of a branch is a save like any other."""
    inner = MemoryStore()
    store = FailingStore(inner, at=2)
    graph: StateGraph[Count] = StateGraph(Count)

    def fail(state: Count) -> None:
        raise ValueError("on purpose")

    for name in ("good", "bad"):
        graph.add_node(name, wrap(fail if name == "bad" else always({"n": 1})))
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    with pytest.raises(Unavailable):
        run.invoke(graph.compile(store=store), {"n": 0}, "t")
    assert store.commits == 2


@pytest.mark.requirement("C2", api="ExecutionError")
def test_a_failure_that_cannot_be_recorded_is_raised_all_the_same(run: Runner, wrap: Wrap) -> None:
    """The node's error is what the caller gets, with a note about the record."""

    def fail(state: Count) -> None:
        raise ValueError("on purpose")

    store = FailingStore(MemoryStore(), at=2)
    with pytest.raises(ExecutionError) as caught:
        run.invoke(line(wrap, "a", a=fail).compile(store=store), {"n": 0}, "t")
    assert "could not be recorded" in caught.value.__notes__[0]


@pytest.mark.requirement("C2", api="UnserializableState")
@pytest.mark.parametrize("names", [("a", "bad", "c"), ("a", "bad")])
@pytest.mark.parametrize("interval", [1, 2])
def test_a_value_that_cannot_be_stored_ends_the_run_and_is_recorded(
    run: Runner, wrap: Wrap, names: tuple[str, ...], interval: int
) -> None:
    """The error names node and path; nothing of the step is committed; the run has failed."""

    def bad(state: Count) -> dict[str, Any]:
        return {"n": 99, "anything": {"docs": [1, threading.Lock()]}}

    store = CountingStore()
    app = line(wrap, *names, bad=bad).compile(
        checkpoint=CheckpointConfig(store=store, interval=interval)
    )
    with pytest.raises(UnserializableState) as caught:
        run.invoke(app, {"n": 0}, "t")
    assert (caught.value.node, caught.value.path) == ("bad", "$.anything.docs[1]")
    assert caught.value.type_name.endswith("lock")
    snapshot = run.state(app, "t")
    assert snapshot.state["n"] < 99
    assert (snapshot.status, snapshot.next) == ("failed", ("bad",) if interval == 1 else ("a",))
    failure = store.failure(KEY, snapshot.run_id)
    assert failure is not None
    assert (failure.error_type, failure.node) == ("UnserializableState", "bad")
    assert sum(batch.failure is not None for batch in store.batches) == 1


@pytest.mark.requirement("C2", api="UnserializableState")
def test_a_branch_whose_value_cannot_be_stored_does_not_lose_the_others(
    run: Runner, wrap: Wrap
) -> None:
    """The sibling's result is kept, and is not computed again."""
    ran: list[str] = []
    broken = [True]
    graph: StateGraph[Count] = StateGraph(Count)

    def good(state: Count) -> dict[str, Any]:
        ran.append("good")
        return {"log": ["good"]}

    def bad(state: Count) -> dict[str, Any]:
        return {"anything": threading.Lock() if broken[0] else 1}

    for name, function in (("good", good), ("bad", bad)):
        graph.add_node(name, wrap(function))
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    app = graph.compile(store="memory://")
    with pytest.raises(UnserializableState) as caught:
        run.invoke(app, {"n": 0}, "t")
    assert (caught.value.node, caught.value.path) == ("bad", "$.anything")
    broken[0] = False
    assert run.resume(app, "t").state == {"n": 0, "log": ["good"], "anything": 1}
    assert ran == ["good"]


@pytest.mark.requirement("C2", api="UnserializableState")
def test_an_input_that_cannot_be_stored_begins_nothing(run: Runner, wrap: Wrap) -> None:
    """The thread is not there afterwards."""
    app = line(wrap, "a").compile(store="memory://")
    with pytest.raises(UnserializableState, match=r"\$\.anything"):
        run.invoke(app, {"n": 0, "anything": threading.Lock()}, "t")
    assert run.history(app, "t") == []


# -- C3 ------------------------------------------------------------------------------------


def saved_steps(store: CountingStore) -> list[tuple[str, int]]:
    return [(entry.source, entry.step) for entry in store.written]


@pytest.mark.requirement("C3", api="CheckpointConfig.interval")
@pytest.mark.parametrize(
    ("interval", "steps"),
    [
        (1, [0, 1, 2, 3, 4, 5]),
        (2, [0, 2, 4, 5]),
        (3, [0, 3, 5]),
        (9, [0, 5]),
    ],
)
def test_every_nth_step_and_the_end_are_saved(
    run: Runner, wrap: Wrap, interval: int, steps: list[int]
) -> None:
    """The input, every n-th step, and the end whatever its number."""
    store = CountingStore()
    names = ("a", "b", "c", "d", "e")
    app = line(wrap, *names).compile(checkpoint=CheckpointConfig(store=store, interval=interval))
    result = run.invoke(app, {"n": 0}, "t")
    assert [step for _, step in saved_steps(store)] == steps
    assert run.state(app, "t").state == result.state == {"n": 5, "log": list(names)}
    assert [entry.seq for entry in store.written] == [*range(1, len(steps) + 1)]


@pytest.mark.requirement("C3", api="CheckpointConfig.interval")
def test_an_interrupt_and_a_failure_are_always_saved(run: Runner, wrap: Wrap) -> None:
    """Whatever the interval, nothing that was done is done again after them."""
    store = CountingStore()
    ran: list[str] = []
    broken = [True]

    def note(state: Count, name: str) -> dict[str, Any]:
        ran.append(name)
        if name == "d" and broken[0]:
            raise ValueError("on purpose")
        return count(state, name)

    names = ("a", "b", "c", "d", "e")
    app = line(wrap, *names, **dict.fromkeys(names, note)).compile(
        checkpoint=CheckpointConfig(store=store, interval=10), interrupt_before=["c"]
    )
    assert run.invoke(app, {"n": 0}, "t").status == "interrupted"
    assert saved_steps(store) == [("input", 0), ("interrupt", 2)]
    with pytest.raises(ExecutionError):
        run.resume(app, "t")
    assert saved_steps(store)[2:] == [("step", 3)]
    assert run.state(app, "t").next == ("d",)
    broken[0] = False
    assert run.resume(app, "t")["n"] == 5
    assert ran == ["a", "b", "c", "d", "d", "e"]


@pytest.mark.requirement("C3", api="CheckpointConfig.interval")
def test_what_cannot_be_stored_is_left_out_when_a_later_step_fails(run: Runner) -> None:
    """With an interval, a failure is recorded even if an unsaved step cannot be."""

    def bad(state: Count) -> dict[str, Any]:
        return {"anything": threading.Lock()}

    def fail(state: Count) -> dict[str, Any]:
        raise ValueError("on purpose")

    store = CountingStore()
    app = line(lambda f: f, "a", "b", a=bad, b=fail).compile(
        checkpoint=CheckpointConfig(store=store, interval=5)
    )
    with pytest.raises(ExecutionError):
        run.invoke(app, {"n": 0}, "t")
    assert run.state(app, "t").status == "failed"
    assert saved_steps(store) == [("input", 0)]


@pytest.mark.requirement("C3", api="CheckpointConfig.interval")
def test_an_interval_of_zero_saves_nothing(run: Runner, wrap: Wrap) -> None:
    """The run works as without a store."""
    store = CountingStore()
    app = line(wrap, "a").compile(checkpoint=CheckpointConfig(store=store, interval=0))
    assert run.invoke(app, {"n": 0}, "t")["n"] == 1
    assert store.batches == []
    with pytest.raises(InvalidRequest, match="interval"):
        CheckpointConfig(interval=-1)


@pytest.mark.requirement("C3", api="CheckpointConfig.preserve")
@pytest.mark.parametrize("way", ["invoke", "stream"])
def test_without_preserve_a_clean_end_deletes_the_thread(run: Runner, wrap: Wrap, way: str) -> None:
    """An interrupt and a failure keep it; the end does not."""
    broken = [True]

    def fail(state: Count, name: str) -> dict[str, Any]:
        if broken[0]:
            raise ValueError("on purpose")
        return count(state, name)

    app = line(wrap, "a", "b", b=fail).compile(
        checkpoint=CheckpointConfig(store="memory://", preserve=False), interrupt_after=["a"]
    )
    run.invoke(app, {"n": 0}, "t")
    assert run.state(app, "t").status == "interrupted"
    with pytest.raises(ExecutionError):
        run.resume(app, "t")
    assert run.state(app, "t").status == "failed"
    broken[0] = False
    if way == "invoke":
        assert run.resume(app, "t")["n"] == 2
    else:
        assert [event.node for event in run.stream(app, None, "t")] == ["b"]
    assert run.history(app, "t") == []


@pytest.mark.requirement("C3", api="register_store")
def test_a_store_is_chosen_by_name_url_or_itself(run: Runner, wrap: Wrap) -> None:
    """Users add their own through the registry."""
    made: list[str] = []
    store = MemoryStore()

    def factory(url: str) -> MemoryStore:
        made.append(url)
        return store

    register_store("shelf", factory)
    for given in ("shelf", "shelf://back/left"):
        app = line(wrap, "a").compile(store=given)
        run.invoke(app, {"n": 0}, given)
        assert app.store is store
    assert made == ["shelf", "shelf://back/left"]
    assert line(wrap, "a").compile(checkpoint=CheckpointConfig(store="memory")).store is not None
    own = MemoryStore()
    assert line(wrap, "a").compile(store=own).store is own


@pytest.mark.requirement("C3", api="StateGraph.compile")
def test_a_store_that_is_not_known_or_given_twice_is_refused() -> None:
    """The message lists the stores that are known."""
    graph = line(lambda function: function, "a")
    with pytest.raises(InvalidRequest, match="memory"):
        graph.compile(store="nowhere://x")
    with pytest.raises(InvalidRequest, match="once"):
        graph.compile(store="memory", checkpoint=CheckpointConfig(store="memory"))
    app = graph.compile(store="memory", checkpoint=CheckpointConfig(interval=2))
    assert app.store is not None


# -- C4 ------------------------------------------------------------------------------------


@pytest.mark.requirement("C4", api="CheckpointMetadata.seq")
def test_seq_counts_from_one_without_gaps_over_everything_that_happens(
    run: Runner, wrap: Wrap
) -> None:
    """Runs, interrupts, updates and forks share one count per thread."""
    app = line(wrap, "a", "b").compile(store="memory://", interrupt_before=["b"])
    run.invoke(app, {"n": 0}, "t")
    run.update_state(app, "t", {"n": 5})
    run.resume(app, "t")
    run.fork(app, "t", 2)
    run.resume(app, "t")
    run.invoke(app, {"n": 9}, "t")
    run.invoke(app, {"n": 0}, "other")
    seqs = [known.seq for known in run.history(app, "t")]
    assert seqs == [*range(len(seqs), 0, -1)]
    assert [known.seq for known in run.history(app, "other")] == [3, 2, 1]


@pytest.mark.requirement("C4", api="Store.commit")
@pytest.mark.parametrize("make", [CountingStore, SlowStore])
def test_a_run_of_n_steps_costs_n_and_one_commits(
    run: Runner, wrap: Wrap, make: type[CountingStore]
) -> None:
    """Records of runs and failures travel with the entries: they cost no commit of their own."""
    store = make()
    names = ("a", "b", "c", "d")
    run.invoke(line(wrap, *names).compile(store=store), {"n": 0}, "t")
    assert len(store.batches) == len(names) + 1
    assert [len(batch.entries) for batch in store.batches] == [1] * 5
    assert [[record.status for record in batch.runs] for batch in store.batches] == [
        *(["running"], [], [], [], ["completed"])
    ]
    assert [batch.manifest is not None for batch in store.batches] == [True] + [False] * 4


@pytest.mark.requirement("C4", api="Store.commit")
def test_a_failing_run_writes_record_and_failure_in_one_batch(run: Runner, wrap: Wrap) -> None:
    """Either both are there or neither."""

    def fail(state: Count) -> None:
        raise ValueError("on purpose")

    store = CountingStore()
    with pytest.raises(ExecutionError):
        run.invoke(line(wrap, "a", "b", b=fail).compile(store=store), {"n": 0}, "t")
    last = store.batches[-1]
    assert ([record.status for record in last.runs], last.entries) == (["failed"], ())
    assert last.failure is not None
    assert len(store.batches) == 3


# -- C5 ------------------------------------------------------------------------------------


@pytest.mark.requirement("C5", api="Result")
@pytest.mark.parametrize("store", [None, "memory://"])
def test_what_invoke_returns_tells_run_node_and_time(
    run: Runner, wrap: Wrap, store: str | None
) -> None:
    """The provenance of the state is read from the result."""
    before = datetime.now(UTC)
    result = run.invoke(line(wrap, "a", "b").compile(store=store), {"n": 0})
    assert uuid.UUID(result.run_id).version == 7
    assert (result.node, result.nodes, result.step) == ("b", ("b",), 2)
    assert before <= result.timestamp <= datetime.now(UTC)
    assert (result.thread is None) == (store is None)


@pytest.mark.requirement("C5", api="Context.origin")
@pytest.mark.parametrize("interval", [0, 1, 2])
def test_what_a_node_receives_tells_run_node_and_time(
    run: Runner, wrap: Wrap, interval: int
) -> None:
    """``ctx.origin`` says who produced the state, and when, with a store and without."""
    seen: list[Origin] = []
    clock = ManualClock()

    def look(state: Count, ctx: Context, name: str) -> dict[str, Any]:
        seen.append(ctx.origin)
        clock.advance(1)
        return count(state, name)

    compiled = line(wrap, "a", "b", "c", **dict.fromkeys("abc", look)).compile()
    app: App[Count] = App(
        compiled.graph,
        store=MemoryStore() if interval else None,
        interval=interval,
        clock=clock,
    )
    began = datetime.fromtimestamp(clock.now() / 1_000_000, UTC)
    result = run.invoke(app, {"n": 0}, "t")
    assert [origin.nodes for origin in seen] == [(), ("a",), ("b",)]
    assert {origin.run_id for origin in seen} == {result.run_id}
    assert [(origin.timestamp - began).total_seconds() for origin in seen] == [0, 1, 2]


@pytest.mark.requirement("C5", api="Context.origin")
def test_after_a_resume_the_origin_names_the_run_that_produced_the_state(
    run: Runner, wrap: Wrap
) -> None:
    """The first node of the new run works on a state of the run before it."""
    seen: list[tuple[str, Origin]] = []
    broken = [True]

    def look(state: Count, ctx: Context, name: str) -> dict[str, Any]:
        seen.append((ctx.run_id, ctx.origin))
        if name == "b" and broken[0]:
            broken[0] = False
            raise ValueError("on purpose")
        return count(state, name)

    app = line(wrap, "a", "b", "c", b=look, c=look).compile(store="memory://")
    with pytest.raises(ExecutionError):
        run.invoke(app, {"n": 0}, "t")
    result = run.resume(app, "t")
    (old, first), (new, again), (_, after) = seen
    assert new == result.run_id != old
    assert first == again == Origin(old, ("a",), run.state(app, "t", at=2).timestamp)
    assert (after.run_id, after.nodes) == (new, ("b",))


# -- C6 ------------------------------------------------------------------------------------


@pytest.mark.requirement("C6", api="ThreadKey")
def test_threads_of_two_tenants_never_meet(run: Runner, wrap: Wrap) -> None:
    """A string is a thread of the app's tenant; a key names another's."""
    store = MemoryStore()
    graph = line(wrap, "a")
    ours = graph.compile(store=store, tenant="ours")
    theirs = graph.compile(store=store, tenant="theirs")
    run.invoke(ours, {"n": 0}, "t")
    run.invoke(theirs, {"n": 100}, "t")
    assert run.state(ours, "t").state["n"] == 1
    assert run.state(theirs, "t").state["n"] == 101
    assert run.state(ours, ThreadKey("theirs", "t")).state["n"] == 101
    assert [info.key for info in store.threads("ours")] == [ThreadKey("ours", "t")]
    with pytest.raises(InvalidRequest, match="no checkpoints"):
        run.state(ours, ThreadKey("nobody", "t"))


@pytest.mark.requirement("C6", api="ThreadKey")
@pytest.mark.parametrize("bad", ["", "a\0b", "\ud800", "x" * 513, 7, None])
def test_an_id_that_some_store_could_not_keep_is_refused(bad: Any) -> None:
    """Tenant and thread are both required, and both are checked."""
    with pytest.raises(InvalidRequest):
        ThreadKey("tenant", bad)
    with pytest.raises(InvalidRequest):
        ThreadKey(bad, "thread")


@pytest.mark.requirement("C6", api="Store")
@pytest.mark.parametrize(
    "call", ["read", "locate", "history", "runs", "run", "failure", "manifest", "delete", "prune"]
)
def test_a_query_without_a_tenant_cannot_be_written(call: str) -> None:
    """Every read and write of a store takes the key first; there is no default."""
    with pytest.raises(TypeError, match="key"):
        getattr(MemoryStore(), call)()


@pytest.mark.requirement("C6", api="App.invoke")
def test_a_run_without_a_thread_gets_one_of_its_own(run: Runner, wrap: Wrap) -> None:
    """Each such call has a thread that can be looked at afterwards."""
    app = line(wrap, "a").compile(store="memory://", tenant="acme")
    first, second = (run.invoke(app, {"n": 0}) for _ in range(2))
    assert first.thread is not None
    assert first.thread != second.thread
    assert first.thread.tenant == "acme"
    assert re.fullmatch(r"[0-9a-f-]{36}", first.thread.thread)
    assert run.state(app, first.thread).state["n"] == 1
