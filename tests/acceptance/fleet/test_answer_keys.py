"""Answers that are sent again: the same key is the same answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from milecastle import App, InvalidRequest, ResumeRefused, Store, interrupt
from milecastle.errors import AlreadyAnswered, NotAsked
from tests.acceptance.fleet.working import Node, Trip, line, note, start, work


def asks(question: str) -> Node:
    def asked(state: Trip) -> dict[str, Any]:
        return {"log": [f"{question} {interrupt(question, answer=str)}"]}

    return asked


def asking(store: Store) -> App[Trip]:
    """Two questions, one after the other."""
    return line(store, ("first", asks("deposit?")), ("second", asks("rest?")))


def log_of(app: App[Trip]) -> list[str]:
    return app.state("t").state["log"]


@pytest.mark.requirement("F1", api="App.answer")
def test_an_answer_sent_again_is_not_taken_by_the_next_question(store: Store) -> None:
    """Was broken: after a lost response, "yes" to the deposit was "yes" to the rest as well."""
    app = asking(store)
    app.submit(start(), "t")
    work(app)
    first = app.answer("t", "yes", key="a1")
    assert not first.reused
    assert app.answer("t", "yes", key="a1").reused
    work(app)
    again = app.answer("t", "yes", key="a1")
    assert (again.run_id, again.status, again.reused) == (first.run_id, "interrupted", True)
    work(app)
    assert log_of(app) == ["deposit? yes"]
    app.answer("t", "no", key="a2")
    work(app)
    assert log_of(app) == ["deposit? yes", "rest? no"]
    for key in ("a1", "a2"):
        assert asyncio.run(app.aanswer("t", "yes", key=key)).status == "completed"


@pytest.mark.requirement("F1", api="App.resume")
def test_a_resume_with_the_same_key_is_the_same_answer(store: Store) -> None:
    """The thread is returned as it is; a later run of the thread knows the key, too."""
    app = asking(store)
    app.invoke(start(), "t")
    assert app.resume("t", "yes", key="a1").status == "interrupted"
    again = app.resume("t", "yes", key="a1")
    assert [one.question for one in again.interrupts] == ["rest?"]
    assert asyncio.run(app.aresume("t", "no", key="a2")).status == "completed"
    assert app.resume("t", "no", key="a2").state["log"] == ["deposit? yes", "rest? no"]
    app.invoke({"n": 1, "log": []}, "t")
    assert app.resume("t", "yes", key="a1").status == "interrupted"
    assert log_of(app) == ["deposit? yes", "rest? no"]


@pytest.mark.requirement("F1", api="App.resume")
def test_an_answer_whose_run_failed_is_known_to_its_retry(store: Store) -> None:
    """What the answer has begun continues."""
    fails = [True, False]

    def fail(state: Trip) -> dict[str, Any]:
        if fails.pop(0):
            raise ValueError("once")
        return {"log": ["done"]}

    app = line(store, ("ask", asks("well?")), ("fail", fail), ("again", asks("sure?")))
    app.invoke(start(), "t")
    with pytest.raises(Exception, match="once"):
        app.resume("t", "yes", key="a1")
    assert app.resume("t", "yes", key="a1").status == "interrupted"
    assert app.answer("t", "yes", key="a1").reused
    assert log_of(app) == ["well? yes", "done"]


@pytest.mark.requirement("F1", api="App.resume")
def test_an_answer_sent_again_does_not_continue_a_cancelled_run(store: Store) -> None:
    """Was broken: the run that somebody had cancelled went on."""
    app = asking(store)
    app.submit(start(), "t")
    work(app)
    app.answer("t", "yes", key="a1")
    assert app.cancel("t")
    with pytest.raises(ResumeRefused, match=r"was cancelled: resume\('t'\) without the key"):
        app.resume("t", "yes", key="a1")
    assert app.answer("t", "yes", key="a1").status == "cancelled"
    work(app)
    assert log_of(app) == []
    assert app.resume("t").status == "interrupted"
    assert log_of(app) == ["deposit? yes"]


def test_a_key_is_known_for_as_long_as_the_pages_say(store: Store) -> None:
    """The last 100. If this fails, correct human-approval.md and run-a-fleet.md."""
    app = line(store, ("ask", asks("well?")))
    for number in range(101):
        app.invoke({"n": number, "log": []}, "t")
        app.resume("t", "yes", key=f"a{number}")
    app.invoke({"n": 101, "log": []}, "t")
    assert app.resume("t", "yes", key="a1").status == "interrupted"
    assert app.resume("t", "yes", key="a0").status == "completed"


@pytest.mark.requirement("F1", api="App.answer")
def test_a_fork_does_not_know_the_answers_of_its_origin(store: Store) -> None:
    """Was broken: an answer was acknowledged and dropped, if the origin had one with its key."""
    app = asking(store)
    app.submit(start(), "origin")
    work(app)
    asked = app.state("origin").seq
    app.answer("origin", "yes", key="a1")
    work(app)
    app.fork("origin", asked, as_thread="t")
    assert not app.answer("t", "no", key="a1").reused
    assert app.answer("t", "no", key="a1").reused
    work(app)
    assert log_of(app) == ["deposit? no"]


@pytest.mark.requirement("F1", api="App.answer")
def test_the_next_run_knows_the_answers_of_one_that_waited_through_many_retries(
    store: Store,
) -> None:
    """Was broken: the newest 20 runs were looked at, and all of them were retries of another."""
    left = [25]

    def fails(state: Trip) -> dict[str, Any]:
        left[0] -= 1
        if left[0] >= 0:
            raise ValueError
        return {}

    app = line(store, ("fails", fails), ("ask", asks("well?")))
    app.submit(start(), "t", key="1")
    for key in ("2", "3"):
        app.submit({"n": 0}, "t", key=key, if_busy="queue")
    work(app)
    while left[0] >= 0:
        app.retry("t")
        work(app)
    for key in ("a1", "a2"):
        app.answer("t", "yes", key=key)
        work(app)
    assert app.answer("t", "yes", key="a2").reused
    assert log_of(app) == ["well? yes"] * 2


@pytest.mark.requirement("F1", api="App.answer")
def test_what_was_answered_and_what_is_not_asked_are_different_errors(store: Store) -> None:
    """Was broken: both were ``RunInProgress``."""
    app = line(store, ("a", note("a")), ("ask", asks("well?")), ("b", asks("sure?")))
    app.submit(start(), "t")
    with pytest.raises(NotAsked):
        app.answer("t", "yes")
    with pytest.raises(NotAsked):
        app.answer("t", "yes", question="2.2:ask")
    work(app)
    asked = app.wait("t").interrupts[0].id
    with pytest.raises(NotAsked):
        app.answer("t", "yes", question="9.9:b")
    app.answer("t", "yes", question=asked)
    for question in (None, asked):
        with pytest.raises(AlreadyAnswered):
            app.answer("t", "no", question=question)
    work(app)
    with pytest.raises(AlreadyAnswered):
        app.answer("t", "no", question=asked)
    app.answer("t", "yes")
    work(app)
    assert log_of(app) == ["a", "well? yes", "sure? yes"]


@pytest.mark.requirement("F1", api="App.answer")
def test_a_key_or_a_question_needs_an_answer(store: Store) -> None:
    app = asking(store)
    with pytest.raises(InvalidRequest):
        app.resume("t", key="a")
    with pytest.raises(InvalidRequest):
        app.resume("t", question="1.1:a")
    with pytest.raises(InvalidRequest):
        app.answer("t", "yes", key="")
    with pytest.raises(InvalidRequest):
        app.answer("t", answers={"1.1:a": 1}, question="1.1:a")
