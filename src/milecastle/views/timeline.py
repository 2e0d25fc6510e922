"""A thread's timeline: a lane for each node, with its work and its waits.

Everything here is computed from a page of the history and its entries' task times, without any
state. Times are in microseconds since 1970, places in percent of the width.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from operator import attrgetter
from typing import Final, Literal, NamedTuple

import msgspec.structs

from milecastle.model.checkpoint import HOLDING, Entry
from milecastle.model.manifest import END, START
from milecastle.model.run import Failure, RunRecord, ThreadInfo
from milecastle.model.step_times import PAUSED, StepTimes, TaskTime
from milecastle.views.axis import TimeAxis, clock_axis, folded_axis
from milecastle.views.documents import Document
from milecastle.views.step_times import nodes_of_times

BarKind = Literal["ran", "running", "failed", "items", "pause", "answer", "sleep", "worker", "hand"]

BY_HAND: Final = ""
"""The lane of checkpoints written by ``update`` and ``fork``: no node has this name."""

_BUSY: Final = frozenset({"ran", "running", "failed", "items"})
_LEAST: Final = 0.7
_BARS: Final = 150
_LANES: Final = 60
_HANDED: Final = frozenset({"input", "answer"})
_PARTS: Final = 60


class NodeBar(Document, frozen=True):
    """A bar in a lane, from ``x`` on; ``start`` and ``stop`` are its times.

    ``kind``: ``ran`` (succeeded), ``running`` (now), ``failed`` (an attempt), ``items`` (a
    fan-out), ``pause`` (before a retry), ``answer``, ``sleep`` and ``worker`` (it waits for one),
    ``hand`` (a checkpoint written by hand: a moment). ``seq`` is the checkpoint to open. For a
    fan-out, ``at_once`` is how many items ran in equal parts of the bar. ``items`` counts them,
    ``failures`` the failed attempts; ``error`` is the error's type. ``is_left``: on another branch
    than the shown one. ``merged`` is how many bars, each too narrow, it replaces. ``note`` is the
    checkpoint's: a flow's call.
    """

    kind: BarKind
    x: float
    width: float
    start: int
    stop: int
    seq: int
    attempt: int = 1
    error: str = ""
    items: int = 0
    failures: int = 0
    at_once: tuple[int, ...] = ()
    is_left: bool = False
    merged: int = 1
    note: str = ""


class TimelineLane(Document, frozen=True):
    """A node's bars, by time. ``took`` is the microseconds it ran, or has waited at the head.

    ``tries`` is the most attempts one task made, ``items`` its fan-outs' tasks. Both are for the
    shown branch, unless the node ran only on others. A lane without bars: the node did not run on
    this page.
    """

    node: str
    bars: tuple[NodeBar, ...]
    took: int
    tries: int = 0
    items: int = 0


class TimelineBand(Document, frozen=True):
    """A folded interval on the axis, and its length in microseconds."""

    x: float
    width: float
    lasted: int


class TimelineMark(Document, frozen=True):
    """A time to write at the axis: where work begins, or the end."""

    x: float
    time: int


class TimelineDocument(Document, frozen=True):
    """Lanes in the order of the nodes' first visits, then nodes that have not run.

    ``cursor`` is the selected checkpoint's place. ``more`` is how many lanes are left out.
    """

    lanes: tuple[TimelineLane, ...]
    bands: tuple[TimelineBand, ...]
    marks: tuple[TimelineMark, ...]
    cursor: float
    first: int
    last: int
    more: int = 0


class TimelineData(msgspec.Struct, frozen=True, kw_only=True):
    """A timeline's data.

    ``entries`` are a page of the history, oldest first; ``runs`` and ``failures`` are their runs',
    by id: without its failure, a run's cause names the node and the error. ``times`` come from
    ``read_times``. ``info`` is the index row if the last entry is the head, else ``None``.
    ``working`` are the nodes that run at the head, or will run first. ``path`` are the checkpoints
    that lead to the selected one; bars off it are on another branch.
    """

    entries: Sequence[Entry]
    runs: Mapping[str, RunRecord]
    times: Mapping[int, StepTimes]
    now: int
    info: ThreadInfo | None = None
    working: Sequence[str] = ()
    failures: Mapping[str, Failure] = {}
    path: Collection[int] = ()


class _Drawn(NamedTuple):
    node: str
    bar: NodeBar


def timeline_document(
    course: TimelineData,
    *,
    selected: int,
    axis: str = "work",
    nodes: Iterable[str] = (),
    only: str | None = None,
    others: bool = True,
) -> TimelineDocument:
    """The timeline for a page of a thread's history.

    ``selected`` is the checkpoint shown, ``axis`` is ``work`` or ``clock``, and ``nodes`` are the
    graph's: the ones without bars get a lane at the end. ``only`` leaves one node's lane. Without
    ``others``, bars on other branches are left out.
    """
    entries = course.entries
    drawn = [*_all(course)]
    first = min([entries[0].created_at, *(one.bar.start for one in drawn)])
    last = max([entries[-1].created_at, *(one.bar.stop for one in drawn)])
    placed = clock_axis(first, last)
    if axis != "clock":
        busy = ((one.bar.start, one.bar.stop) for one in drawn if one.bar.kind in _BUSY)
        placed = folded_axis(busy, first, last)
    lanes: defaultdict[str, list[NodeBar]] = defaultdict(list)
    for one in sorted(drawn, key=lambda one: one.bar.start):
        if others or not _is_left(course, one.bar):
            lanes[one.node].append(_placed(one.bar, placed, _is_left(course, one.bar)))
    for node in nodes:
        lanes.setdefault(node, [])
    at = next((one.created_at for one in entries if one.seq == selected), last)
    wanted = [(node, bars) for node, bars in lanes.items() if only in (None, node)]
    shown = wanted[:_LANES]
    return TimelineDocument(
        lanes=tuple(
            _lane(node, bars, whole)
            for (node, bars), (_, whole) in zip(_fitted(shown), shown, strict=True)
        ),
        bands=tuple(
            TimelineBand(x=round(one.x, 2), width=round(one.width, 2), lasted=one.stop - one.start)
            for one in placed.pieces
            if one.is_band
        ),
        marks=_marks(placed, last),
        cursor=round(placed.x(at), 2),
        first=first,
        last=last,
        more=len(wanted) - len(shown),
    )


def worked_by_node(course: TimelineData) -> dict[str, int]:
    worked: Counter[str] = Counter()
    for node, bar in _all(course):
        if bar.kind in _BUSY and not _is_left(course, bar):
            worked[node] += bar.stop - bar.start
    return dict(worked)


def _is_left(course: TimelineData, bar: NodeBar) -> bool:
    return bool(course.path) and bar.seq not in course.path


def _marks(axis: TimeAxis, last: int) -> tuple[TimelineMark, ...]:
    marks = [
        TimelineMark(x=round(one.x, 2), time=one.start) for one in axis.pieces if not one.is_band
    ]
    return (*marks, TimelineMark(x=100.0, time=last))


def _placed(bar: NodeBar, axis: TimeAxis, is_left: bool) -> NodeBar:
    x, end = axis.x(bar.start), axis.x(bar.stop)
    width = 0.0 if bar.kind == "hand" else max(_LEAST, end - x)
    x = min(x, 100.0 - width)
    return msgspec.structs.replace(bar, x=round(x, 2), width=round(width, 2), is_left=is_left)


def _lane(node: str, bars: Sequence[NodeBar], whole: Sequence[NodeBar]) -> TimelineLane:
    own = [bar for bar in whole if not bar.is_left] or whole
    took = sum(bar.stop - bar.start for bar in own if bar.kind in _BUSY)
    if own and own[-1].kind in ("answer", "sleep", "worker"):
        took = own[-1].stop - own[-1].start
    return TimelineLane(
        node=node,
        bars=tuple(bars),
        took=took,
        tries=max((bar.attempt for bar in own), default=0),
        items=sum(bar.items for bar in own),
    )


def _fitted(
    lanes: Sequence[tuple[str, list[NodeBar]]],
) -> Iterator[tuple[str, list[NodeBar]]]:
    """Merge bars of one kind that are too narrow to be seen apart."""
    near = 0.0
    found = [(node, _merged(bars, near)) for node, bars in lanes]
    while sum(len(bars) for _, bars in found) > _BARS and near < 100:
        near = near * 2 + 0.2
        found = [(node, _merged(bars, near)) for node, bars in lanes]
    yield from found


def _merged(bars: Iterable[NodeBar], near: float) -> list[NodeBar]:
    found: list[NodeBar] = []
    for bar in bars:
        before = found[-1] if found else None
        if (
            before is None
            or bar.kind != before.kind
            or bar.is_left != before.is_left
            or bar.kind in ("items", "hand")
            or bar.x - (before.x + before.width) > near
            or (near == 0 and bar.note != before.note)
            or (near == 0 and min(bar.width, before.width) > _LEAST)
        ):
            found.append(bar)
            continue
        end = max(bar.x + bar.width, before.x + before.width)
        found[-1] = msgspec.structs.replace(
            bar,
            x=before.x,
            width=round(end - before.x, 2),
            start=before.start,
            stop=max(before.stop, bar.stop),
            attempt=max(before.attempt, bar.attempt),
            merged=before.merged + bar.merged,
        )
    return found


# ---- what happened between two checkpoints


def _all(course: TimelineData) -> Iterator[_Drawn]:
    before: Entry | None = None
    for entry, following in zip_longest(course.entries, course.entries[1:]):
        if entry.source in ("update", "fork"):
            yield _drawn(BY_HAND, "hand", entry.created_at, entry.created_at, entry.seq)
        elif before is not None:
            yield from _before(course, before, entry)
        if following is None and course.info is not None:
            yield from _at_head(course, course.info, entry)
        elif following is not None:
            yield from _after(course, entry, following)
        before = entry


def _drawn(node: str, kind: BarKind, start: int, stop: int, seq: int, **more: object) -> _Drawn:
    bar = NodeBar(kind=kind, x=0, width=0, start=start, stop=max(start, stop), seq=seq)
    return _Drawn(node, msgspec.structs.replace(bar, **more) if more else bar)


def _before(course: TimelineData, before: Entry, entry: Entry) -> Iterator[_Drawn]:
    """The tasks that an entry ended: a step's, or those paused by a question or a sleep."""
    if entry.source not in ("step", "interrupt", "sleep"):
        return
    if (times := course.times.get(entry.seq)) is not None:
        yield from _timed(entry, times)
        return
    start = before.created_at
    run = course.runs.get(entry.run_id)
    if before.run_id != entry.run_id and run is not None:
        start = min(max(start, run.started_at), entry.created_at)
    nodes = entry.nodes if entry.source == "step" else entry.next[:1]
    for node, count in Counter(nodes).items():
        items = count if count > 1 else 0
        yield _drawn(node, "ran", start, entry.created_at, entry.seq, note=entry.note, items=items)


