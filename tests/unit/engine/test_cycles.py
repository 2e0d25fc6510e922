"""The guard: step limit and cycles."""

from __future__ import annotations

import pytest

from milecastle import CycleDetected, ExecutionConfig, MaxStepsExceeded
from milecastle.engine.cycles import Guard


def enter(guard: Guard, *names: str) -> None:
    for name in names:
        guard.enter_step((name,))


def test_steps_are_counted_before_they_run() -> None:
    guard = Guard(ExecutionConfig(max_steps=2))
    enter(guard, "a", "b")
    with pytest.raises(MaxStepsExceeded) as caught:
        enter(guard, "c")
    assert (caught.value.max, caught.value.reached, guard.path) == (2, 3, ["a", "b"])


def test_a_step_of_several_nodes_counts_once() -> None:
    guard = Guard(ExecutionConfig(max_steps=1))
    guard.enter_step(("a", "b", "c"))
    assert (guard.steps, guard.path) == (1, ["a", "b", "c"])


def test_a_node_that_comes_back_unchanged_closes_a_cycle() -> None:
    guard = Guard(ExecutionConfig())
    enter(guard, "a", "b")
    with pytest.raises(CycleDetected) as caught:
        enter(guard, "a")
    assert (caught.value.node, caught.value.recent) == ("a", ("a", "b", "a"))
    assert not caught.value.strict


def test_a_change_in_between_is_progress() -> None:
    guard = Guard(ExecutionConfig())
    enter(guard, "a")
    guard.version += 1
    enter(guard, "a")
    assert guard.visit_count("a") == 2
    with pytest.raises(CycleDetected):
        enter(guard, "a")


def test_strict_detection_does_not_look_at_changes() -> None:
    guard = Guard(ExecutionConfig(cycle_detection="strict"))
    enter(guard, "a")
    guard.version += 1
    with pytest.raises(CycleDetected) as caught:
        enter(guard, "a")
    assert caught.value.strict


def test_detection_can_be_off() -> None:
    guard = Guard(ExecutionConfig(cycle_detection=False))
    enter(guard, *"aaaaa")
    assert guard.visit_count("a") == 5


@pytest.mark.parametrize(("window", "caught"), [(3, False), (4, True)])
def test_a_visit_outside_the_window_is_forgotten(window: int, caught: bool) -> None:
    guard = Guard(ExecutionConfig(cycle_window=window))
    enter(guard, *"abcd")
    if caught:
        with pytest.raises(CycleDetected):
            enter(guard, "a")
    else:
        enter(guard, "a")


def test_a_node_that_was_never_entered_has_no_visits() -> None:
    assert Guard(ExecutionConfig()).visit_count("a") == 0
