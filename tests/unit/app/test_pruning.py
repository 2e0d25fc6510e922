"""Pruning: the oldest checkpoints go, the rest stays readable."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    ExecutionOptions,
    InvalidRequest,
    StateGraph,
    ThreadKey,
    append,
    interrupt,
)
from milecastle.app.threads.log import log_codec_for
from milecastle.app.threads.pruning import prune_thread
from milecastle.model.checkpoint import DELTA, ROLLUP, SNAPSHOT
from milecastle.ports.store import Chain
from milecastle.stores.memory import MemoryStore
from tests.acceptance.fleet.working import work

KEY = ThreadKey("default", "t")


class State(TypedDict):
    n: int
    log: Annotated[list[str], append]


class Rolling(MemoryStore):
    """A memory store that asks for rollups, as one does that fetches rows."""

    rollup_after = 4  # type: ignore[assignment]


def note(state: State) -> dict[str, Any]:
    return {"n": state["n"] + 1, "log": ["x" * 30]}


def thread_of(steps: int, store: MemoryStore) -> App[State]:
    graph: StateGraph[State] = StateGraph(State)
    graph.add_node(note)
    graph.add_edge(START, "note")
    graph.add_edge("note", END, when=lambda state: state["n"] % steps == 0)
    graph.add_edge("note", "note")
    app = graph.compile(store=store)
    app.invoke({"n": 0}, "t", options=ExecutionOptions(max_steps=steps))
    return app


@pytest.mark.parametrize("keep", range(1, 24))
def test_what_stays_reads_as_before(keep: int) -> None:
    store = Rolling()
    app = thread_of(22, store)
    before = {known.seq: app.state("t", known.seq).state for known in app.history("t")}
    dropped = prune_thread(store, log_codec_for(app.graph), KEY, keep_last=keep)
    left = [known.seq for known in app.history("t")]
    assert len(left) == len(before) - dropped >= min(keep, len(before))
    assert len(left) <= max(keep, 5) or dropped == 0
    assert {seq: app.state("t", seq).state for seq in left} == {seq: before[seq] for seq in left}
    app.invoke({"n": 22}, "t")
    assert app.state("t").state["n"] == 44


def test_every_kind_of_first_entry_is_rewritten_or_left() -> None:
    store = Rolling()
    app = thread_of(22, store)
    kinds = {entry.seq: entry.kind for entry in store.history(KEY)}
    assert set(kinds.values()) == {SNAPSHOT, ROLLUP, DELTA}
    for keep in range(len(kinds), 0, -1):
        prune_thread(store, log_codec_for(app.graph), KEY, keep_last=keep)
        first = [entry.kind for entry in store.history(KEY)][-1]
        assert first == SNAPSHOT


def test_pruning_again_drops_nothing() -> None:
    store = Rolling()
    app = thread_of(22, store)
    codec = log_codec_for(app.graph)
    assert prune_thread(store, codec, KEY, keep_last=1) > 0
    assert prune_thread(store, codec, KEY, keep_last=1) == 0


def test_thread_deleted_while_it_is_pruned_is_reported() -> None:
    class Vanishing(Rolling):
        def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
            return super().read(key, seq) if seq is None else None

    store = Vanishing()
    app = thread_of(22, store)
    with pytest.raises(InvalidRequest, match="changed while it was being pruned"):
        prune_thread(store, log_codec_for(app.graph), KEY, keep_last=6)


def test_thread_deleted_before_its_history_is_read_has_nothing_to_prune() -> None:
    """Was broken: ``IndexError``, which ended the whole sweep."""

    class Deleting(Rolling):
        def history(self, key: ThreadKey, **wanted: Any) -> Any:
            self.delete(key)
            return super().history(key, **wanted)

    store = Deleting()
    codec = log_codec_for(thread_of(20, store).graph)
    assert prune_thread(store, codec, KEY, keep_last=3) == 0


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
def test_pruning_keeps_where_an_input_that_waits_starts(when: str, *, is_first: bool) -> None:
    """It starts from before the cancelled one. Was pruned, and then no input ever started. Fails if
    the cut does not look at the inputs that wait (before the cancellation, or after it), or if the
    cancelled input, which shows that it was the thread's first, is pruned.
    """

    def ask(state: State) -> dict[str, Any]:
        return {"log": [interrupt("well?", answer=str)]} if state["n"] == 0 else {"n": 7}

    def step(state: State) -> dict[str, Any]:
        return {"n": state["n"]}

    store = Rolling()
    graph: StateGraph[State] = StateGraph(State)
    names = [f"step{number}" for number in range(8)]
    for name in names:
        graph.add_node(name, step)
    graph.add_node("ask", ask)
    graph.add_edges(START, *names, "ask", END)
    app = graph.compile(store=store)
    if not is_first:
        app.submit({"n": 1, "log": []}, "t")
        work(app)
    app.submit({"n": 0, "log": []}, "t")
    work(app)
    app.submit({"n": 3, "log": []}, "t", if_busy="queue")
    codec = log_codec_for(app.graph)
    if when == "before":
        prune_thread(store, codec, KEY, keep_last=1)
    app.cancel("t")
    if when == "after":
        prune_thread(store, codec, KEY, keep_last=1)
    work(app)
    assert (app.state("t").status, app.state("t").state["n"]) == ("completed", 7)


def test_repeated_input_finds_its_run_when_only_later_updates_are_left() -> None:
    """Broken on purpose: the checkpoint below the first update is expected to exist."""
    store = Rolling()
    app = thread_of(2, store)
    run = app.state("t").run_id
    for number in (20, 21):
        app.update_state("t", {"n": number}, at=3)
    assert app.invoke({"n": 0}, "t").state["n"] == 2
    assert prune_thread(store, log_codec_for(app.graph), KEY, keep_last=1) == 4
    found = app.invoke({"n": 0}, "t")
    assert (found.run_id, found.reused, found.state["n"]) == (run, True, 21)


def test_question_that_is_the_oldest_checkpoint_left_is_read() -> None:
    """The entry that began its step is gone. Fails if that is expected to exist."""

    def ask(state: State) -> dict[str, Any]:
        return {"n": interrupt("how many?", answer=int)}

    store = Rolling()
    graph: StateGraph[State] = StateGraph(State)
    graph.add_node("ask", ask)
    graph.add_node("note", note)
    graph.add_edges(START, "ask", "note")
    graph.add_edge("note", END, when=lambda state: state["n"] > 9)
    graph.add_edge("note", "note")
    app = graph.compile(store=store)
    app.invoke({"n": 0}, "t")
    asked = app.state("t")
    app.resume("t", 0)
    left = [known.seq for known in app.history("t") if known.seq >= asked.seq]
    prune_thread(store, log_codec_for(app.graph), KEY, keep_last=len(left))
    assert [known.seq for known in app.history("t")] == left
    found = app.state("t", asked.seq)
    assert (found.state, found.next) == (asked.state, ("ask",))
