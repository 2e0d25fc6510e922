"""T1-T5 with everything: branches off fan-outs, questions, answers and subgraphs.

The property test comes first: random graphs and random operations, compared with a simple model.
An answer that is given on one branch must never be seen on another.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from milecastle import (
    END,
    START,
    App,
    Context,
    InvalidRequest,
    MilecastleError,
    ResumeRefused,
    StateGraph,
    Store,
    append,
    interrupt,
)
from milecastle.stores.memory import MemoryStore
from tests.acceptance.scenarios.calling import (
    Caller,
    Calls,
    crash_at,
    everything,
    ids,
    questions,
)
from tests.acceptance.scenarios.time_travel_model import KINDS, Model, Standing, build

OPERATIONS = ("answer", "answer", "answer several", "fork", "go back", "update", "stale")


class Traveller:
    """Does random things to threads, and knows from the model what must come of them."""

    def __init__(self, kinds: list[str], store: Store) -> None:
        self.model = Model(kinds)
        self.app: App[Any] = build(kinds, store)
        self.known: dict[str, dict[int, Standing]] = {}
        self.heads: dict[str, Standing] = {}
        self.old_ids: set[str] = set()
        self._tokens = count(1)

    def begin(self) -> None:
        self.app.invoke({}, "t0")
        self._settled("t0", self.model.go_on(Standing()))

    def do(self, operation: str, pick: int, where: int) -> None:
        thread = sorted(self.heads)[pick % len(self.heads)]
        known = sorted(self.known[thread])
        at = known[where % len(known)]
        match operation:
            case "answer":
                self._answer(thread, pick, 1)
            case "answer several":
                self._answer(thread, pick, 2)
            case "fork":
                self._fork(thread, at, f"t{len(self.heads)}")
            case "go back":
                self._fork(thread, at, None)
            case "update":
                self._update(thread, at)
            case _:
                self._give_stale(thread)

    def _open(self, thread: str) -> dict[str, str]:
        return {found.question: found.id for found in self.app.state(thread).interrupts}

    def _answer(self, thread: str, pick: int, most: int) -> None:
        opened = self._open(thread)
        names = sorted(opened)
        if not names:
            return
        chosen = {names[(pick + number) % len(names)] for number in range(most)}
        tokens = {name: f"{thread}-{next(self._tokens)}" for name in chosen}
        self.app.resume(thread, answers={opened[name]: tokens[name] for name in chosen})
        self.old_ids |= {opened[name] for name in chosen}
        self._settled(thread, self.model.answer(self.heads[thread], tokens))

    def _fork(self, thread: str, at: int, other: str | None) -> None:
        self.app.fork(thread, at, other)
        standing = self.model.branch(self.known[thread][at])
        self._go_on(other or thread, standing)

    def _update(self, thread: str, at: int) -> None:
        token = f"edit-{next(self._tokens)}"
        self.app.update_state(thread, {"log": [token]}, at)
        standing = self.model.branch(self.known[thread][at])
        self._go_on(thread, Standing(standing.step, (*standing.log, token), standing.answers))

    def _go_on(self, thread: str, standing: Standing) -> None:
        with suppress(ResumeRefused):  # it has ended, or all of it waits
            self.app.resume(thread)
        self._settled(thread, self.model.go_on(standing))

    def _give_stale(self, thread: str) -> None:
        opened = set(self._open(thread).values())
        before = everything(self.app, thread)
        for old in sorted(self.old_ids - opened)[:3]:
            with pytest.raises(MilecastleError):
                self.app.resume(thread, answers={old: "stale"})
        assert everything(self.app, thread) == before

    def _settled(self, thread: str, standing: Standing) -> None:
        head = self.app.state(thread)
        self.heads[thread] = standing
        self.known.setdefault(thread, {})[head.seq] = standing
        for name in self.heads:
            self._check(name)

    def _check(self, thread: str) -> None:
        standing, head = self.heads[thread], self.app.state(thread)
        assert tuple(head.state.get("log", ())) == standing.log
        wanted = self.model.open(standing)
        assert sorted(self._open(thread)) == sorted(wanted)
        assert head.status == ("interrupted" if wanted else "completed")


@given(
    kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3),
    operations=st.lists(
        st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 9), st.integers(0, 9)),
        max_size=12,
    ),
)
@example(kinds=["child"], operations=[("answer", 0, 0), ("go back", 0, 1)])
@example(kinds=["mixed"], operations=[("answer", 1, 0), ("update", 0, 1), ("answer", 2, 0)])
@settings(max_examples=60)
def test_an_answer_given_on_one_branch_never_leaks_into_another(
    kinds: list[str], operations: list[tuple[str, int, int]]
) -> None:
    traveller = Traveller(kinds, MemoryStore())
    traveller.begin()
    for operation, pick, where in operations:
        traveller.do(operation, pick, where)


ROUND: list[tuple[str, int, int]] = [
    ("answer", 0, 0),
    ("fork", 0, 1),
    ("answer", 1, 0),
    ("update", 0, 0),
    ("answer several", 0, 0),
    ("stale", 0, 0),
    ("go back", 1, 0),
    ("answer", 1, 1),
    ("answer", 0, 1),
    ("fork", 0, 3),
    ("stale", 2, 0),
    ("answer several", 2, 1),
]


def test_the_model_holds_on_every_store(store: Store) -> None:
    traveller = Traveller(["mixed", "items", "both"], store)
    traveller.begin()
    for operation, pick, where in ROUND:
        traveller.do(operation, pick, where)
    assert len(traveller.heads) == 3


# ---- by hand


class Talk(TypedDict, total=False):
    scale: int
    log: Annotated[list[str], append]


def asks(question: str, calls: Calls | None = None) -> Any:
    def node(state: Any) -> dict[str, Any]:
        if calls is not None:
            calls(question)
        return {"log": [f"{question}={interrupt(question, answer=str)}"]}

    return node


def side_by_side(store: Store, **nodes: Any) -> App[Any]:
    graph: StateGraph[Talk] = StateGraph(Talk)
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    return graph.compile(store=store)


def fan_out(store: Store, calls: Calls) -> App[Any]:
    def each(state: Any) -> dict[str, Any]:
        calls(state["item"])
        return {"log": [str(state["item"] * state.get("scale", 1))]}

    graph: StateGraph[Talk] = StateGraph(Talk)
    graph.add_node("each", each, limit=2)
    graph.map(START, "each", over=lambda state: range(6), item="item")
    graph.add_edge("each", END)
    return graph.compile(store=store)


def halfway(app: App[Talk], store: Store, calls: Calls) -> set[int]:
    """Let the process die in the middle of the fan-out; the items that are on record."""
    from tests.acceptance.scenarios.calling import rows

    assert crash_at(app, {"scale": 1}, 7) is not None
    kept = {int(row.partition("#")[2]) for row in rows(store)}
    assert 0 < len(kept) < 6
    calls.made.clear()
    return kept


def test_a_branch_off_the_middle_of_a_fan_out_does_all_of_it(call: Caller, store: Store) -> None:
    calls = Calls()
    app = fan_out(store, calls)
    kept = halfway(app, store, calls)
    app.fork("t", None, "fork")
    assert call.resume(app, "fork")["log"] == [str(number) for number in range(6)]
    assert sorted(calls.made) == list(range(6))
    calls.made.clear()
    assert call.resume(app)["log"] == [str(number) for number in range(6)]
    assert set(calls.made) == set(range(6)) - kept


def test_an_update_in_the_middle_of_a_fan_out_counts_for_every_item(
    call: Caller, store: Store
) -> None:
    calls = Calls()
    app = fan_out(store, calls)
    halfway(app, store, calls)
    app.update_state("t", {"scale": 10})
    assert call.resume(app)["log"] == [str(10 * number) for number in range(6)]


def test_branch_at_a_question_has_its_own_answer(call: Caller, store: Store) -> None:
    app = side_by_side(store, a=asks("a"), b=asks("b"))
    opened = ids(call.invoke(app, {}))
    app.fork("t", None, "fork")
    mine = call.resume(app, answers={opened["a"]: "mine", opened["b"]: "mine"})
    assert app.state("fork").status == "interrupted"
    assert {found.question for found in app.state("fork").interrupts} == {"a", "b"}
    theirs = {found.id: "theirs" for found in app.state("fork").interrupts}
    assert call.resume(app, "fork", answers=theirs)["log"] == ["a=theirs", "b=theirs"]
    assert mine["log"] == app.state("t").state["log"] == ["a=mine", "b=mine"]


def test_a_branch_after_an_answer_has_that_answer(call: Caller, store: Store) -> None:
    calls = Calls()
    app = side_by_side(store, a=asks("a", calls), b=asks("b"))
    opened = ids(call.invoke(app, {}))
    call.resume(app, answers={opened["a"]: "shared"})
    app.fork("t", None, "fork")
    app.fork("t", 2, "before")
    assert call.resume(app, answer="mine")["log"] == ["a=shared", "b=mine"]
    (left,) = app.state("fork").interrupts
    assert left.question == "b"
    result = call.resume(app, "fork", answer="theirs")
    assert result["log"] == ["a=shared", "b=theirs"]
    assert {found.question for found in app.state("before").interrupts} == {"a", "b"}


def test_going_back_to_a_question_asks_again_and_refuses_the_old_answer(
    call: Caller, store: Store
) -> None:
    app = side_by_side(store, a=asks("a"))
    old = ids(call.invoke(app, {}))["a"]
    call.resume(app, answer="first")
    app.fork("t", 2)
    assert app.state("t").status == "interrupted"
    new = {found.question: found.id for found in app.state("t").interrupts}["a"]
    assert new != old
    with pytest.raises(InvalidRequest, match="no open question"):
        call.resume(app, answers={old: "stale"})
    assert call.resume(app, answers={new: "second"})["log"] == ["a=second"]
    history = list(app.history("t"))
    assert {entry.source for entry in history} >= {"fork", "answer", "interrupt"}


def test_an_update_at_a_question_keeps_the_question(call: Caller, store: Store) -> None:
    def node(state: Any) -> dict[str, Any]:
        answer = interrupt(f"times {state['scale']}?", answer=int)
        return {"log": [str(answer * state["scale"])]}

    app = side_by_side(store, a=node)
    call.invoke(app, {"scale": 2})
    app.update_state("t", {"scale": 5})
    assert len(app.state("t").interrupts) == 1
    assert call.resume(app, answer=3)["log"] == ["15"]


def test_the_difference_between_branches_is_what_was_answered(call: Caller, store: Store) -> None:
    app = side_by_side(store, a=asks("a"))
    call.invoke(app, {})
    first = call.resume(app, answer="one")
    end = app.state("t").seq
    app.fork("t", 2)
    call.resume(app, answer="two")
    changes = app.diff("t", end)
    assert first["log"] == ["a=one"]
    assert [change.path for change in changes] == ["$.log[0]"]


def test_branch_has_its_own_idempotency_keys_and_records(call: Caller, store: Store) -> None:
    keys, calls = set[str](), Calls()

    def node(state: Any, ctx: Context) -> dict[str, Any]:
        keys.add(ctx.idempotency_key)
        ctx.once("effect", lambda: calls("effect"))
        return {"log": [interrupt("q", answer=str)]}

    app = side_by_side(store, a=node)
    call.invoke(app, {})
    app.fork("t", 1, "early")
    call.resume(app, "early")
    app.fork("t", 1)
    call.resume(app)
    assert (len(keys), calls.count("effect")) == (3, 3)
    assert questions(call.invoke(app, {})) == ["q"]
