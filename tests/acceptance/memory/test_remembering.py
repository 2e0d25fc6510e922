"""``ctx.memory``: writes are part of the step's commit, whatever else happens to the step."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    CheckpointConfig,
    Context,
    ExecutionError,
    InvalidRequest,
    Retry,
    Send,
    StateGraph,
    Store,
    append,
    current,
    flow,
    interrupt,
    step,
)
from milecastle.errors import MemoryChanged
from milecastle.stores.jsonl import JsonlStore
from milecastle.stores.memory import MemoryStore
from milecastle.stores.postgres.libpq import Lease, Write
from milecastle.testing import FailingStore
from tests.acceptance.fleet.working import work
from tests.every_store import Stores
from tests.postgres_cluster import needs_postgres

FACTS = ("users", "u7", "facts")
START_INPUT: dict[str, Any] = {"log": []}


class Talk(TypedDict):
    log: Annotated[list[Any], append]


def line(store: Store | str | None, *nodes: Callable[..., Any], **options: Any) -> App[Talk]:
    graph: StateGraph[Talk] = StateGraph(Talk, name="talk")
    policy = options.pop("policy", {})
    for number, node in enumerate(nodes):
        graph.add_node(f"n{number}", node, **policy)
    graph.add_edges(START, *(f"n{number}" for number in range(len(nodes))), END)
    return graph.compile(store=store, **options)


def count(state: Talk, ctx: Context) -> dict[str, Any]:
    """Count in memory what was found there."""
    found = ctx.memory.get(FACTS, "n")
    ctx.memory.put(FACTS, "n", (found.value if found else 0) + 1)
    return {"log": [found.value if found else 0]}


def versions(app: App[Any], *keys: str) -> list[int]:
    found = [app.memory.get(FACTS, key) for key in keys]
    return [one.version if one else 0 for one in found]


def test_a_put_is_committed_with_its_step(store: Store) -> None:
    """Fails if ``Saver._entry`` leaves ``memory`` out of the batch."""
    app = line(store, count, count)
    assert app.invoke(START_INPUT, "t")["log"] == [0, 1]
    found = app.memory.get(FACTS, "n")
    assert found is not None
    assert (found.value, found.version, found.namespace, found.key) == (2, 2, FACTS, "n")
    assert found.written_by == ("t", app.state("t").seq)
    assert line(store, count).invoke(START_INPUT, "u")["log"] == [2]
    assert app.memory.for_tenant("other").get(FACTS, "n") is None


@needs_postgres
def test_puts_of_a_step_are_one_statement_with_it_on_postgres(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if ``Commits._send`` writes memory by a statement beside the entry."""

    def put(state: Talk, ctx: Context) -> dict[str, Any]:
        for key in "abc":
            ctx.memory.put(FACTS, key, key)
        monkeypatch.setattr(Lease, "write_together", together)
        return {"log": [1]}

    def together(lease: Lease, writes: Sequence[Write]) -> list[Any]:
        written.append([statement.name for statement, _ in writes])
        return whole(lease, writes)

    def end(state: Talk) -> dict[str, Any]:
        return {}

    written, whole, stores = list[list[bytes]](), Lease.write_together, Stores(tmp_path)
    app = line(stores.open("postgres"), put, end)
    app.invoke(START_INPUT, "t")
    assert versions(app, *"abc") == [1, 1, 1]
    assert written == []
    stores.close()


def test_own_writes_are_seen_and_replaced(store: Store) -> None:
    """Fails if reads of a task leave out ``pending``, or one item is written twice."""
    app = line(store)
    for number in range(3):
        app.memory.put(FACTS, f"k{number}", {"text": f"old {number}"}, words=True)
    seen: list[Any] = []

    def node(state: Talk, ctx: Context) -> None:
        memory = ctx.memory
        memory.put(FACTS, "k1", {"text": "new one"}, words=True)
        memory.put(FACTS, "k1", {"text": "new two"}, words=True)
        memory.delete(FACTS, "k2")
        memory.put(("users", "u9"), "a", {"text": "new here", "kind": "x"}, words="text")
        found = memory.get(FACTS, "k1")
        seen.append((found.value if found else None, found.version if found else 0))
        seen.append(memory.get(FACTS, "k2"))
        seen.append([item.key for item in memory.list(("users",))])
        seen.append([item.key for item in memory.list(FACTS, limit=1)])
        seen.append([hit.item.key for hit in memory.search(words="new")])
        seen.append([hit.item.key for hit in memory.search(words="old")])
        seen.append([hit.item.key for hit in memory.search(where={"kind": "x"})])
        seen.append(memory.namespaces(("users",)))

    line(store, node).invoke(START_INPUT, "t")
    assert seen == [
        ({"text": "new two"}, 2),
        None,
        ["k0", "k1", "a"],
        ["k0"],
        ["k1", "a"],
        ["k0"],
        ["a"],
        [FACTS, ("users", "u9")],
    ]
    assert versions(app, "k0", "k1", "k2") == [1, 2, 0]


