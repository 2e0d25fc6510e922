"""Details of a fan-out: how long its items took, and which were slow or failed.

Bounded, whatever the number of items: a large step stores a summary (``model/step_times.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from milecastle.engine.tasks import task_id
from milecastle.model.checkpoint import Entry
from milecastle.model.run import Failure
from milecastle.model.step_times import PAUSED, StepTimes, TaskTime
from milecastle.views.documents import Document
from milecastle.views.step_times import nodes_of_times
from milecastle.views.timeline import at_once

_WIDTHS: Final = 24
_LISTED: Final = 50


class ItemLine(Document, frozen=True):
    """An item's attempt. ``task`` is its name, ``index`` its place in the list sent.

    ``took`` is in microseconds, ``None`` if unknown. ``error`` is its error's type, and ``message``
    the beginning of the error's message, if it failed the run.
    """

    task: str
    index: int
    status: Literal["done", "failed", "asks"]
    took: int | None
    attempt: int
    error: str = ""
    message: str = ""


class WidthLine(Document, frozen=True):
    """Attempts that took ``start`` to ``stop`` microseconds; the last bar has longer ones, too."""

    start: int
    stop: int
    count: int


class FanOutDocument(Document, frozen=True):
    """A node's items in one step, as far as this segment ran them.

    ``ran`` counts attempts and ``failed`` those that failed. ``at_once`` is how many ran at once in
    equal parts of the time from ``start`` to ``stop`` (microseconds since 1970), ``durations`` how
    long they took. ``items`` has the failed and then the slowest: at most 50, and all unless
    ``is_cut``.
    """

    node: str
    seq: int
    ran: int
    failed: int
    start: int
    stop: int
    at_once: tuple[int, ...]
    most_at_once: int
    durations: tuple[WidthLine, ...]
    items: tuple[ItemLine, ...]
    is_cut: bool


def fan_out_document(entry: Entry, times: StepTimes, node: str) -> FanOutDocument | None:
    """A node's items in the step an entry ends or leaves; ``None`` if it has no times."""
    names = nodes_of_times(entry)
    place = names.index(node) if node in names else -1
    listed = [one for one in times.tasks if one.node == place and one.item >= 0]
    counted = (
        next((one for one in times.many.nodes if one.node == place), None) if times.many else None
    )
    if not listed and counted is None:
        return None
    unit, began = times.unit, times.began
    heights, durations = tuple[int, ...](), tuple[WidthLine, ...]()
    if counted is None:
        start, stop = min(one.start for one in listed), max(one.start + one.took for one in listed)
        ran, failed = len(listed), sum(one.end >= 0 for one in listed)
        heights = at_once(listed)
        width = max(1, -(-max(one.took for one in listed) // _WIDTHS))
        counts = [0] * _WIDTHS
        for one in listed:
            counts[min(_WIDTHS - 1, one.took // width)] += 1
        durations = _widths(counts, width * unit)
    else:
        start, stop, ran, failed = counted.start, counted.stop, counted.ran, counted.failed
        if times.many is not None and counted is times.many.nodes[0]:
            heights = times.many.running
            durations = _widths(times.many.durations, times.many.width * unit)
    ordered = sorted(listed, key=lambda one: (one.end < 0, -one.took))
    return FanOutDocument(
        node=node,
        seq=entry.seq,
        ran=ran,
        failed=failed,
        start=began + start * unit,
        stop=began + stop * unit,
        at_once=heights,
        most_at_once=max(heights, default=0),
        durations=durations,
        items=tuple(_item(one, node, times) for one in ordered[:_LISTED]),
        is_cut=ran > min(len(ordered), _LISTED),
    )


def failed_items(failure: Failure, node: str) -> tuple[ItemLine, ...]:
    return tuple(
        ItemLine(
            task=one.task,
            index=int(one.task.rpartition("#")[2]),
            status="failed",
            took=None,
            attempt=one.attempt,
            error=one.error_type,
            message=one.message,
        )
        for one in failure.tasks
        if one.node == node and one.task != task_id(node)
    )[:_LISTED]


def _widths(counts: Sequence[int], width: int) -> tuple[WidthLine, ...]:
    return tuple(
        WidthLine(start=at * width, stop=(at + 1) * width, count=count)
        for at, count in enumerate(counts)
    )


def _item(one: TaskTime, node: str, times: StepTimes) -> ItemLine:
    return ItemLine(
        task=f"{task_id(node)}#{one.item}",
        index=one.item,
        status="failed" if one.end >= 0 else "asks" if one.end == PAUSED else "done",
        took=one.took * times.unit,
        attempt=one.attempt,
        error=times.errors[one.end] if 0 <= one.end < len(times.errors) else "",
    )