def _timed(entry: Entry, times: StepTimes) -> Iterator[_Drawn]:
    names = nodes_of_times(entry)
    many = times.many
    counted = {one.node for one in many.nodes} if many else set[int]()
    for one in many.nodes if many else ():
        if 0 <= one.node < len(names):
            yield _drawn(
                names[one.node],
                "items",
                _time(times, one.start),
                _time(times, one.stop),
                entry.seq,
                items=one.ran - one.failed,
                failures=one.failed,
                at_once=many.running if many and one is many.nodes[0] else (),
            )
    for place, name in enumerate(names):
        own = [one for one in times.tasks if one.node == place]
        if not own or place in counted:
            continue
        if len({one.item for one in own}) > 1:
            yield _stairs(entry.seq, name, times, own)
        else:
            yield from _attempts(entry.seq, name, times, own)


def _time(times: StepTimes, offset: int) -> int:
    return times.began + offset * times.unit


def _stairs(seq: int, node: str, times: StepTimes, tasks: Sequence[TaskTime]) -> _Drawn:
    return _drawn(
        node,
        "items",
        _time(times, min(one.start for one in tasks)),
        _time(times, max(one.start + one.took for one in tasks)),
        seq,
        items=len({one.item for one in tasks}),
        failures=sum(one.end >= 0 for one in tasks),
        at_once=at_once(tasks),
    )


