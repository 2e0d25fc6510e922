"""``crash_everywhere``: it passes where nothing is lost, and reports what is."""

from __future__ import annotations

import operator
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Annotated, Any, TypedDict

import msgspec.structs
import pytest

from milecastle import (
    END,
    START,
    App,
    CheckpointConfig,
    Event,
    ExecutionError,
    ExecutionOptions,
    InvalidRequest,
    MaxStepsExceeded,
    StateGraph,
    Store,
    ThreadKey,
    add,
    append,
)
from milecastle.ports.store import Batch
from milecastle.stores.memory import MemoryStore
from milecastle.testing import (
    CrashMismatch,
    CrashReport,
    TornStore,
    WrappedStore,
    crash_everywhere,
)
from milecastle.testing.faulty_stores import Part


class Work(TypedDict):
    rounds: int
    notes: Annotated[list[str], append]


Function = Callable[[Any], Any]

BEGIN: Work = {"rounds": 0, "notes": []}


def busy_app(ran: Counter[str] | None = None, **settings: Any) -> App[Work]:
    """Two rounds of a chain, a fan-out of three (one of them async) and a fan-in."""
    seen: Counter[str] = Counter() if ran is None else ran
    graph = StateGraph(Work)

    def note(name: str) -> dict[str, Any]:
        seen[name] += 1
        return {"notes": [name]}

    async def note_async(name: str) -> dict[str, Any]:
        return note(name)

    def join(state: Work, name: str) -> dict[str, Any]:
        return note(name) | {"rounds": state["rounds"] + 1}

    graph.add_node("start", note)
    graph.add_node("left", note)
    graph.add_node("middle", note_async)
    graph.add_node("right", note)
    graph.add_node("join", join)
    graph.add_edge(START, "start")
    for name in ("left", "middle", "right"):
        graph.add_edges("start", name, "join")
    graph.add_conditional_edges(
        "join", lambda state: END if state["rounds"] == 2 else "start", ["start", END]
    )
    return graph.compile(**settings)


def chain(state: type[Any], *, store: Store | None = None, **nodes: Function) -> App[Any]:
    """Nodes one after the other."""
    graph: StateGraph[Any] = StateGraph(state)
    for name, function in nodes.items():
        graph.add_node(name, function)
    graph.add_edges(START, *nodes, END)
    return graph.compile(store=store)


def failing(app: App[Any], given: Any, **settings: Any) -> CrashMismatch:
    with pytest.raises(CrashMismatch) as raised:
        crash_everywhere(app, given, **settings)
    return raised.value


def test_nothing_is_lost_and_the_report_says_what_ran_again() -> None:
    ran: Counter[str] = Counter()
    report = crash_everywhere(busy_app(ran), BEGIN)
    assert report.crashes == 2 * report.effects
    assert report.mismatches == ()
    assert set(report.repeated) == {"start", "left", "middle", "right", "join"}
    # A node of a single task runs again for: a crash after it, and one before its commit.
    assert report.repeated["start"] == 2 * 2
    assert ran["start"] == 2 * (1 + report.crashes) + report.repeated["start"]
    assert "0 mismatches; ran again: 'join' in 4" in str(report)


@pytest.mark.parametrize("seed", range(8))
def test_interrupts_are_resumed_as_often_as_undisturbed(seed: int) -> None:
    app = busy_app(interrupt_before=["left", "join"], interrupt_after=["middle", "join"])
    assert crash_everywhere(app, BEGIN, seed=seed).mismatches == ()


def test_it_crashes_at_events_too_if_somebody_listens() -> None:
    class Listener:
        def on_event(self, event: Event) -> None:
            assert event.type

    quiet = crash_everywhere(busy_app(), BEGIN)
    heard = crash_everywhere(busy_app(observers=[Listener()]), BEGIN)
    assert heard.effects > 2 * quiet.effects


@pytest.mark.parametrize("interval", [0, 2, 3, 100])
def test_steps_that_were_not_saved_are_repeated_and_nothing_is_lost(interval: int) -> None:
    config = CheckpointConfig(store="memory://", interval=interval)
    report = crash_everywhere(busy_app(checkpoint=config), BEGIN)
    every_step = crash_everywhere(busy_app(), BEGIN)
    if interval > 1:
        assert report.repeated["left"] > every_step.repeated["left"]


def test_threads_are_gone_when_all_was_well_and_no_other_is_touched() -> None:
    store = MemoryStore()
    app = busy_app(store=store)
    app.invoke(BEGIN, "crash")
    crash_everywhere(app, BEGIN)
    crash_everywhere(app, BEGIN, thread=ThreadKey("other", "mine"))
    assert [info.key.thread for info in store.threads("default")] == ["crash"]
    assert store.threads("other") == []
    assert app.state("crash").status == "completed"


