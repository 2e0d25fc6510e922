"""Pausing: what a step leaves behind when some of its tasks wait for a person or for a time."""

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
    """A question as stored in a checkpoint."""
    schema = None if found.answer is None else dict(found.answer)
    kept = [task, found.node, found.question, found.show, schema, found.asks]
    return kept if found.refused is None else [*kept, found.refused]


def note_pause(task: str, signal: Paused, asked: Kept, sleeps: Kept) -> None:
    """Add what one task waits for."""
    if isinstance(signal, Asked):
        asked[signal.interrupt.id] = as_kept(task, signal.interrupt)
    elif isinstance(signal, Parked):
        sleeps[signal.label] = [task, signal.until]


def still_asked(reserved: Reserved, ran: set[str], asked: Kept, order: Sequence[str]) -> Kept:
    """Every question that is open now, of tasks that did not run and of those that did.

    They are in the order of the tasks, not of asking.
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
    """The answers except those refused on delivery, which are asked again."""
    given: dict[str, Any] = reserved.get(ANSWERS, {})
    return {label: answer for label, answer in given.items() if label not in asked}


def still_asleep(reserved: Reserved, ran: set[str], sleeps: Kept) -> Kept:
    """Every time that is waited for.

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
    """For each task that asked or sleeps: whether each thing that it waits for is still missing."""
    waits: WaitingTasks = {}
    answers = reserved.get(ANSWERS, {})
    for label, question in reserved.get(ASKED, {}).items():
        waits.setdefault(question[0], []).append(question[_ASKS] and label not in answers)
    for owner, until in reserved.get(SLEEPS, {}).values():
        waits.setdefault(owner, []).append(until > now)
    return waits


def is_held(task: Task, waits: WaitingTasks) -> bool:
    """Whether a task can do nothing now: it waits for an answer, or for a time.

    A subgraph that waits for several things may continue with any of them.
    """
    missing = waits.get(task.id)
    if not missing:
        return False
    return all(missing) if task.node.subgraph is not None else any(missing)


def has_work(graph: CompiledGraph, position: Position, now: int) -> bool:
    """Whether a run would do anything at a position now.

    It would also end a step whose tasks all have their results, and close what was asked by a
    task that has its result: the run that would have done so was interrupted.
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
    """The first time that a task waits for, also if it has passed while the step ran.

    ``ran`` are the tasks that ran in this step, and ``sleeps`` what they wait for now. Of a task
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
    """The questions of a checkpoint that have no answer yet; ids start with its ``place``."""
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
