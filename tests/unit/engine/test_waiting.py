"""What a step waits for: sleeps that are over or not, and questions beside them."""

from __future__ import annotations

import pytest

from milecastle.engine.reserved_channels import ANSWERS, ASKED, SLEEPS
from milecastle.engine.waiting import still_asked, still_asleep, waits_of, wake_time

NOW = 100


def question(task: str, asks: bool = True) -> list[object]:
    return [task, "node", "?", None, None, asks]


def test_sleep_of_a_subgraph_that_ran_is_replaced_by_what_it_waits_for_now() -> None:
    """Fails if a subgraph that ran keeps the time that it waited for, or another loses its own."""
    reserved = {SLEEPS: {"a:": ["a", 5], "b:": ["b", 6], "c/nap": ["c", 7]}}
    assert still_asleep(reserved, {"a", "c"}, {"d:": ["d", 8]}) == {
        "b:": ["b", 6],
        "c/nap": ["c", 7],
        "d:": ["d", 8],
    }


def test_answers_and_past_times_are_not_waited_for() -> None:
    """Fails if an answer, a pause that takes none, or a time that has come counts as missing."""
    reserved = {
        ASKED: {"a/x": question("a"), "a/y": question("a"), "b": question("b", asks=False)},
        ANSWERS: {"a/x": 1},
        SLEEPS: {"c/nap": ["c", NOW], "c/rest": ["c", NOW + 1]},
    }
    assert waits_of(reserved, NOW) == {"a": [False, True], "b": [False], "c": [False, True]}


def test_open_questions_are_in_the_order_of_their_tasks() -> None:
    """Fails if a task that ran keeps what it does not ask any more, or the order is another."""
    reserved = {
        ASKED: {
            "work#1/x": question("work#1"),
            "first/y": question("first"),
            "work#0/answered": question("work#0"),
        }
    }
    asked = {"work#0/z": question("work#0")}
    order = ["first", "work#0", "work#1"]
    found = still_asked(reserved, {"work#0"}, asked, order)
    assert [*found] == ["first/y", "work#0/z", "work#1/x"]


@pytest.mark.parametrize(
    ("ran", "sleeps", "expected"),
    [
        pytest.param(set[str](), {}, 50, id="a time that has passed while others ran"),
        pytest.param({"late"}, {}, 120, id="a task that ran has had its time"),
        pytest.param({"late"}, {"l": ["late", 50]}, 50, id="unless it waits for it again"),
    ],
)
def test_run_wakes_at_the_first_time_that_is_still_waited_for(
    ran: set[str], sleeps: dict[str, list[object]], expected: int
) -> None:
    """Fails if a run sleeps over a time, or wakes for one that was served."""
    reserved = {SLEEPS: {"l": ["late", 50], "n": ["next", 120], "m": ["more", 130]}}
    assert wake_time(reserved, ran, sleeps, NOW) == expected


def test_past_time_of_a_task_that_waits_for_an_answer_means_nothing() -> None:
    """Fails if a task with an open question wakes its run; a subgraph waits for either."""
    asked = {ASKED: {"a/x": question("a")}}
    assert wake_time({**asked, SLEEPS: {"a/nap": ["a", 50]}}, set(), {}, NOW) is None
    assert wake_time({**asked, SLEEPS: {"a:": ["a", 50]}}, set(), {}, NOW) == 50
    answered = {**asked, ANSWERS: {"a/x": 1}, SLEEPS: {"a/nap": ["a", 50]}}
    assert wake_time(answered, set(), {}, NOW) == 50