def at_once(tasks: Sequence[TaskTime]) -> tuple[int, ...]:
    """Tasks running in the middle of each of equal parts of their time, at most 60 parts."""
    first = min(one.start for one in tasks)
    length = max(one.start + one.took for one in tasks) - first
    middles = [first + length * (2 * part + 1) / (2 * _PARTS) for part in range(_PARTS)]
    return tuple(
        sum(one.start <= middle <= one.start + one.took for one in tasks) for middle in middles
    )


def _attempts(seq: int, node: str, times: StepTimes, tasks: Iterable[TaskTime]) -> Iterator[_Drawn]:
    waits_from: int | None = None
    for one in sorted(tasks, key=attrgetter("start")):
        start, stop = _time(times, one.start), _time(times, one.start + one.took)
        if waits_from is not None:
            yield _drawn(node, "pause", waits_from, start, seq)
        error = times.errors[one.end] if 0 <= one.end < len(times.errors) else ""
        kind: BarKind = "failed" if error else "ran"
        yield _drawn(node, kind, start, stop, seq, attempt=one.attempt, error=error)
        waits_from = stop if error else None


def _after(course: TimelineData, entry: Entry, following: Entry) -> Iterator[_Drawn]:
    start, stop = entry.created_at, following.created_at
    if entry.source in ("interrupt", "sleep"):
        kind: BarKind = "answer" if entry.source == "interrupt" else "sleep"
        for node in _waiting(course, entry):
            yield _drawn(node, kind, start, stop, entry.seq)
    elif (ended := _ended(course, entry, following)) is not None:
        yield from _failed(course, entry, start, min(ended, stop))
    elif following.source == "takeover" and (
        entry.source in _HANDED or entry.run_id != following.run_id
    ):
        for node in _named(entry.next) or _named(_coming(course, entry)):
            yield _drawn(node, "worker", start, stop, entry.seq)


