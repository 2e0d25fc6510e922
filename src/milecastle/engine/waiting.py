"""Waiting: a step's waits, in one channel, and when its tasks resume.

Rules:

- A wait ends in any of its ways: its question is answered, its time comes, or a message is there.
- A node resumes when each of its waits has ended, a subgraph or a flow when one has.
- The time of a wait for more than a time is a deadline. It ends the wait by a commit, in
  ``TIMED_OUT``, and not by the clock: an answer may have been committed first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from milecastle.engine.pauses import Paused
from milecastle.engine.position import Position
from milecastle.engine.reserved_channels import ANSWERS, SENDS, TIMED_OUT, WAITS, Reserved, Wait
from milecastle.engine.tasks import Task, outcome_row, ready_nodes, tasks_of
from milecastle.graph.structure import CompiledGraph
from milecastle.model.checkpoint import to_datetime
from milecastle.model.interrupt import Interrupt

Kept = dict[str, list[Any]]
WaitingTasks = dict[str, list[bool]]

_ASKS = 4


def kept_wait(task: str, paused: Paused, received: Sequence[int] = ()) -> list[Any]:
    found, question = paused.question, None
    if found is not None:
        schema = None if found.answer is None else dict(found.answer)
        question = [found.node, found.question, found.show, schema, found.asks]
        question += [] if found.refused is None else [found.refused]
    kept = [task, question, paused.until, [list(topic) for topic in paused.topics]]
    return [*kept, received] if received else kept


def each_wait(reserved: Reserved) -> Iterator[tuple[str, Wait]]:
    for label, kept in reserved.get(WAITS, {}).items():
        yield label, Wait(*kept)


def received_by(reserved: Reserved) -> dict[str, list[int]]:
    if WAITS not in reserved:
        return {}
    return {wait.task: wait.received for _, wait in each_wait(reserved) if wait.received}


def takes_answer(wait: Wait) -> bool:
    return wait.question is not None and wait.question[_ASKS] is True


def is_decided(reserved: Reserved, label: str) -> bool:
    return label in reserved.get(ANSWERS, {}) or label in reserved.get(TIMED_OUT, {})


def still_waits(reserved: Reserved, ran: set[str], new: Kept, order: Sequence[str]) -> Kept:
    """The step's waits once the tasks that ``ran`` have the ``new`` ones, in task order.

    A node that ran keeps its sleeps: it runs again from its beginning, and they stay over.
    """
    kept: Kept = {
        label: [*wait] if wait.received and wait.task not in ran else [*wait[:4]]
        for label, wait in each_wait(reserved)
        if not is_decided(reserved, label)
        and (wait.task not in ran or label.partition("/")[2].startswith("~"))
    }
    rank = {task: number for number, task in enumerate(order)}
    return dict(sorted({**kept, **new}.items(), key=lambda item: rank.get(item[1][0], -1)))


def unmet_waits(reserved: Reserved, now: int, arrived: Collection[str] = ()) -> WaitingTasks:
    """For each waiting task: True for each unfinished wait.

    ``arrived`` are labels of waits with a message.
    """
    waits: WaitingTasks = {}
    for label, wait in each_wait(reserved):
        is_over = label in arrived or is_decided(reserved, label)
        if wait.question is not None:
            is_over = is_over or not takes_answer(wait)
        if wait.is_sleep and wait.until is not None:
            is_over = wait.until <= now
        waits.setdefault(wait.task, []).append(not is_over)
    return waits


def is_held(task: Task, waits: WaitingTasks) -> bool:
    """True if a task can do nothing now. A subgraph or flow may continue with any of its waits."""
    unmet = waits.get(task.id)
    if not unmet:
        return False
    node = task.node
    return all(unmet) if node.subgraph is not None or node.is_flow else any(unmet)


def has_work(
    graph: CompiledGraph, position: Position, now: int, arrived: Collection[str] = ()
) -> bool:
    """True if a run would do anything at a position now.

    It would also end a step whose tasks all have their results, and close the waits of a task that
    has its result: the run that would have done so was interrupted.
    """
    reserved = position.reserved
    tasks = tasks_of(graph, ready_nodes(graph, position.next), reserved.get(SENDS))
    ended = {t.id for t in tasks if outcome_row(position.step + 1, t.id) in position.results}
    if len(ended) == len(tasks) or any(
        wait.task in ended and not wait.is_sleep for _, wait in each_wait(reserved)
    ):
        return True
    waits = unmet_waits(reserved, now, arrived)
    return any(task.id not in ended and not is_held(task, waits) for task in tasks)


def passed_deadlines(reserved: Reserved, now: int, ended: Collection[str]) -> dict[str, int]:
    """Passed deadlines, by label, except for waits that have ``ended`` otherwise."""
    return {
        label: wait.until
        for label, wait in each_wait(reserved)
        if wait.until is not None
        and wait.until <= now
        and not wait.is_sleep
        and label not in ended
        and not is_decided(reserved, label)
    }


def wake_time(reserved: Reserved, over: set[str], *, is_flow: bool = False) -> int | None:
    """The first time at which a task resumes; it may have passed while the step ran.

    A node resumes at its last time, unless one wait has none; a subgraph or flow at its
    first. Tasks ``over`` wait for nothing.
    """
    times: dict[str, list[int | None]] = {}
    below: set[str] = set()
    for label, wait in each_wait(reserved):
        if wait.task in over or is_decided(reserved, label):
            continue
        if is_flow or ":" in label.partition("/")[2]:
            below.add(wait.task)
        times.setdefault(wait.task, []).append(wait.until)
    resumes: list[int] = []
    for task, found in times.items():
        known = [until for until in found if until is not None]
        if task in below and known:
            resumes.append(min(known))
        elif len(known) == len(found):
            resumes.append(max(known))
    return min(resumes, default=None)


def open_interrupts(reserved: Reserved, place: str) -> tuple[Interrupt, ...]:
    return tuple(
        Interrupt(
            id=f"{place}:{label}",
            node=wait.question[0],
            question=wait.question[1],
            show=wait.question[2],
            answer=wait.question[3],
            asks=wait.question[_ASKS],
            refused=wait.question[5] if len(wait.question) > 5 else None,
            until=None if wait.until is None else to_datetime(wait.until),
        )
        for label, wait in each_wait(reserved)
        if wait.question is not None and not is_decided(reserved, label)
    )
