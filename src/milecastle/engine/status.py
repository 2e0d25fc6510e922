"""A thread's status: from its log's head and that head's run record.

This is the only place that derives it. Code that lists, shows or removes threads asks here, or
reads the journal's index row.

Rules:

- Nothing left to run: ``completed``, however its runs ended.
- The head's run is queued, running, failed or cancelled: the thread has the same status.
- Anything else waits to be resumed: ``sleeping`` if it has a time or a message to wait for and no
  open question, otherwise ``interrupted``. So is a thread whose run ended and that a user took back
  to before that end. One that waits for a message alone has no ``wake_at``.
- A worker claims a thread before it commits a step. Until then the log and the index have the
  status from before; ``claimed`` is for display.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

import msgspec.structs

from milecastle.engine.reserved_channels import WAITS, Reserved
from milecastle.engine.waiting import each_wait, is_decided, takes_answer
from milecastle.model.checkpoint import Entry
from milecastle.model.limit_key import LIMIT_KEY
from milecastle.model.run import RunRecord, RunStatus, ThreadInfo


class Waits(NamedTuple):
    """A checkpoint's waits.

    ``pauses`` counts everything that needs a person, ``questions`` those taking an answer.
    ``times`` are all times that tasks have waited for in this step, past ones too, ``deadlines``
    those that end a wait for something else. ``topics`` are its open waits', each with
    the last seen message's number.
    """

    pauses: int
    questions: int
    times: tuple[int, ...]
    deadlines: tuple[int, ...] = ()
    topics: tuple[tuple[str, int], ...] = ()


NOTHING = Waits(0, 0, ())

_CLAIMABLE: Final = ("queued", "interrupted", "sleeping", "failed")


def waits_at(reserved: Reserved) -> Waits:
    if WAITS not in reserved:
        return NOTHING
    waits = [wait for label, wait in each_wait(reserved) if not is_decided(reserved, label)]
    questions = [takes_answer(wait) for wait in waits if wait.question is not None]
    topics = dict.fromkeys((topic, number) for wait in waits for topic, number in wait.topics)
    times = tuple(wait.until for wait in waits if wait.until is not None)
    deadlines = tuple(wait.until for wait in waits if wait.until is not None and not wait.is_sleep)
    return Waits(len(questions), sum(questions), times, deadlines, tuple(topics))


def thread_info(
    head: Entry, run: RunRecord, waits: Waits, inboxes: Collection[str] = ()
) -> ThreadInfo:
    status, wake_at, questions = _status(head, run, waits)
    topics = waits.topics if status in ("interrupted", "sleeping") else ()
    if inboxes and status == "completed":
        topics = tuple((topic, 0) for topic in inboxes)
    return ThreadInfo(
        key=run.key,
        status=status,
        run_id=run.run_id,
        graph=run.graph,
        started_at=run.started_at,
        ended_at=run.ended_at,
        wake_at=wake_at,
        questions=questions,
        waiting_topics=topics,
        limit_key=run.metadata.get(LIMIT_KEY, ""),
    )


def _status(head: Entry, run: RunRecord, waits: Waits) -> tuple[RunStatus, int | None, int]:
    if not head.next and not head.route:
        return "completed", None, 0
    if run.status in ("queued", "running", "failed", "cancelled"):
        return run.status, None, waits.questions
    wake_at = run.wake_at
    if wake_at not in waits.times:  # the head is a branch: its run stopped elsewhere
        coming = (time for time in waits.times if time > head.created_at)
        wake_at = min((*coming, *waits.deadlines), default=None)
    sleeps = (wake_at is not None or waits.topics) and not waits.pauses
    return "sleeping" if sleeps else "interrupted", wake_at, waits.questions


def claimed(info: ThreadInfo) -> ThreadInfo:
    """The index row with its claim: a waiting thread with a worker is running."""
    if not info.worker or info.status not in _CLAIMABLE:
        return info
    return msgspec.structs.replace(info, status="running", wake_at=None)


def claimed_run(run: RunRecord, info: ThreadInfo) -> RunRecord:
    is_claimed = info.run_id == run.run_id and claimed(info) is not info
    if not is_claimed or run.status == "failed":
        return run
    return msgspec.structs.replace(run, status="running", wake_at=None)