def _named(nodes: Iterable[str]) -> Sequence[str]:
    return [node for node in dict.fromkeys(nodes) if node not in (START, END)]


def _coming(course: TimelineData, entry: Entry) -> Sequence[str]:
    steps = (one for one in course.entries if one.seq > entry.seq and one.source == "step")
    following = next(steps, None)
    return course.working if following is None else following.nodes


def _waiting(course: TimelineData, entry: Entry) -> Sequence[str]:
    times = course.times.get(entry.seq)
    if times is None or times.many is not None:
        return entry.next[:1]
    places = {one.node for one in times.tasks if one.end == PAUSED}
    return [node for place, node in enumerate(entry.next) if place in places] or entry.next[:1]


def _ended(course: TimelineData, entry: Entry, following: Entry | None) -> int | None:
    """When the entry's run failed after it, without another run.

    A run that was taken over has no known end: its thread waited for a worker.
    """
    run = course.runs.get(entry.run_id)
    if run is None or run.status != "failed" or run.ended_at is None:
        return None
    if following is not None and following.run_id == entry.run_id:
        return None
    return run.ended_at if entry.next or entry.route else None


def _failed(course: TimelineData, entry: Entry, start: int, stop: int) -> Iterator[_Drawn]:
    failure = course.failures.get(entry.run_id)
    counts = Counter(one.node for one in failure.tasks) if failure else Counter[str]()
    run = course.runs.get(entry.run_id)
    error, where = (run and run.cause) or ("", None)
    where = failure.node if failure is not None else where
    if where:
        counts.setdefault(where, 1)
    for node in counts or (_named(entry.next) or _named(_coming(course, entry)))[:1]:
        yield _drawn(
            node,
            "failed",
            start,
            stop,
            entry.seq,
            attempt=failure.attempt if failure else 1,
            error=failure.error_type if failure else error,
            failures=counts[node],
        )


def _at_head(course: TimelineData, info: ThreadInfo, entry: Entry) -> Iterator[_Drawn]:
    start, now = entry.created_at, max(course.now, entry.created_at)
    if info.status == "failed" and (ended := _ended(course, entry, None)) is not None:
        yield from _failed(course, entry, start, ended)
        return
    kinds: Mapping[str, BarKind] = {
        "running": "running",
        "queued": "worker",
        "interrupted": "answer",
        "sleeping": "sleep",
    }
    kind = kinds.get(info.status)
    if kind is None:
        return
    nodes = course.working if kind == "running" and course.working else entry.next
    nodes = _named(nodes) or course.working
    if entry.source in HOLDING and kind in ("answer", "sleep"):
        nodes = _waiting(course, entry)
    for node in _named(nodes):
        yield _drawn(node, kind, start, now, entry.seq)
