"""Pausing: channels a step leaves when tasks wait for a person or a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from milecastle.engine.pauses import Asked, Parked, Paused
from milecastle.engine.position import Position
from milecastle.engine.reserved_channels import ANSWERS, ASKED, SENDS, SLEEPS, Reserved
from milecastle.engine.tasks import Task, outcome_row, ready_nodes, tasks_of
from milecastle.graph.structure import CompiledGraph
from milecastle.model.interrupt import Interrupt

Kept = dict[str, list[Any]]
WaitingTasks = dict[str, list[bool]]

_ASKS = 5


def as_kept(task: str, found: Interrupt) -> list[Any]:
    schema = None if found.answer is None else dict(found.answer)
    kept = [task, found.node, found.question, found.show, schema, found.asks]
    return kept if found.refused is None else [*kept, found.refused]


def note_pause(task: str, signal: Paused, asked: Kept, sleeps: Kept) -> None:
    if isinstance(signal, Asked):
        asked[signal.interrupt.id] = as_kept(task, signal.interrupt)
    elif isinstance(signal, Parked):
        sleeps[signal.label] = [task, signal.until]


def still_asked(reserved: Reserved, ran: set[str], asked: Kept, order: Sequence[str]) -> Kept:
    """Every open question, for tasks that ran and others.

    They are in task order, not in asking order.
    """
    answers = reserved.get(ANSWERS, {})
    before: Kept = reserved.get(ASKED, {})
    kept = {
        label: question
        for label, question in before.items()
        if label not in answers and question[0] not in ran
    }
    rank = {task: number for number, task in enumerate(order)}
    return dict(sorted({**kept, **asked}.items(), key=lambda item: rank[item[1][0]]))


def still_answered(reserved: Reserved, asked: Kept) -> dict[str, Any]:
    given: dict[str, Any] = reserved.get(ANSWERS, {})
    return {label: answer for label, answer in given.items() if label not in asked}


def still_asleep(reserved: Reserved, ran: set[str], sleeps: Kept) -> Kept:
    """Every time waited for.

    A node receives those that have passed; a subgraph does not.
    """
    before: Kept = reserved.get(SLEEPS, {})
    kept = {
        label: sleep
        for label, sleep in before.items()
        if sleep[0] not in ran or not label.endswith(":")
    }
    return {**kept, **sleeps}


def waits_of(reserved: Reserved, now: int) -> WaitingTasks:
    """For each asking or sleeping task: True for each wait still unmet."""
    waits: WaitingTasks = {}
    answers = reserved.get(ANSWERS, {})
    for label, question in reserved.get(ASKED, {}).items():
        waits.setdefault(question[0], []).append(question[_ASKS] and label not in answers)
    for owner, until in reserved.get(SLEEPS, {}).values():
        waits.setdefault(owner, []).append(until > now)
    return waits


def is_held(task: Task, waits: WaitingTasks) -> bool:
    """True if a task can do nothing now: it waits for an answer, or for a time.

    A subgraph waiting for several things may continue with any of them.
    """
    missing = waits.get(task.id)
    if not missing:
        return False
    return all(missing) if task.node.subgraph is not None else any(missing)


def has_work(graph: CompiledGraph, position: Position, now: int) -> bool:
    """True if a run would do anything at a position now.

    It would also end a step whose tasks all have their results, and close questions of a task that
    has its result: the run that would have done so was interrupted.
    """
    reserved = position.reserved
    tasks = tasks_of(graph, ready_nodes(graph, position.next), reserved.get(SENDS))
    ended = {t.id for t in tasks if outcome_row(position.step + 1, t.id) in position.results}
    if len(ended) == len(tasks) or any(
        kept[0] in ended for kept in reserved.get(ASKED, {}).values()
    ):
        return True
    waits = waits_of(reserved, now)
    return any(task.id not in ended and not is_held(task, waits) for task in tasks)


def wake_time(reserved: Reserved, ran: set[str], sleeps: Kept, now: int) -> int | None:
    """The first time a task waits for, also if it has passed while the step ran.

    ``ran`` are the tasks that ran in this step, and ``sleeps`` their waits now. Of a task
    that waits for an answer, times that have passed mean nothing; a subgraph waits for either.
    """
    answers = reserved.get(ANSWERS, {})
    asked = reserved.get(ASKED, {}).items()
    served = {kept[0] for label, kept in asked if kept[_ASKS] and label not in answers}
    latest: dict[str, int] = {}
    for label, (owner, until) in reserved.get(SLEEPS, {}).items():
        latest[owner] = max(until, latest.get(owner, until))
        if label.endswith(":"):
            served.discard(owner)
    served = (served | ran) - {owner for owner, _ in sleeps.values()}
    times = [until for owner, until in latest.items() if until > now or owner not in served]
    return min(times, default=None)


def open_interrupts(reserved: Mapping[str, Any], place: str) -> tuple[Interrupt, ...]:
    answers = reserved.get(ANSWERS, {})
    return tuple(_interrupts(reserved.get(ASKED, {}), answers, place))


def _interrupts(
    asked: Mapping[str, list[Any]], answers: Mapping[str, Any], place: str
) -> Iterator[Interrupt]:
    for label, (_, node, question, show, schema, asks, *refused) in asked.items():
        if label not in answers:
            yield Interrupt(
                id=f"{place}:{label}",
                node=node,
                question=question,
                show=show,
                answer=schema,
                asks=asks,
                refused=refused[0] if refused else None,
            )