def test_siblings_are_not_seen_and_the_last_counts(store: Store) -> None:
    """Fails if the tasks of a step share one collection."""
    seen: list[bool] = []

    def work_on(state: dict[str, Any], ctx: Context) -> dict[str, Any]:
        seen.append(ctx.memory.get(FACTS, "shared") is None)
        ctx.memory.put(FACTS, "shared", state["number"])
        ctx.memory.put(FACTS, f"own{state['number']}", True)
        return {"log": [state["number"]]}

    def begin(state: Talk) -> list[Send]:
        return [Send("work_on", {"number": number}) for number in range(5)]

    graph: StateGraph[Any] = StateGraph(Talk)
    graph.add_node("work_on", work_on)
    graph.add_node("begin", begin, goto=("work_on",))
    graph.add_edges(START, "begin")
    graph.add_edge("work_on", END)
    app = graph.compile(store=store)
    app.invoke(START_INPUT, "t")
    assert seen == [True] * 5
    assert versions(app, "shared", "own0", "own4") == [1, 1, 1]
    shared = app.memory.get(FACTS, "shared")
    assert shared is not None
    assert shared.value == 4


def test_a_finished_task_beside_a_question_writes_when_the_step_does(store: Store) -> None:
    """Fails if ``pack`` leaves ``memory`` out of a task's row: then the write is lost."""
    calls: list[str] = []

    def learn(state: Talk, ctx: Context) -> dict[str, Any]:
        calls.append("learn")
        ctx.memory.put(FACTS, "learned", 1, words=False)
        return {"log": ["learned"]}

    def ask(state: Talk, ctx: Context) -> dict[str, Any]:
        calls.append("ask")
        ctx.memory.put(FACTS, "asked", len(calls))
        return {"log": [interrupt("well?")]}

    graph: StateGraph[Any] = StateGraph(Talk)
    graph.add_node("learn", learn)
    graph.add_node("ask", ask)
    graph.add_edge(START, "learn")
    graph.add_edge(START, "ask")
    graph.add_edge("learn", END)
    graph.add_edge("ask", END)
    app = graph.compile(store=store)
    assert app.invoke(START_INPUT, "t").interrupts
    assert versions(app, "learned", "asked") == [0, 0]
    app.resume("t", answer="yes")
    assert calls.count("learn") == 1
    assert versions(app, "learned", "asked") == [1, 1]


def test_a_failed_attempt_writes_nothing(store: Store) -> None:
    """Fails if an attempt inherits what the one before it has collected."""
    attempts: list[int] = []

    def flaky(state: Talk, ctx: Context) -> dict[str, Any]:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            ctx.memory.put(FACTS, f"attempt{ctx.attempt}", 1)
            raise ValueError("not yet")
        ctx.memory.put(FACTS, "last", ctx.attempt)
        return {"log": [1]}

    app = line(store, flaky, policy={"retry": Retry(attempts=3, delay=0)})
    app.invoke(START_INPUT, "t")
    assert attempts == [1, 2, 3]
    assert versions(app, "attempt1", "attempt2", "last") == [0, 0, 1]


def test_a_run_that_fails_writes_nothing_of_its_step(store: Store) -> None:
    """Fails if the batch of a failure has the memory of a node that raised."""

    def fail(state: Talk, ctx: Context) -> None:
        ctx.memory.put(FACTS, "n", 99)
        raise ValueError("no")

    app = line(store, count, fail)
    with pytest.raises(ExecutionError):
        app.invoke(START_INPUT, "t")
    assert versions(app, "n") == [1]


def test_a_write_is_saved_at_once_in_spite_of_an_interval() -> None:
    """Fails if a step that writes memory waits for the interval: the next step would not see it."""
    store = MemoryStore()
    graph: StateGraph[Any] = StateGraph(Talk)
    seen: list[int] = []

    def look(state: Talk, ctx: Context) -> None:
        seen.extend(versions(app, "n"))

    for number, node in enumerate([count, look, count, look]):
        graph.add_node(f"n{number}", node)
    graph.add_edges(START, "n0", "n1", "n2", "n3", END)
    app = graph.compile(checkpoint=CheckpointConfig(store=store, interval=10))
    assert app.invoke(START_INPUT, "t")["log"] == [0, 1]
    assert seen == [1, 2]