def test_a_thread_that_came_out_wrong_is_left_to_be_looked_at() -> None:
    store = MemoryStore()
    error = failing(
        busy_app(store=TornStore(store, late={"results"})), BEGIN, thread=ThreadKey("a", "b")
    )
    left = [str(info.key) for info in store.threads("a")]
    assert {mismatch.thread for mismatch in error.report.mismatches} < set(left)
    assert len(left) == len(error.report.mismatches) + 1  # and the undisturbed one


def test_checkpoints_that_are_not_preserved_are_kept_while_looking() -> None:
    store = MemoryStore()
    app = busy_app(checkpoint=CheckpointConfig(store=store, preserve=False))
    crash_everywhere(app, BEGIN)
    assert store.threads("default") == []


def test_options_and_config_reach_the_run() -> None:
    with pytest.raises(MaxStepsExceeded):
        crash_everywhere(busy_app(), BEGIN, options=ExecutionOptions(max_steps=3))
    words: list[list[str]] = []

    def speak(config: dict[str, str]) -> dict[str, Any]:
        return {"notes": [config["word"]]}

    def keep(one: Work, other: Work) -> bool:
        words.append(other["notes"])
        return one == other

    crash_everywhere(chain(Work, speak=speak), BEGIN, config={"word": "hello"}, compare=keep)
    assert words == [["hello"]] * len(words)
    assert words


