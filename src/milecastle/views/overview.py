"""A tenant's overview: activity, and problems that need a person.

Rules:

- Reads do not grow with the store: pages of bounded lists, counts up to 500, and the
  fleet's own tables. The page says where it stopped.
- No state is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

from milecastle.app.threads.children import is_child
from milecastle.model.run import RunRecord, ThreadInfo
from milecastle.ports.limits import graph_of
from milecastle.ports.reading import FleetReader, StoreReader
from milecastle.ports.store import offers
from milecastle.ports.workers import LaneDepth, WorkerInfo
from milecastle.views.documents import Document, LaneLine, WorkerLine
from milecastle.views.failures import FailedRunsGroup, failures_document, recent_runs
from milecastle.views.lines import lane_line, moment, worker_line
from milecastle.views.node_statistics import NodeStatistic, StatisticsCache

AttentionKind = Literal["failures", "no-worker", "silent", "question", "long"]

_COUNTED: Final = 500
_MOST_RUNS: Final = 2000
_LINES: Final = 6
_ROWS: Final = 5
_LANES: Final = 10
_WORKERS: Final = 10
_QUESTIONS: Final = 4
_LOOKED_AT: Final = 10
_MINUTE: Final = 60_000_000
_HOUR: Final = 60 * _MINUTE
_PARTS: Final = 60
_LONG: Final = 10 * _MINUTE
"""Without a checkpoint for so long, a running thread is long: ``views.fleet.STUCK_AFTER``."""


class OverviewCount(Document, frozen=True):
    """A tile's number. ``is_least``: counting stopped there ("500+"). ``oldest`` is in seconds.

    ``of`` is the total: places, workers or runs; 0 if there is none.
    """

    count: int
    is_least: bool = False
    of: int = 0
    oldest: float | None = None


class OverviewPart(Document, frozen=True):
    """Runs that began in an interval, and how they ended."""

    start: str
    completed: int
    failed: int


class AttentionLine(Document, frozen=True):
    """Something to look at. ``level`` is 3 (bad), 2 or 1; lines are sorted by it, worst first.

    ``failures``: ``count`` runs of ``graph`` failed at ``node`` with ``error``, since ``since``.
    ``no-worker``: ``count`` due runs of ``graph`` in ``version`` have no worker; the oldest waits
    for ``seconds``. ``silent``: ``worker``, for ``seconds``. ``question``: ``thread`` asks since
    ``since``. ``long``: ``thread`` has had no checkpoint for ``seconds``.
    """

    kind: AttentionKind
    level: int
    count: int = 1
    graph: str = ""
    node: str | None = None
    error: str = ""
    version: str = ""
    worker: str = ""
    thread: str = ""
    seconds: float = 0.0
    since: str | None = None


class AskingLine(Document, frozen=True):
    """A thread with open questions, and since when its newest waits."""

    thread: str
    graph: str
    questions: int
    since: str


class OverviewDocument(Document, frozen=True):
    """Five tiles, runs by time, problems, and the parts below.

    ``failed`` and ``completed`` count runs begun at ``since`` or later; ``is_cut`` if that is later
    than requested, because there were too many. ``parts`` divide that time. ``failures`` are those
    that need a person. ``asking`` are the threads that wait longest, or the newest if there are too
    many to find those. ``workers`` has those with a problem first; ``more_workers`` and
    ``more_lanes`` are left out. Without a fleet there are no workers.
    """

    running: OverviewCount
    waiting: OverviewCount
    questions: OverviewCount
    failed: OverviewCount
    alive: OverviewCount
    completed: int
    since: str
    is_cut: bool
    parts: tuple[OverviewPart, ...]
    attention: tuple[AttentionLine, ...]
    failures: tuple[FailedRunsGroup, ...]
    slowest: tuple[NodeStatistic, ...]
    lanes: tuple[LaneLine, ...]
    more_lanes: int
    asking: tuple[AskingLine, ...]
    workers: tuple[WorkerLine, ...]
    more_workers: int


class _Fleet:
    def __init__(self, store: StoreReader, tenant: str, graph: str | None) -> None:
        self.workers: Sequence[WorkerInfo] = ()
        self.depths: Sequence[LaneDepth] = ()
        if offers(store, FleetReader):
            self.workers = store.workers()
            self.depths = [
                one
                for one in store.depths()
                if one.tenant == tenant and graph in (None, graph_of(one.lane))
            ]

    @property
    def alive(self) -> list[WorkerInfo]:
        return [one for one in self.workers if not one.is_gone]


def overview_document(
    store: StoreReader,
    tenant: str,
    statistics: StatisticsCache,
    *,
    now: int,
    span: int = _HOUR,
    graph: str | None = None,
) -> OverviewDocument:
    fleet = _Fleet(store, tenant, graph)
    found = recent_runs(store, tenant, now - span, most=_MOST_RUNS)
    runs = [run for run in found.runs if graph in (None, run.graph)]
    failures = failures_document(store, tenant, now=now, span=span, graph=graph)
    asking = _listed(store, tenant, "interrupted", graph)
    asking = ([one for one in asking[0] if one.questions], asking[1])
    questions = [*_asking(store, asking[0])]
    running = _listed(store, tenant, "running", graph)
    lanes = sorted(fleet.depths, key=lambda one: (-one.due, -one.running))
    workers = sorted(fleet.workers, key=lambda one: (not one.is_gone, not one.draining, one.id))
    ended = {
        status: sum(run.status == status for run in runs) for status in ("failed", "completed")
    }
    return OverviewDocument(
        running=_running(running, fleet),
        waiting=OverviewCount(
            count=sum(one.due for one in fleet.depths),
            oldest=max((one.oldest for one in fleet.depths if one.due), default=None),
        ),
        questions=OverviewCount(
            count=sum(one.questions for one in asking[0]),
            is_least=asking[1],
            oldest=_oldest(questions, now) if not asking[1] else None,
        ),
        failed=OverviewCount(count=ended["failed"], of=len(runs), is_least=found.is_cut),
        alive=OverviewCount(count=len(fleet.alive), of=len(fleet.workers)),
        completed=ended["completed"],
        since=moment(found.since),
        is_cut=found.is_cut,
        parts=tuple(_parts(runs, found.since, now)),
        attention=_worst(
            [
                *_failing(failures.groups, now),
                *_unserved(fleet),
                *_silent(fleet),
                *_unanswered(questions, now),
                *_long(store, running[0], now),
            ]
        ),
        failures=failures.groups[:_ROWS],
        slowest=statistics.of(tenant, graph).nodes[:_ROWS],
        lanes=tuple(lane_line(one, fleet.workers) for one in lanes[:_LANES]),
        more_lanes=max(0, len(lanes) - _LANES),
        asking=tuple(line for line, _ in questions[:_QUESTIONS]),
        workers=tuple(worker_line(one) for one in workers[:_WORKERS]),
        more_workers=max(0, len(workers) - _WORKERS),
    )


def _listed(
    store: StoreReader, tenant: str, status: Literal["interrupted", "running"], graph: str | None
) -> tuple[list[ThreadInfo], bool]:
    page = store.recent_threads(tenant, status=status, limit=_COUNTED)
    own = [one for one in page.items if not is_child(one.key) and graph in (None, one.graph)]
    return own, page.after is not None


def _running(listed: tuple[list[ThreadInfo], bool], fleet: _Fleet) -> OverviewCount:
    called, is_least = listed
    own = sum(not one.lane for one in called)
    places = sum(one.capacity for one in fleet.alive)
    return OverviewCount(
        count=own + sum(one.running for one in fleet.depths), of=places, is_least=is_least
    )


def _asking(store: StoreReader, asking: Sequence[ThreadInfo]) -> Iterator[tuple[AskingLine, int]]:
    """The threads that have waited longest: their index rows changed first."""
    for info in [*reversed(asking)][:_LOOKED_AT]:
        head = store.head(info.key)
        if head is not None:
            yield (
                AskingLine(
                    thread=info.key.thread,
                    graph=info.graph,
                    questions=info.questions,
                    since=moment(head.created_at),
                ),
                head.created_at,
            )


def _oldest(questions: Sequence[tuple[AskingLine, int]], now: int) -> float | None:
    return max(((now - since) / 1_000_000 for _, since in questions), default=None)


def _parts(runs: Sequence[RunRecord], since: int, now: int) -> Iterator[OverviewPart]:
    length = max(_MINUTE, -(-(now - since) // _PARTS))
    count = max(1, -(-(now - since) // length))
    ended: Mapping[str, list[int]] = {"completed": [0] * count, "failed": [0] * count}
    for run in runs:
        if run.status in ended:
            part = min(count - 1, max(0, (run.started_at - since) // length))
            ended[run.status][part] += 1
    for part in range(count):
        yield OverviewPart(
            start=moment(since + part * length),
            completed=ended["completed"][part],
            failed=ended["failed"][part],
        )


# ---- what to look at


def _worst(lines: Iterable[AttentionLine]) -> tuple[AttentionLine, ...]:
    ordered = sorted(lines, key=lambda one: (-one.level, -one.count, -one.seconds))
    return tuple(ordered[:_LINES])


def _failing(groups: Sequence[FailedRunsGroup], now: int) -> Iterator[AttentionLine]:
    recent = moment(now - _HOUR)
    for group in groups:
        if group.last >= recent:
            yield AttentionLine(
                kind="failures",
                level=3,
                count=group.count,
                graph=group.graph,
                node=group.node,
                error=group.error_type,
                since=group.first,
            )


def _unserved(fleet: _Fleet) -> Iterator[AttentionLine]:
    served = {lane for one in fleet.alive for lane in one.lanes}
    for depth in fleet.depths:
        if depth.due and depth.lane not in served:
            graph, _, version = depth.lane.rpartition("@")
            yield AttentionLine(
                kind="no-worker",
                level=3,
                count=depth.due,
                graph=graph,
                version=version,
                seconds=round(depth.oldest, 3),
            )


def _silent(fleet: _Fleet) -> Iterator[AttentionLine]:
    for one in fleet.workers:
        if one.is_gone:
            yield AttentionLine(kind="silent", level=2, worker=one.id, seconds=round(one.silent, 3))


def _unanswered(questions: Sequence[tuple[AskingLine, int]], now: int) -> Iterator[AttentionLine]:
    for line, since in questions:
        if now - since > _HOUR:
            yield AttentionLine(
                kind="question",
                level=1,
                thread=line.thread,
                graph=line.graph,
                seconds=round((now - since) / 1_000_000, 3),
                since=line.since,
            )


def _long(store: StoreReader, running: Sequence[ThreadInfo], now: int) -> Iterator[AttentionLine]:
    """Running threads without a checkpoint for long: their index rows changed first."""
    for info in [*reversed(running)][:_LOOKED_AT]:
        if now - info.started_at < _LONG:
            continue
        head = store.head(info.key)
        if head is not None and now - head.created_at > _LONG:
            seconds = round((now - head.created_at) / 1_000_000, 3)
            yield AttentionLine(
                kind="long",
                level=1,
                thread=info.key.thread,
                graph=info.graph,
                seconds=seconds,
                since=moment(head.created_at),
            )
