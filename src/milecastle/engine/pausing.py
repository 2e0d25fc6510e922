"""Pausing: what a step leaves behind when some of its tasks wait for a person or for a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from milecastle.engine.asking import Asked, Parked, Paused
from milecastle.engine.hidden import ANSWERS, ASKED, SENDS, SLEEPS, Hidden
from milecastle.engine.position import Position
from milecastle.engine.tasks import Task, outcome_row, tasks_of
from milecastle.graph.compiled import CompiledGraph
from milecastle.model.interrupt import Interrupt

__all__ = [
    "as_kept",
    "has_work",
    "is_held",
    "note_pause",
    "still_answered",
    "still_asked",
    "still_asleep",
    "wake_time",
]

Kept = dict[str, list[Any]]

_ASKS = 5


def as_kept(task: str, found: Interrupt) -> list[Any]:
    """A question as a checkpoint keeps it."""
    schema = None if found.answer is None else dict(found.answer)
    kept = [task, found.node, found.question, found.show, schema, found.asks]
    return kept if found.refused is None else [*kept, found.refused]


def note_pause(task: str, signal: Paused, asked: Kept, sleeps: Kept) -> None:
    """Add what one task waits for."""
    if isinstance(signal, Asked):
        asked[signal.interrupt.id] = as_kept(task, signal.interrupt)
    elif isinstance(signal, Parked):
        sleeps[signal.label] = [task, signal.until]


def still_asked(hidden: Hidden, ran: set[str], asked: Kept, order: Sequence[str]) -> Kept:
    """Every question that is open now, of tasks that did not run and of those that did.

    They stand in the order of the tasks, whoever was first to ask.
    """
    answers = hidden.get(ANSWERS, {})
    before: Kept = hidden.get(ASKED, {})
    kept = {
        label: question
        for label, question in before.items()
        if label not in answers and question[0] not in ran
    }
    rank = {task: number for number, task in enumerate(order)}
    return dict(sorted({**kept, **asked}.items(), key=lambda item: rank[item[1][0]]))


def still_answered(hidden: Hidden, asked: Kept) -> dict[str, Any]:
    """The answers but for those that were refused on delivery: these are asked again."""
    given: dict[str, Any] = hidden.get(ANSWERS, {})
    return {label: answer for label, answer in given.items() if label not in asked}


def still_asleep(hidden: Hidden, ran: set[str], sleeps: Kept) -> Kept:
    """Every time that is waited for. A node is told those that have come by; a subgraph is not."""
    before: Kept = hidden.get(SLEEPS, {})
    kept = {
        label: sleep
        for label, sleep in before.items()
        if sleep[0] not in ran or not label.endswith(":")
    }
    return {**kept, **sleeps}


def is_held(task: Task, hidden: Hidden, now: int) -> bool:
    """Whether a task can do nothing now: it waits for an answer, or for a time.

    A subgraph that waits for several things may go on with any of them.
    """
    answers = hidden.get(ANSWERS, {})
    waits = [
        question[_ASKS] and label not in answers
        for label, question in hidden.get(ASKED, {}).items()
        if question[0] == task.id
    ]
    waits += [until > now for owner, until in hidden.get(SLEEPS, {}).values() if owner == task.id]
    return bool(waits) and (all(waits) if task.node.subgraph is not None else any(waits))


def has_work(graph: CompiledGraph, position: Position, now: int) -> bool:
    """Whether a run would do anything at a position now.

    It would also end a step whose tasks all have their results, and close what was asked by a
    task that has its result: the run that saw to it was cut short.
    """
    if position.route:
        return True
    nodes, hidden = graph.nodes, position.hidden
    names = [name for name in position.next if not nodes[name].policy.defer] or position.next
    tasks = tasks_of(graph, names, hidden.get(SENDS))
    ended = {t.id for t in tasks if outcome_row(position.step + 1, t.id) in position.results}
    if len(ended) == len(tasks) or any(kept[0] in ended for kept in hidden.get(ASKED, {}).values()):
        return True
    return any(task.id not in ended and not is_held(task, hidden, now) for task in tasks)


def wake_time(hidden: Hidden, now: int) -> int | None:
    """The first time, after now, that a task waits for."""
    times = [until for _, until in hidden.get(SLEEPS, {}).values() if until > now]
    return min(times, default=None)
