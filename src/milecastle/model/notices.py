"""Notices: a run's events that hooks are to be notified of, left in its thread's index row.

The commit that makes a run complete, fail or ask adds a notice to the row, which makes the thread
due. The worker that claims it submits the deliveries, then writes the row without the notice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, cast

import msgspec

from milecastle.model.children import OUTSTANDING
from milecastle.model.run import TRANSITIONS, RunRecord, ThreadInfo

HookEvent = Literal["completed", "failed", "question"]
"""What a hook is notified of."""

_PREFIX: Final = "__notice "
_BY_CALLERS: Final = ("__by_callers", 0)
"""Waiting topic of a row that callers run: it has a lane until its notices are submitted."""


class Notice(msgspec.Struct, frozen=True):
    """A run's event, and the seq by which it is in the log."""

    event: HookEvent
    run_id: str
    seq: int


def event_of(info: ThreadInfo) -> HookEvent | None:
    """The event a run's new row stands for; a retried failure is none."""
    if info.status == "interrupted":
        return "question" if info.questions else None
    if info.status == "failed":
        return "failed" if info.due_at is None else None
    return "completed" if info.status == "completed" else None


def with_notices(info: ThreadInfo, record: RunRecord, notices: Iterable[Notice]) -> ThreadInfo:
    """The row with these notices added, due at once."""
    added = [(f"{_PREFIX}{one.event} {one.run_id}", one.seq) for one in notices]
    if not added:
        return info
    callers = () if info.lane else (_BY_CALLERS,)
    topics = dict.fromkeys((*info.waiting_topics, *callers, *added))
    lane = info.lane or f"{record.graph}@{record.fingerprint}"
    return msgspec.structs.replace(info, lane=lane, due_at=0, waiting_topics=tuple(topics))


def notices_of(info: ThreadInfo) -> list[Notice]:
    found: list[Notice] = []
    for topic, seq in info.waiting_topics:
        if topic.startswith(_PREFIX):
            event, _, run_id = topic.removeprefix(_PREFIX).partition(" ")
            found.append(Notice(cast("HookEvent", event), run_id, seq))
    return found


def is_unsettled(info: ThreadInfo) -> bool:
    return OUTSTANDING in info.waiting_topics or bool(notices_of(info))


def settled(info: ThreadInfo) -> ThreadInfo:
    own = (OUTSTANDING, _BY_CALLERS)
    topics = tuple(
        one for one in info.waiting_topics if one not in own and not one[0].startswith(_PREFIX)
    )
    by_callers = _BY_CALLERS in info.waiting_topics
    due_at = info.wake_at if TRANSITIONS[info.status] and not by_callers else None
    lane = "" if by_callers else info.lane
    return msgspec.structs.replace(info, worker="", lane=lane, due_at=due_at, waiting_topics=topics)
