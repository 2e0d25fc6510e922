"""What a step waits for: questions, times and messages in one channel, and when tasks resume."""

from __future__ import annotations

from typing import Any

import pytest

from milecastle.engine.reserved_channels import ANSWERS, TIMED_OUT, WAITS
from milecastle.engine.status import waits_at
from milecastle.engine.waiting import open_interrupts, still_waits, unmet_waits, wake_time

NOW = 100


def asks(task: str, until: int | None = None, takes: bool = True) -> list[Any]:
    return [task, ["node", "?", None, None, takes], until, []]


def sleeps(task: str, until: int) -> list[Any]:
    return [task, None, until, []]


def receives(task: str, number: int = 3, until: int | None = None) -> list[Any]:
    return [task, None, until, [["mail", number]]]


def test_waits_of_tasks_that_ran_are_replaced_except_sleeps_of_nodes() -> None:
    """Fails if a subgraph that ran keeps its old time, or a node forgets that it slept."""
    reserved = {
        WAITS: {
            "a/:": sleeps("a", 5),
            "b/:": sleeps("b", 6),
            "c/~0": sleeps("c", 7),
            "e/0": asks("e"),
        }
    }
    found = still_waits(reserved, {"a", "c", "e"}, {"d/:": sleeps("d", 8)}, ["a", "b", "c", "d"])
    assert found == {"b/:": sleeps("b", 6), "c/~0": sleeps("c", 7), "d/:": sleeps("d", 8)}


def test_wait_ends_with_an_answer_a_time_a_message_or_a_committed_timeout() -> None:
    """Fails if one of them does not count, or a deadline ends a wait by the clock."""
    reserved = {
        WAITS: {
            "a/0": asks("a"),
            "a/1": asks("a"),
            "b/0": asks("b", takes=False),
            "c/~0": sleeps("c", NOW),
            "c/~1": sleeps("c", NOW + 1),
            "d/0": asks("d", until=NOW),
            "e/0": asks("e", until=NOW),
            "f/<": receives("f"),
            "g/<": receives("g", until=NOW),
        },
        ANSWERS: {"a/0": 1},
        TIMED_OUT: {"e/0": NOW},
    }
    assert unmet_waits(reserved, NOW, {"f/<"}) == {
        "a": [False, True],
        "b": [False],
        "c": [False, True],
        "d": [True],
        "e": [False],
        "f": [False],
        "g": [True],
    }


def test_waits_are_in_the_order_of_their_tasks() -> None:
    """Fails if a task that ran keeps what it does not ask any more, or the order is another."""
    reserved = {
        WAITS: {
            "work#1/0": asks("work#1"),
            "first/0": asks("first"),
            "work#0/0": asks("work#0"),
            "work#2/0": asks("work#2"),
        },
        ANSWERS: {"work#2/0": 1},
    }
    new = {"work#0/1": asks("work#0")}
    found = still_waits(reserved, {"work#0"}, new, ["first", "work#0", "work#1", "work#2"])
    assert [*found] == ["first/0", "work#0/1", "work#1/0"]


@pytest.mark.parametrize(
    ("waits", "over", "expected"),
    [
        pytest.param({"l/~0": sleeps("late", 50)}, set[str](), 50, id="passed while others ran"),
        pytest.param({"l/~0": sleeps("late", 50)}, {"late"}, None, id="the task is over"),
        pytest.param(
            {"n/~0": sleeps("n", 120), "m/~0": sleeps("m", 130)}, set[str](), 120, id="the first"
        ),
        pytest.param(
            {"a/~0": sleeps("a", 50), "a/~1": sleeps("a", 120)}, set[str](), 120, id="it slept"
        ),
        pytest.param({"a/~0": sleeps("a", 50), "a/0": asks("a")}, set[str](), None, id="it asks"),
        pytest.param(
            {"a/~0": sleeps("a", 50), "a/0": asks("a", until=120)}, set[str](), 120, id="deadline"
        ),
        pytest.param(
            {"a/3.1:b/0": asks("a", until=120), "a/:": sleeps("a", 50)},
            set[str](),
            50,
            id="subgraph",
        ),
        pytest.param({"a/<": receives("a")}, set[str](), None, id="a message alone"),
        pytest.param({"a/<": receives("a", until=120)}, set[str](), 120, id="or a deadline"),
    ],
)
def test_run_wakes_at_the_first_time_at_which_a_task_resumes(
    waits: dict[str, list[Any]], over: set[str], expected: int | None
) -> None:
    """Fails if a run sleeps over a time, or wakes for one that resumes nothing."""
    assert wake_time({WAITS: waits}, over) == expected


def test_answer_ends_a_wait_beside_a_sleep() -> None:
    """Fails if an answered question still keeps its task from waking."""
    waits = {"a/0": asks("a"), "a/~0": sleeps("a", 50)}
    assert wake_time({WAITS: waits}, set()) is None
    assert wake_time({WAITS: waits, ANSWERS: {"a/0": 1}}, set()) == 50


def test_topics_of_open_waits_are_listed_once() -> None:
    """Fails if a wait that timed out still makes the thread due, or a topic is missing."""
    waits = {
        "a/<": receives("a", 3),
        "b/<": receives("b", 3),
        "c/<": receives("c", 5),
        "d/<": receives("d", 7, until=NOW),
    }
    found = waits_at({WAITS: waits, TIMED_OUT: {"d/<": NOW}})
    assert found.topics == (("mail", 3), ("mail", 5))
    assert (found.pauses, found.questions, found.times) == (0, 0, ())


def test_question_that_timed_out_is_not_open() -> None:
    """Fails if the caller that comes later is asked."""
    reserved = {WAITS: {"a/0": asks("a", until=NOW), "b/0": asks("b")}, TIMED_OUT: {"a/0": NOW}}
    assert [found.id for found in open_interrupts(reserved, "1.1")] == ["1.1:b/0"]
