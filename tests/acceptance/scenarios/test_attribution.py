"""Who answered: stored with the answer, in the log."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    Actor,
    App,
    InvalidRequest,
    StateGraph,
    Store,
    append,
    interrupt,
)
from milecastle.testing import ManualClock, with_store
from tests.acceptance.scenarios.calling import Caller


class Case(TypedDict, total=False):
    log: Annotated[list[str], append]


def asking(store: Store, clock: ManualClock, text: str = "ship?") -> App[Any]:
    def node(state: Case) -> dict[str, Any]:
        first = interrupt(text, show={"n": 1}, answer=str)
        return {"log": [first, interrupt("sure?", answer=str, within=60, otherwise="-")]}

    graph: StateGraph[Case] = StateGraph(Case, name="asking")
    graph.add_node("node", node)
    graph.add_edges(START, "node", END)
    return with_store(graph.compile(store=store), store, clock=clock)


@pytest.mark.requirement("M6")
def test_answers_are_listed_with_who_gave_them(call: Caller, store: Store) -> None:
    """Tried: an entry without ``__answered__``; nobody gave the answer."""
    clock = ManualClock()
    app = asking(store, clock)
    (found,) = call.invoke(app, {}).interrupts
    by = Actor("ann", reason="checked", shown=found.digest)
    (second,) = call.resume(app, answer="yes", by=by).interrupts
    clock.advance(61)
    call.resume(app)
    first, last = app.answers("t")
    assert (first.question, first.answer, first.timed_out) == (found.id, "yes", False)
    assert first.by == Actor("ann", "asserted", "checked")
    assert first.digest == found.digest
    assert (last.question, last.answer, last.by, last.timed_out) == (second.id, None, None, True)
    assert first.seq < last.seq


def test_plain_name_is_asserted_and_no_name_is_none(call: Caller, store: Store) -> None:
    """Tried: a missing actor stored as an empty one."""
    app = asking(store, ManualClock())
    call.invoke(app, {})
    call.resume(app, answer="yes", by="ann")
    call.resume(app, answer="no")
    assert [(one.answer, one.by) for one in app.answers("t")] == [
        ("yes", Actor("ann")),
        ("no", None),
    ]


@pytest.mark.requirement("M6")
def test_answer_to_a_question_that_changed_since_it_was_shown_is_refused(
    call: Caller, store: Store
) -> None:
    """Tried: no comparison; the answer to another question is taken."""
    clock = ManualClock()
    other = call.invoke(asking(store, clock, "refund?"), {}, "u").interrupts[0]
    app = asking(store, clock)
    (found,) = call.invoke(app, {}).interrupts
    assert other.digest != found.digest
    with pytest.raises(InvalidRequest, match="changed since it was shown"):
        call.resume(app, answer="yes", by=Actor("ann", shown=other.digest))
    assert app.answers("t") == []
    call.resume(app, answer="yes", by=Actor("ann", shown=found.digest))
    assert len(app.answers("t")) == 1


class OldCase(Case, total=False):
    extra: int


def test_an_answer_given_while_a_graph_change_is_accepted_is_listed(
    call: Caller, store: Store
) -> None:
    """Its entry is an update. Fails if only entries of answers are read."""
    graph: StateGraph[OldCase] = StateGraph(OldCase, name="asking")
    graph.add_node("node", lambda state: {"log": [interrupt("ship?", answer=str)]})
    graph.add_edges(START, "node", END)
    (found,) = call.invoke(graph.compile(store=store), {"extra": 1}).interrupts
    app = asking(store, ManualClock())
    app.resume("t", "yes", by="ann", accept_changes=True)
    (first,) = app.answers("t")
    assert (first.question, first.answer, first.by) == (found.id, "yes", Actor("ann", "asserted"))
    (second,) = app.state("t").interrupts
    app.resume("t", "sure", question=second.id)
    assert [one.answer for one in app.answers("t")] == ["yes", "sure"]