def test_a_run_that_fails_undisturbed_raises_what_it_raises() -> None:
    with pytest.raises(ExecutionError):
        crash_everywhere(chain(Work, a=lambda state: 1 // 0), BEGIN)


def test_run_that_would_wait_forever_is_refused() -> None:
    graph = StateGraph(Work)

    @graph.node
    def a(state: Work) -> dict[str, Any]:
        return {"rounds": state["rounds"] + 1}

    graph.add_edge(START, "a")
    graph.add_conditional_edges("a", lambda state: "a", ["a", END])
    with pytest.raises(InvalidRequest, match="did not finish in 1000 calls"):
        crash_everywhere(graph.compile(interrupt_before=["a"]), BEGIN)


# -- what must be found out ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("late", "finding"),
    [
        ("entries", "was acknowledged but lost"),
        ("runs", "has no record"),
        ("results", "was committed, but the task ran again"),
    ],
)
def test_a_commit_that_is_not_atomic_is_found_out(late: Part, finding: str) -> None:
    error = failing(busy_app(store=TornStore(MemoryStore(), late={late})), BEGIN)
    assert finding in str(error)
    assert "must be durable" in error.report.hint
    assert all(mismatch.kind for mismatch in error.report.mismatches)


def test_a_run_record_that_lags_behind_is_found_out_at_the_end() -> None:
    error = failing(busy_app(store=TornStore(MemoryStore(), late={"runs"})), BEGIN)
    last = error.report.mismatches[-1]
    ran_again = "called again after completion, it ran again instead of returning its result"
    assert (last.kind, last.problems) == ("Commit", (ran_again, "a run was left as 'running'"))
    assert last.point is not None
    assert (last.point.effect, last.point.when) == (error.report.effects, "after")


def test_the_control_of_these_stores_passes() -> None:
    report = crash_everywhere(busy_app(store=TornStore(MemoryStore(), late=())), BEGIN)
    assert report.mismatches == ()


def test_a_store_that_skips_a_number_is_found_out() -> None:
    class Skipping(WrappedStore):
        def history(self, key: ThreadKey, **limits: Any) -> Any:
            found = list(super().history(key, **limits))
            return iter([entry for entry in found if entry.seq != 2])

    error = failing(busy_app(store=Skipping(MemoryStore())), BEGIN)
    assert "the history has gaps: its seqs are [1, 3," in str(error)


class Forgetful(WrappedStore):
    """Does not store by which input a run was begun."""

    def commit(self, batch: Batch) -> None:
        runs = tuple(msgspec.structs.replace(run, input_digest="") for run in batch.runs)
        super().commit(msgspec.structs.replace(batch, runs=runs))


def test_work_that_is_done_again_by_a_call_after_the_end_is_reported() -> None:
    """Control: a store that forgets the input. Broken on purpose: the call after the end left out
    of ``Courses.run``, and its clause out of the judge."""
    app = chain(Work, store=Forgetful(MemoryStore()), node=lambda state: {"notes": ["done"]})
    error = failing(app, BEGIN)
    assert "called again after completion, it ran again" in str(error)


def in_place(change: Callable[[Work], None]) -> App[Work]:
    return chain(Work, sloppy=change, tidy=lambda state: {"rounds": len(state["notes"])})


def test_a_value_changed_in_place_is_found_out_and_the_node_is_named() -> None:
    error = failing(in_place(lambda state: state["notes"].append("secret")), BEGIN)
    assert "without any crash: the final state differs at $.notes[0]" in str(error)
    assert "changed a value of its input state in place: 'sloppy'" in str(error)
    assert "secret" not in str(error)


def test_key_set_in_the_given_dict_changes_nothing_and_is_not_a_mismatch() -> None:
    def assign(state: Work) -> None:
        state["rounds"] = 99

    assert crash_everywhere(in_place(assign), BEGIN).mismatches == ()


def test_a_value_changed_in_place_is_found_out_even_if_it_is_saved_later() -> None:
    class Whole(TypedDict):
        notes: list[str]

    def sloppy(state: Whole) -> None:
        state["notes"].append("x")

    app = chain(Whole, sloppy=sloppy, saves=lambda state: {"notes": state["notes"]})
    error = failing(app, {"notes": []})
    assert error.report.mismatches[0].point is not None
    assert error.report.mismatches[0].paths == ("$.notes[0] (removed)",)
    assert "'sloppy'" in error.report.hint


def counting_app() -> App[Work]:
    """A graph whose outcome depends on how often it ran."""
    numbers = count()
    return chain(Work, a=lambda state: {"rounds": next(numbers)})


def test_an_outcome_that_is_not_the_same_each_time_needs_compare() -> None:
    error = failing(counting_app(), BEGIN)
    assert error.report.mismatches[0].paths == ("$.rounds (changed)",)
    assert "compare=" in error.report.hint
    report = crash_everywhere(
        counting_app(), BEGIN, compare=lambda one, other: one["notes"] == other["notes"]
    )
    assert report.mismatches == ()
    refused = failing(counting_app(), BEGIN, compare=operator.is_)
    assert refused.report.mismatches[0].paths == ("$",)


def test_a_run_that_takes_another_way_each_time_is_reported() -> None:
    calls = count()
    graph = StateGraph(Work)

    @graph.node
    def a() -> dict[str, Any]:
        return {"notes": ["a"]}

    @graph.node
    def b() -> None: ...

    graph.add_edge(START, "a")
    graph.add_conditional_edges("a", lambda state: END if next(calls) else "b", ["b", END])
    graph.add_edge("b", END)
    error = failing(graph.compile(), BEGIN)
    assert "the graph is not deterministic" in str(error)
    assert "the path through the graph differs" in str(error)
    assert error.report.mismatches[-1].kind == ""


def test_a_node_that_fails_after_a_crash_is_reported_without_its_message() -> None:
    calls = count()

    def once(state: Work) -> None:
        if next(calls) == 2:
            raise ValueError("a secret of the state")

    error = failing(chain(Work, once=once), BEGIN)
    assert "it could not continue: ExecutionError: node 'once' failed at step 1" in str(error)
    assert "secret" not in str(error)


def test_a_store_that_raises_something_odd_is_reported_by_its_type() -> None:
    class Odd(WrappedStore):
        def __init__(self, store: Store) -> None:
            super().__init__(store)
            self.commits = 0

        def commit(self, batch: Batch) -> None:
            self.commits += 1
            if self.commits == 4:
                raise OSError("/a/private/path")
            super().commit(batch)

    odd = Odd(MemoryStore())
    error = failing(chain(Work, store=odd, a=lambda state: {"rounds": 1}), BEGIN)
    assert "it could not continue: OSError" in str(error)
    assert "private" not in str(error)


def test_a_long_report_is_cut_short_and_survives_pickling() -> None:
    class Counted(TypedDict):
        all: list[int]

    numbers = count()
    app = chain(
        Counted,
        a=lambda state: {"all": [next(numbers)] * 8},
        b=lambda state: None,
        c=lambda state: None,
    )
    error = failing(app, {"all": []})
    assert len(error.report.mismatches) > 10
    assert f"and {len(error.report.mismatches) - 10} more" in str(error)
    assert "$.all[4] (changed) and at 3 more places" in str(error)
    copied = pickle.loads(pickle.dumps(error))
    assert str(copied) == str(error)
    assert isinstance(copied.report, CrashReport)


@dataclass
class Sum:
    total: Annotated[float, add] = 0.0
    parts: list[float] = field(default_factory=lambda: [float("nan"), -0.0])


def test_a_state_that_is_a_dataclass_with_odd_floats_is_compared_exactly() -> None:
    app = chain(
        Sum,
        a=lambda state: {"total": 0.1},
        b=lambda state: {"parts": [*state.parts, float("nan")]},
    )
    assert crash_everywhere(app, Sum(total=0.2)).mismatches == ()