def test_a_fork_does_not_rewind_memory(store: Store) -> None:
    app = line(store, count, count)
    app.invoke(START_INPUT, "t")
    first = next(one for one in app.history("t") if one.step == 1)
    app.fork("t", first.seq, "u")
    assert versions(app, "n") == [2]
    assert app.resume("u")["log"] == [0, 2]
    assert versions(app, "n") == [3]


def test_a_commit_that_is_lost_writes_neither() -> None:
    """Fails if memory is written beside the batch and not by it."""
    inner = MemoryStore()
    app = line(FailingStore(inner, at=2), count, count)
    with pytest.raises(Exception, match="on purpose"):
        app.invoke(START_INPUT, "t")
    before = versions(line(inner, count), "n")
    assert line(inner, count, count).resume("t")["log"] == [0, 1]
    assert before in ([0], [1])
    assert versions(line(inner, count), "n") == [2]


def _ends(state: Talk) -> dict[str, Any]:
    return {"log": ["end"]}


def racing(store: Store, times: int, log: list[int]) -> Callable[..., dict[str, Any]]:
    """A node that puts with ``if_version``; another writer is faster as often as given."""
    other = line(store)

    def node(state: Talk, ctx: Context) -> dict[str, Any]:
        found = ctx.memory.get(FACTS, "n")
        log.append(found.version if found else 0)
        if len(log) <= times:
            other.memory.put(FACTS, "n", "theirs")
        ctx.memory.put(FACTS, "n", "mine", if_version=log[-1])
        return {"log": [log[-1]]}

    return node


@pytest.mark.parametrize("times", [1, 3])
def test_a_refused_version_repeats_the_task(store: Store, times: int) -> None:
    """Fails if the run does not return to where it was: it would get a Conflict of its own."""
    seen: list[int] = []
    app = line(store, racing(store, times, seen), _ends)
    app.memory.put(FACTS, "n", 0)
    assert app.invoke(START_INPUT, "t")["log"] == [times + 1, "end"]
    assert seen == [*range(1, times + 2)]
    item = app.memory.get(FACTS, "n")
    assert item is not None
    assert (item.value, item.version) == ("mine", times + 2)
    assert [one.step for one in app.history("t") if one.source == "step"] == [2, 1]


def test_a_version_refused_four_times_fails_the_node(store: Store) -> None:
    """Fails if it is repeated without end, or the failure is not recorded."""
    log: list[int] = []
    app = line(store, racing(store, 99, log))
    with pytest.raises(ExecutionError) as failed:
        app.invoke(START_INPUT, "t")
    assert isinstance(failed.value.__cause__, MemoryChanged)
    assert "'n0'" in str(failed.value)
    assert log == [0, 1, 2, 3]
    assert app.state("t").status == "failed"
    assert versions(app, "n") == [4]


def test_siblings_of_a_refused_task_are_not_repeated(store: Store) -> None:
    """Fails if the whole step runs again, or the sibling's update is lost or doubled."""
    log: list[int] = []
    calls: list[str] = []

    def other(state: Talk, ctx: Context) -> dict[str, Any]:
        calls.append("other")
        ctx.memory.put(FACTS, "other", 1)
        return {"log": ["other"]}

    graph: StateGraph[Any] = StateGraph(Talk)
    graph.add_node("other", other)
    graph.add_node("race", racing(store, 2, log))
    for name in ("other", "race"):
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    app = graph.compile(store=store)
    assert sorted(map(str, app.invoke(START_INPUT, "t")["log"])) == ["2", "other"]
    assert (calls, log) == (["other"], [0, 1, 2])
    assert versions(app, "other", "n") == [1, 3]


def test_two_tasks_that_compare_one_item_are_refused() -> None:
    def put(state: Talk, ctx: Context) -> None:
        ctx.memory.put(FACTS, "n", 1, if_version=0)

    graph: StateGraph[Any] = StateGraph(Talk)
    for name in ("a", "b"):
        graph.add_node(name, put)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    with pytest.raises(InvalidRequest, match="task 'b' and another of its step"):
        graph.compile(store=MemoryStore()).invoke(START_INPUT, "t")


def test_a_step_of_a_flow_commits_what_it_wrote(store: Store) -> None:
    """Fails if the call's record and its memory are in different commits, or it writes twice."""

    @step
    def learn(number: int) -> int:
        memory = current().memory
        found = memory.get(FACTS, "n")
        memory.put(FACTS, "n", number)
        return found.version if found else 0

    seen: list[list[int]] = []

    @flow
    def talk(times: int) -> list[int]:
        found = list[int]()
        for number in range(times):
            found.append(learn(number))
            seen.append(versions(app, "n"))
        answer = interrupt("go on?")
        return [*found, learn(answer)]

    app = talk.compile(store=store)
    app.invoke({"times": 3}, "t")
    assert seen == [[1], [2], [3]]
    assert versions(app, "n") == [3]
    app.resume("t", answer=7)
    assert versions(app, "n") == [4]


