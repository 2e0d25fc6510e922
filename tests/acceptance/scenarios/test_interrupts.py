"""H2: questions in nodes, answers of every declared type, one by one and together."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict

import pytest
from pydantic import BaseModel, Field, field_validator

from milecastle import (
    END,
    START,
    App,
    Context,
    ExecutionError,
    InvalidAnswer,
    InvalidRequest,
    ResumeRefused,
    StateGraph,
    Store,
    append,
    interrupt,
)
from milecastle.stores.memory import MemoryStore
from milecastle.testing import crash_everywhere
from tests.acceptance.running import Recorder
from tests.acceptance.scenarios.calling import (
    Caller,
    Calls,
    Paint,
    crash_at,
    everything,
    ids,
    of_state,
    questions,
)


class Talk(TypedDict, total=False):
    n: int
    got: Any
    log: Annotated[list[str], append]


def says(name: str) -> Any:
    def node(state: Any) -> dict[str, Any]:
        return {"log": [name]}

    return node


def one(node: Any, store: Store | None, **compiled: Any) -> App[Talk]:
    graph: StateGraph[Talk] = StateGraph(Talk)
    graph.add_node("ask", node)
    graph.add_edges(START, "ask", END)
    return graph.compile(store=store, **compiled)


def side_by_side(store: Store | None, **nodes: Any) -> App[Talk]:
    graph: StateGraph[Talk] = StateGraph(Talk)
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    return graph.compile(store=store)


def asks(*names: str, calls: Calls | None = None) -> Any:
    def node(state: Any) -> dict[str, Any]:
        got = [f"{name}={interrupt(name, answer=str)}" for name in names]
        if calls is not None:
            calls(names[0])
        return {"log": got}

    return node


# ---- several questions


@pytest.mark.requirement("H2", api="interrupt")
def test_a_question_waits_with_what_it_shows_and_takes(
    call: Caller, store: Store, paint: Paint
) -> None:
    def node(state: Any) -> dict[str, Any]:
        return {"got": interrupt("Publish?", show={"notes": [1, "two"]}, answer=bool)}

    app = one(paint(node), store)
    result = call.invoke(app, {})
    (found,) = result.interrupts
    assert (found.node, found.question, found.show) == ("ask", "Publish?", {"notes": [1, "two"]})
    assert found.answer == {"type": "boolean"}
    assert (result.status, result.next) == ("interrupted", ("ask",))
    assert app.state("t").interrupts == (found,)
    assert call.resume(app, answer=True)["got"] is True


@pytest.mark.requirement("H2", api="interrupt")
def test_several_questions_in_one_node_are_asked_one_after_the_other(
    call: Caller, store: Store, paint: Paint
) -> None:
    app = one(paint(asks("a", "b", "c")), store)
    result = call.invoke(app, {})
    seen: set[str] = set()
    for name in ("a", "b", "c"):
        assert questions(result) == [name]
        seen.add(ids(result)[name])
        result = call.resume(app, answer=name.upper())
    assert result["log"] == ["a=A", "b=B", "c=C"]
    assert len(seen) == 3


@pytest.mark.requirement("H2", api="App.resume")
def test_questions_of_parallel_branches_are_answered_together(
    call: Caller, store: Store, paint: Paint
) -> None:
    app = side_by_side(store, x=paint(asks("x")), y=paint(asks("y")), z=paint(asks("z")))
    result = call.invoke(app, {})
    assert questions(result) == ["x", "y", "z"]
    result = call.resume(app, answers={found.id: found.question for found in result.interrupts})
    assert result["log"] == ["x=x", "y=y", "z=z"]


@pytest.mark.requirement("H2", api="App.resume")
def test_branch_whose_question_is_still_open_does_not_run_again(call: Caller, store: Store) -> None:
    """Fails if an answer starts every branch that asks, and not only the one that it is for."""
    calls = Calls()

    def asking(name: str) -> Any:
        def node(state: Any) -> dict[str, Any]:
            calls(name)
            return {"log": [interrupt(name, answer=str)]}

        return node

    app = side_by_side(store, x=asking("x"), y=asking("y"))
    result = call.resume(app, answers={ids(call.invoke(app, {}))["x"]: "X"})
    assert questions(result) == ["y"]
    assert sorted(calls.made) == ["x", "x", "y"]


@pytest.mark.requirement("H2", api="App.resume")
def test_questions_of_parallel_branches_are_answered_one_by_one(
    call: Caller, store: Store, paint: Paint
) -> None:
    calls = Calls()
    nodes = {name: paint(asks(name, calls=calls)) for name in ("x", "y", "z")}
    app = side_by_side(store, quick=paint(of_state(lambda state: calls("quick"))), **nodes)
    open_ids = ids(call.invoke(app, {}))
    result = call.resume(app, answers={open_ids["y"]: "1"})
    assert (questions(result), calls.made) == (["x", "z"], ["quick", "y"])
    result = call.resume(app, answers={open_ids["x"]: "2"})
    assert (questions(result), calls.made) == (["z"], ["quick", "y", "x"])
    assert call.resume(app, answer="3")["log"] == ["x=2", "y=1", "z=3"]
    assert calls.made == ["quick", "y", "x", "z"]


def test_one_answer_for_several_questions_is_refused_with_their_ids(
    call: Caller, store: Store
) -> None:
    app = side_by_side(store, x=asks("x"), y=asks("y"))
    result = call.invoke(app, {})
    before = everything(app)
    with pytest.raises(InvalidRequest, match="2 open questions") as raised:
        call.resume(app, answer="which?")
    assert all(found.id in str(raised.value) for found in result.interrupts)
    with pytest.raises(ResumeRefused, match="waits for an answer"):
        call.resume(app)
    assert everything(app) == before


def test_a_question_in_a_loop_is_a_new_one_each_time(call: Caller, store: Store) -> None:
    graph: StateGraph[Talk] = StateGraph(Talk)
    graph.add_node(
        "ask", of_state(lambda state: {"n": state["n"] + interrupt("more?", answer=int)})
    )
    graph.add_edge(START, "ask")
    graph.add_edge("ask", END, when=lambda state: state.get("n", 0) >= 3)
    graph.add_edge("ask", "ask")
    app = graph.compile(store=store)
    first = ids(call.invoke(app, {"n": 0}))["more?"]
    second = ids(call.resume(app, answer=1))["more?"]
    assert first != second
    with pytest.raises(InvalidRequest, match="no open question"):
        call.resume(app, answers={first: 1})
    assert call.resume(app, answer=5)["n"] == 6


def test_items_of_a_fan_out_ask_each_for_itself(call: Caller, store: Store, paint: Paint) -> None:
    def each(state: Any) -> dict[str, Any]:
        if state["item"] % 2:
            return {"log": [f"{state['item']} quiet"]}
        answer = interrupt(state["item"], answer=str)
        return {"log": [f"{state['item']} {answer}"]}

    graph: StateGraph[Talk] = StateGraph(Talk)
    graph.add_node("each", paint(each), limit=3)
    graph.map(START, "each", over=lambda state: range(7), item="item")
    graph.add_edge("each", END)
    app = graph.compile(store=store)
    result = call.invoke(app, {})
    assert questions(result) == [0, 2, 4, 6]
    given = {found.id: f"no {found.question}" for found in result.interrupts}
    assert call.resume(app, answers=given)["log"] == [
        f"{n} quiet" if n % 2 else f"{n} no {n}" for n in range(7)
    ]


def test_a_node_that_asks_is_run_again_from_its_top_and_that_is_seen(
    call: Caller, store: Store
) -> None:
    recorder, attempts = Recorder(), list[int]()

    def node(state: Any, ctx: Context) -> dict[str, Any]:
        attempts.append(ctx.attempt)
        return {"log": [interrupt("q", answer=str)]}

    app = one(node, store, observers=[recorder])
    run_id = call.invoke(app, {}).run_id
    result = call.resume(app, answer="yes")
    assert result.run_id == run_id
    assert attempts == [1, 2]
    starts = [event for event in recorder.events if event.type == "node_start"]
    assert [event.attempt for event in starts] == [1, 2]


# ---- types


@dataclass
class Review:
    grade: int
    note: str = ""


class Order(BaseModel):
    sku: str
    count: int = Field(ge=1)


class Pair(BaseModel):
    count: int

    @field_validator("count")
    @classmethod
    def is_even(cls, count: int) -> int:
        if count % 2:
            raise ValueError("a pair is even")
        return count


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"


GOOD: list[tuple[Any, Any, Any]] = [
    (bool, False, False),
    (int, 3, 3),
    (float, 3, 3.0),
    (str, "", ""),
    (Literal["yes", "no"], "no", "no"),
    (list[str], ["a", "b"], ["a", "b"]),
    (dict[str, int], {"a": 1}, {"a": 1}),
    (bool | None, None, None),
    (Review, {"grade": 2}, Review(2)),
    (Review, Review(3, "x"), Review(3, "x")),
    (Order, {"sku": "a", "count": 2}, Order(sku="a", count=2)),
    (Order, Order(sku="b", count=1), Order(sku="b", count=1)),
    (Mood, "bad", Mood.BAD),
    (Mood, Mood.GOOD, Mood.GOOD),
    (date, "2026-01-02", date(2026, 1, 2)),
    (datetime, "2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
    (None, {"any": [1, None]}, {"any": [1, None]}),
    (None, None, None),
]

BAD: list[tuple[Any, Any]] = [
    (bool, 1),
    (bool, "true"),
    (bool, None),
    (int, True),
    (int, "3"),
    (int, 3.5),
    (str, 3),
    (Literal["yes", "no"], "maybe"),
    (list[str], ["a", 1]),
    (list[str], "ab"),
    (bool | None, 0),
    (Review, {"note": "no grade"}),
    (Review, {"grade": "high"}),
    (Order, {"sku": "a", "count": 0}),
    (Order, {"count": 1}),
    (Mood, "ugly"),
    (date, "tomorrow"),
    (datetime, "rubbish"),
    (None, object()),
]


@pytest.mark.parametrize(("wanted", "given", "got"), GOOD)
@pytest.mark.requirement("H2", api="interrupt")
def test_an_answer_arrives_in_the_type_that_was_declared(
    call: Caller, wanted: Any, given: Any, got: Any
) -> None:
    seen: list[Any] = []

    def node(state: Any) -> None:
        seen.append(interrupt("q", answer=wanted))

    app = one(node, MemoryStore())
    call.invoke(app, {})
    assert call.resume(app, answer=given).status == "completed"
    assert seen == [got]
    assert type(seen[0]) is type(got)


@pytest.mark.parametrize(("wanted", "given"), BAD)
@pytest.mark.requirement("H2", api="interrupt")
def test_an_answer_that_does_not_fit_leaves_the_thread_as_it_was(
    call: Caller, wanted: Any, given: Any
) -> None:
    calls = Calls()

    def node(state: Any) -> None:
        interrupt("q", answer=wanted)
        calls("past")

    app = one(node, MemoryStore())
    question = call.invoke(app, {}).interrupts[0].id
    before = everything(app)
    with pytest.raises(InvalidAnswer):
        call.resume(app, answer=given)
    with pytest.raises(InvalidAnswer):
        call.resume(app, answers={question: given})
    assert everything(app) == before
    assert calls.made == []


def test_a_rejected_answer_leaves_every_store_as_it_was(call: Caller, store: Store) -> None:
    def node(state: Any) -> dict[str, Any]:
        return {"got": interrupt("Publish?", answer=bool)}

    app = side_by_side(store, ask=node, other=asks("x"))
    open_ids = ids(call.invoke(app, {}))
    before = everything(app)
    wrong = {open_ids["x"]: "fine", open_ids["Publish?"]: "perhaps"}
    with pytest.raises(InvalidAnswer) as raised:
        call.resume(app, answers=wrong)
    assert "perhaps" not in str(raised.value)  # no values in messages
    with pytest.raises(InvalidRequest):
        call.resume(app, answers={"nonsense": True})
    assert everything(app) == before
    result = call.resume(app, answers={open_ids["x"]: "fine", open_ids["Publish?"]: False})
    assert (result["got"], result["log"]) == (False, ["x=fine"])


def test_a_type_that_cannot_be_checked_is_refused_where_it_is_declared(call: Caller) -> None:
    app = one(of_state(lambda state: interrupt("q", answer=Store)), MemoryStore())
    with pytest.raises(ExecutionError) as raised:
        call.invoke(app, {})
    assert isinstance(raised.value.__cause__, InvalidRequest)


def test_a_question_outside_of_a_node_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="inside a node"):
        interrupt("who?")


# ---- around it


def test_the_same_input_while_it_waits_changes_nothing(call: Caller, store: Store) -> None:
    app = one(asks("q"), store)
    result = call.invoke(app, {"n": 1})
    before = everything(app)
    assert call.invoke(app, {"n": 1}).interrupts == result.interrupts
    assert everything(app) == before
    with pytest.raises(InvalidRequest, match="another input"):
        call.invoke(app, {"n": 2})
    assert everything(app) == before


def test_interrupt_before_and_a_question_in_the_same_node(call: Caller, store: Store) -> None:
    app = one(asks("q"), store, interrupt_before=["ask"], interrupt_after=["ask"])
    result = call.invoke(app, {})
    assert [found.asks for found in result.interrupts] == [False]
    with pytest.raises(InvalidRequest, match="no open question"):
        call.resume(app, answer="too early")
    result = call.resume(app)
    assert [found.asks for found in result.interrupts] == [True]
    result = call.resume(app, answer="yes")
    assert result["log"] == ["q=yes"]


def test_a_branch_that_failed_after_its_answer_is_tried_again_while_another_waits(
    call: Caller, store: Store
) -> None:
    broken = [True]

    def breaks(state: Any) -> dict[str, Any]:
        answer = interrupt("x", answer=str)
        if broken:
            raise ValueError("no")
        return {"log": [f"x={answer}"]}

    app = side_by_side(store, x=breaks, y=asks("y"))
    open_ids = ids(call.invoke(app, {}))
    call.fails(app, None, answers={open_ids["x"]: "1"})
    assert app.state("t").status == "failed"
    broken.clear()
    result = call.resume(app)
    assert questions(result) == ["y"]
    assert call.resume(app, answer="2")["log"] == ["x=1", "y=2"]


def test_a_thread_that_failed_still_takes_answers(call: Caller, store: Store) -> None:
    broken = [True]

    def breaks(state: Any) -> dict[str, Any]:
        answer = interrupt("x", answer=str)
        if broken:
            raise ValueError("no")
        return {"log": [f"x={answer}"]}

    app = side_by_side(store, x=breaks, y=asks("y"))
    open_ids = ids(call.invoke(app, {}))
    call.fails(app, None, answers={open_ids["x"]: "1"})
    broken.clear()
    result = call.resume(app, answers={open_ids["y"]: "2"})
    assert result["log"] == ["x=1", "y=2"]


@pytest.mark.parametrize("effect", [1, 2, 3, 4])
def test_a_crash_after_one_of_two_answers_loses_neither(
    call: Caller, store: Store, effect: int
) -> None:
    app = side_by_side(store, x=asks("x"), y=asks("y"))
    open_ids = ids(call.invoke(app, {}))
    crash_at(app, None, effect, answers={open_ids["x"]: "1"})
    head = app.state("t")
    if head.status == "interrupted":
        result = call.resume(app, answers={open_ids["y"]: "2"})
    else:
        result = call.resume(app)
        assert questions(result) == ["y"]
        result = call.resume(app, answer="2")
    assert result["log"] == ["x=1", "y=2"]


def test_an_answer_survives_the_graph_being_called_without_a_store() -> None:
    app = one(asks("q"), None)
    result = app.invoke({})
    assert (result.status, questions(result)) == ("interrupted", ["q"])


def test_no_crash_changes_how_a_graph_that_stops_for_people_ends() -> None:
    graph: StateGraph[Talk] = StateGraph(Talk)
    for name in ("a", "b", "c"):
        graph.add_node(name, says(name))
    graph.add_edges(START, "a", "b", "c", END)
    app = graph.compile(store=MemoryStore(), interrupt_before=["b"], interrupt_after=["b"])
    assert not crash_everywhere(app, {}).mismatches


# ---- answers that only the type itself can refuse


def wants_a_pair(state: Any) -> dict[str, Any]:
    return {"got": interrupt("How many?", answer=Pair).count}


def test_what_only_the_type_refuses_opens_the_question_again(call: Caller, store: Store) -> None:
    app = one(wants_a_pair, store)
    question = call.invoke(app, {}).interrupts[0]
    wrong: list[dict[str, Any]] = [
        {"answer": {"count": 3}},
        {"answers": {question.id: {"count": 5}}},
    ]
    for given in wrong:
        with pytest.raises(InvalidAnswer, match=r"question .* of node 'ask': .*\$.count: .*even"):
            call.resume(app, **given)
        state = app.state("t")
        assert (state.status, [one.id for one in state.interrupts]) == (
            "interrupted",
            [question.id],
        )
        assert "a pair is even" in (state.interrupts[0].refused or "")
    with pytest.raises(ResumeRefused):
        call.resume(app)
    assert call.resume(app, answer={"count": 4})["got"] == 4


def test_a_refused_answer_keeps_what_others_were_given(call: Caller, store: Store) -> None:
    app = side_by_side(store, ask=wants_a_pair, other=asks("x"))
    open_ids = ids(call.invoke(app, {}))
    with pytest.raises(InvalidAnswer):
        call.resume(app, answers={open_ids["x"]: "fine", open_ids["How many?"]: {"count": 1}})
    state = app.state("t")
    assert [one.question for one in state.interrupts] == ["How many?"]
    result = call.resume(app, answer={"count": 2})
    assert (result["got"], result["log"]) == (2, ["x=fine"])


def test_an_older_refusal_is_not_held_against_another_answer(call: Caller, store: Store) -> None:
    app = side_by_side(store, ask=wants_a_pair, other=asks("x"))
    open_ids = ids(call.invoke(app, {}))
    with pytest.raises(InvalidAnswer):
        call.resume(app, answers={open_ids["How many?"]: {"count": 1}})
    result = call.resume(app, answers={open_ids["x"]: "fine"})
    assert [one.question for one in result.interrupts] == ["How many?"]


def test_a_subgraph_asks_again_at_the_top(call: Caller, store: Store) -> None:
    inner: StateGraph[Talk] = StateGraph(Talk)
    inner.add_node("ask", wants_a_pair)
    inner.add_edges(START, "ask", END)
    graph: StateGraph[Talk] = StateGraph(Talk)
    graph.add_node("inner", inner.compile())
    graph.add_edges(START, "inner", END)
    app = graph.compile(store=store)
    question = call.invoke(app, {}).interrupts[0].id
    with pytest.raises(InvalidAnswer, match="even"):
        call.resume(app, answer={"count": 7})
    assert [one.id for one in app.state("t").interrupts] == [question]
    assert call.resume(app, answers={question: {"count": 8}})["got"] == 8
