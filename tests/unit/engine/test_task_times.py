"""Times of a step's tasks: measured, and stored in at most 1 kB."""

from __future__ import annotations

from typing import Any, TypedDict

import msgspec.msgpack

from milecastle import END, START, StateGraph
from milecastle.engine.task_times import LISTED, TaskTimes
from milecastle.engine.tasks import Task
from milecastle.model.step_times import DONE, PAUSED, StepTimes
from milecastle.testing import ManualClock


class State(TypedDict, total=False):
    n: int


def _does_nothing(state: State) -> dict[str, Any]:
    return {}


def _nodes(*names: str) -> list[Any]:
    graph = StateGraph(State)
    for name in names:
        graph.add_node(name, _does_nothing)
        graph.add_edges(START, name, END)
    nodes = graph.compile().graph.nodes
    return [nodes[name] for name in names]


def _read(times: TaskTimes, names: list[str], tasks: int) -> StepTimes:
    packed = times.take(7, names, tasks)
    assert packed is not None
    assert len(packed) <= 1024
    return msgspec.msgpack.decode(packed, type=StepTimes)


def _task(node: Any, item: int) -> Task:
    return Task(f"{node.name}#{item}", node, {}, item)


def test_attempts_are_listed_with_their_offsets_and_ends() -> None:
    clock = ManualClock()
    (work,) = _nodes("work")
    times, first, second = TaskTimes(clock), _task(work, 0), _task(work, 1)
    began = times.now
    clock.advance(0.002)
    times.tick()
    times.stop(first, began, 1, "ValueError")
    times.stop(second, began, 1, "")
    clock.advance(0.001)
    times.tick()
    again = times.now
    clock.advance(0.003)
    times.tick()
    times.stop(first, again, 2, None)
    read = _read(times, ["work"], 2)
    assert (read.step, read.began, read.unit) == (7, clock.now() - 6000, 1)
    assert [(one.item, one.start, one.took, one.attempt, one.end) for one in read.tasks] == [
        (0, 0, 2000, 1, 0),
        (1, 0, 2000, 1, PAUSED),
        (0, 3000, 3000, 2, DONE),
    ]
    assert read.errors == ["ValueError"]


def test_a_single_attempt_of_a_single_task_is_not_stored() -> None:
    """Fails if each step stores times: the entries before and after say as much."""
    (work,) = _nodes("work")
    times = TaskTimes(ManualClock())
    assert times.take(1, ["work"], 1) is None
    times.stop(Task("work", work), times.now, 1, None)
    assert times.take(1, ["work"], 1) is None


def test_tasks_of_several_nodes_name_theirs() -> None:
    nodes = _nodes("one", "two")
    times = TaskTimes(ManualClock())
    for node in nodes:
        times.stop(Task(node.name, node), times.now, 1, None)
    read = _read(times, ["two", "one"], 2)
    assert [(one.node, one.item) for one in read.tasks] == [(1, -1), (0, -1)]


def test_a_wide_step_is_counted_by_parts_of_its_time() -> None:
    """Two at once, then one: fails if the parts are counted by the items that touch them."""
    clock = ManualClock()
    (work,) = _nodes("work")
    times = TaskTimes(clock)
    for number in range(600):
        pair = [_task(work, 2 * number + place) for place in range(2)]
        times.tick()
        began = times.now
        clock.advance(0.001 if number != 599 else 0.101)
        times.tick()
        for task in pair if number < 300 else pair[:1]:
            times.stop(task, began, 1, "Late" if number == 5 else None)
    many = _read(times, ["work"], 900).many
    assert many is not None
    assert [(one.ran, one.failed) for one in many.nodes] == [(900, 2)]
    assert len(many.running) == 60
    assert (many.running[0], many.running[20], many.running[40]) == (2, 2, 1)
    assert sum(many.durations) == 900
    assert many.durations[-1] == 1  # longer than all widths


def test_the_slowest_and_the_failed_of_many_are_listed() -> None:
    clock = ManualClock()
    (work,) = _nodes("work")
    times = TaskTimes(clock)
    for number in range(1000):
        times.tick()
        began = times.now
        clock.advance(0.5 if number == 123 else 0.001)
        times.tick()
        times.stop(_task(work, number), began, 1, "Late" if number % 100 == 7 else None)
    read = _read(times, ["work"], 1000)
    assert [one.item for one in read.tasks if one.end >= 0] == [*range(7, 1000, 100)]
    assert max(read.tasks, key=lambda one: one.took).item == 123


def test_times_take_at_most_one_kilobyte() -> None:
    """The largest numbers, the longest names, each node with its own error: 1,024 bytes at most.

    Fails without ``unit``.
    """
    names = [f"{number}{'n' * 200}" for number in range(20)]
    nodes = _nodes(*names)
    for count in (LISTED, 10_000):
        clock = ManualClock()
        times = TaskTimes(clock)
        began: list[int] = []
        for _ in range(count):
            times.tick()
            began.append(times.now)
            clock.advance(1.0)
        for number in range(count):
            clock.advance(3600.0)
            times.tick()
            error = f"{number % 7}{'E' * 300}" if number % 3 else None
            times.stop(_task(nodes[number % 20], number), began[number], 40_000, error)
        _read(times, names, count)