def test_a_flow_itself_and_compared_writes_of_its_steps_are_refused() -> None:
    @step
    def compare() -> None:
        current().memory.put(FACTS, "n", 1, if_version=0)

    @flow
    def outside() -> None:
        current().memory.get(FACTS, "n")

    @flow
    def inside() -> None:
        compare()

    for one, said in ((outside, "inside a step"), (inside, "cannot use if_version=")):
        with pytest.raises(Exception, match=said):
            one.compile(store=MemoryStore()).invoke({}, "t")


def test_a_write_that_a_record_would_lose_is_refused() -> None:
    """Fails if ``once`` lets its function write: a repeated node would not write again."""

    def node(state: Talk, ctx: Context) -> None:
        ctx.once("mail", ctx.memory.put, FACTS, "n", 1)

    with pytest.raises(ExecutionError) as failed:
        line(MemoryStore(), node).invoke(START_INPUT, "t")
    assert "inside ctx.once()" in str(failed.value.__cause__)


def test_limits_of_a_step() -> None:
    """Fails if a task may write more than a commit takes."""

    def many(state: Talk, ctx: Context) -> None:
        for number in range(257):
            ctx.memory.put(FACTS, f"k{number}", number)

    def large(state: Talk, ctx: Context) -> None:
        ctx.memory.put(FACTS, "k", os.urandom(1 << 20))

    for node in (many, large):
        with pytest.raises(ExecutionError) as failed:
            line(MemoryStore(), node).invoke(START_INPUT, "t")
        assert "writes more than 256 items" in str(failed.value.__cause__)


def test_memory_needs_a_store_that_has_it(tmp_path: Any) -> None:
    for store in (None, JsonlStore(tmp_path)):
        with pytest.raises(ExecutionError) as failed:
            line(store, count).invoke(START_INPUT, None if store is None else "t")
        assert "long-term memory" in str(failed.value.__cause__)
    with pytest.raises(InvalidRequest, match="JsonlStore has none"):
        _ = line(JsonlStore(tmp_path), count).memory


async def acount(state: Talk, ctx: Context) -> dict[str, Any]:
    memory = ctx.memory
    found = await memory.aget(FACTS, "n")
    await memory.aput(FACTS, "n", 1 if found is None else found.value + 1, words=False)
    await memory.aput(FACTS, "gone", 1)
    await memory.adelete(FACTS, "gone")
    listed = [item.key for item in await memory.alist(FACTS)]
    hits = [hit.item.key for hit in await memory.asearch(FACTS, where={})]
    return {"log": [listed, hits, await memory.anamespaces()]}


def test_async_nodes_remember(store: Store) -> None:
    app = line(store, acount, acount)
    found = asyncio.run(app.ainvoke(START_INPUT, "t"))
    assert found["log"] == [["n"], ["n"], [FACTS]] * 2
    assert versions(app, "n", "gone") == [2, 0]

    async def outside() -> list[Any]:
        memory = app.memory
        await memory.aput(FACTS, "n", 7, if_version=2)
        item = await memory.aget(FACTS, "n")
        listed = await memory.alist(FACTS)
        hits = await memory.asearch(FACTS)
        spaces = await memory.anamespaces()
        await memory.atouch(FACTS, "n")
        await memory.adelete(FACTS, "n")
        counts = [await memory.asweep(), await memory.aerase(subject="u7")]
        return [item and item.version, len(listed), len(hits), spaces, counts]

    assert asyncio.run(outside()) == [3, 1, 1, [FACTS], [0, 0]]


def test_a_subgraph_remembers_with_its_own_steps(store: Store) -> None:
    inner: StateGraph[Any] = StateGraph(Talk, name="inner")
    inner.add_node("count", count)
    inner.add_edges(START, "count", END)
    outer: StateGraph[Any] = StateGraph(Talk, name="outer")
    outer.add_node("inner", inner.compile())
    outer.add_node("after", count)
    outer.add_edges(START, "inner", "after", END)
    app = outer.compile(store=store)
    assert app.invoke(START_INPUT, "t")["log"] == [0, 1]
    assert versions(app, "n") == [2]


def test_workers_write_memory(store: Store) -> None:
    app = line(store, count, count)
    app.submit(START_INPUT, "t")
    work(app)
    assert versions(app, "n") == [2]


def test_deleting_a_thread_leaves_its_memory(store: Store) -> None:
    app = line(store, count)
    app.invoke(START_INPUT, "t")
    app.delete("t")
    assert versions(app, "n") == [1]
