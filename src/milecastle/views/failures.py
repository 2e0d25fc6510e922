"""Failed runs in groups: by error type, node and graph.

Rules:

- Reads do not grow with the store: a bounded number of failed runs, one page of failed
  threads, one page of completed runs, and the failure of each group's newest run.
- A run's error type and node are in its record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from milecastle.app.threads.children import is_child
from milecastle.model.run import Failure, RunRecord, RunStatus, ThreadInfo
from milecastle.ports.reading import StoreReader
from milecastle.views.documents import Document
from milecastle.views.lines import moment

FailureState = Literal["held", "retried", "settled"]

_RUNS: Final = 1000
_PAGE: Final = 200
_THREADS: Final = 500
_SUCCEEDED: Final = 200
_GROUPS: Final = 20
_NEWEST: Final = 50
_PARTS: Final = 24
_FRAMES: Final = 20
_FACTS: Final = ("git_commit", "host", "python", "milecastle")


class SharedLine(Document, frozen=True):
    """A property shared by all runs in a group, and by no run that completed in the same time.

    ``what`` is ``version`` (a fingerprint), ``tag``, ``git_commit``, ``host``, ``python`` or
    ``milecastle``.
    """

    what: str
    value: str


class FailedRunLine(Document, frozen=True):
    thread: str
    run_id: str
    retry_count: int
    time: str


class FailedRunsGroup(Document, frozen=True):
    """Failed runs with the same error type, node and graph. ``first`` and ``last`` are their ends.

    ``message``, ``traceback`` (its innermost frames) and ``attempt`` are the newest run's. ``runs``
    are the newest 50, newest first. ``shared`` is empty for a single run. The message is whole:
    redaction must see all of it before it is cut.
    """

    error_type: str
    node: str | None
    graph: str
    count: int
    first: str
    last: str
    message: str
    attempt: int
    traceback: tuple[str, ...]
    shared: tuple[SharedLine, ...]
    runs: tuple[FailedRunLine, ...]


class FailuresPart(Document, frozen=True):
    """Failed runs in an interval: those that need a person, and all others."""

    start: str
    held: int
    other: int


class FailuresDocument(Document, frozen=True):
    """Groups in one state, newest first, and each state's number of runs.

    ``held`` need a person, ``retried`` will be retried automatically, ``settled`` are no longer
    their thread's last run. ``parts`` divide the time from ``since`` on. ``looked_at`` is how many
    failed runs were read, and ``since`` how far back they reach; ``is_cut`` if that is less than
    the requested time. ``more`` is how many groups are left out.
    """

    held: int
    retried: int
    settled: int
    groups: tuple[FailedRunsGroup, ...]
    parts: tuple[FailuresPart, ...]
    looked_at: int
    since: str
    is_cut: bool
    more: int


class RecentRuns(NamedTuple):
    """Runs, newest first, back to ``since``. ``is_cut``: there were too many to reach further."""

    runs: Sequence[RunRecord]
    since: int
    is_cut: bool


class _Failed(NamedTuple):
    run: RunRecord
    error: str
    node: str | None
    state: FailureState
    time: int


def recent_runs(
    store: StoreReader,
    tenant: str,
    since: int,
    *,
    status: RunStatus | None = None,
    most: int = _RUNS,
) -> RecentRuns:
    """A tenant's runs since a time, newest first, at most ``most``; without subgraphs' runs."""
    found: list[RunRecord] = []
    after: str | None = None
    looked = 0
    while looked < most:
        page = store.recent_runs(
            tenant, status=status, limit=min(_PAGE, most - looked), after=after
        )
        looked += len(page.items)
        for run in page.items:
            if run.started_at < since:
                return RecentRuns(found, since, False)
            if not is_child(run.key):
                found.append(run)
        if page.after is None:
            return RecentRuns(found, since, False)
        after = page.after
    return RecentRuns(found, found[-1].started_at if found else since, True)


def failures_document(
    store: StoreReader,
    tenant: str,
    *,
    now: int,
    span: int,
    state: FailureState = "held",
    graph: str | None = None,
) -> FailuresDocument:
    found = recent_runs(store, tenant, now - span, status="failed")
    threads = store.recent_threads(tenant, status="failed", limit=_THREADS).items
    failed = [*_caused(found.runs, {one.run_id: one for one in threads}, graph)]
    chosen = _grouped(one for one in failed if one.state == state)
    shared = _Shared(store, tenant, graph) if chosen else None
    return FailuresDocument(
        held=sum(one.state == "held" for one in failed),
        retried=sum(one.state == "retried" for one in failed),
        settled=sum(one.state == "settled" for one in failed),
        groups=tuple(_group(store, runs, shared) for runs in chosen[:_GROUPS]),
        parts=tuple(_parts(failed, found.since, now)),
        looked_at=len(found.runs),
        since=moment(found.since),
        is_cut=found.is_cut,
        more=max(0, len(chosen) - _GROUPS),
    )


def _caused(
    runs: Iterable[RunRecord], current: Mapping[str, ThreadInfo], graph: str | None
) -> Iterable[_Failed]:
    for run in runs:
        if graph is not None and run.graph != graph:
            continue
        error, node = run.cause or ("unknown error", None)
        info = current.get(run.run_id)
        state: FailureState = "settled"
        if info is not None:
            state = "held" if info.due_at is None else "retried"
        yield _Failed(run, error, node, state, run.ended_at or run.started_at)


def _grouped(failed: Iterable[_Failed]) -> list[list[_Failed]]:
    groups: dict[tuple[str, str | None, str], list[_Failed]] = {}
    for one in failed:
        groups.setdefault((one.error, one.node, one.run.graph), []).append(one)
    return [*groups.values()]


def _group(
    store: StoreReader, failed: Sequence[_Failed], shared: _Shared | None
) -> FailedRunsGroup:
    newest = failed[0]
    failure: Failure | None = store.failure(newest.run.key, newest.run.run_id)
    return FailedRunsGroup(
        error_type=newest.error,
        node=newest.node,
        graph=newest.run.graph,
        count=len(failed),
        first=moment(min(one.time for one in failed)),
        last=moment(max(one.time for one in failed)),
        message=failure.message if failure else "",
        attempt=failure.attempt if failure else 1,
        traceback=failure.traceback[-_FRAMES:] if failure else (),
        shared=shared.of([one.run for one in failed]) if shared and len(failed) > 1 else (),
        runs=tuple(
            FailedRunLine(
                thread=one.run.key.thread,
                run_id=one.run.run_id,
                retry_count=one.run.retry_count,
                time=moment(one.time),
            )
            for one in failed[:_NEWEST]
        ),
    )


class _Shared:
    def __init__(self, store: StoreReader, tenant: str, graph: str | None) -> None:
        self._store = store
        self._tenant = tenant
        page = store.recent_runs(tenant, status="completed", limit=_SUCCEEDED)
        runs = [run for run in page.items if graph in (None, run.graph)]
        self._succeeded = {name: self._facts(own) for name, own in _by_graph(runs).items()}

    def _facts(self, runs: Sequence[RunRecord]) -> list[set[tuple[str, str]]]:
        names = list({run.key.thread for run in runs})[:_PAGE]
        tags: Mapping[str, tuple[str, ...]] = {}
        if self._store.tags is not None and names:
            tags = self._store.tags.of(self._tenant, names)
        return [
            {
                ("version", run.fingerprint),
                *((name, run.metadata[name]) for name in _FACTS if name in run.metadata),
                *(("tag", tag) for tag in tags.get(run.key.thread, ())),
            }
            for run in runs
        ]

    def of(self, runs: Sequence[RunRecord]) -> tuple[SharedLine, ...]:
        succeeded = self._succeeded.get(runs[0].graph, [])
        if not succeeded:
            return ()  # nothing to compare with
        common = set[tuple[str, str]].intersection(*self._facts(runs[:_PAGE]))
        only = common.difference(*succeeded)
        return tuple(SharedLine(what=what, value=value) for what, value in sorted(only))


def _by_graph(runs: Iterable[RunRecord]) -> dict[str, list[RunRecord]]:
    found: dict[str, list[RunRecord]] = {}
    for run in runs:
        found.setdefault(run.graph, []).append(run)
    return found


def _parts(failed: Sequence[_Failed], since: int, now: int) -> Iterable[FailuresPart]:
    length = max(1, -(-(now - since) // _PARTS))
    held, other = [0] * _PARTS, [0] * _PARTS
    for one in failed:
        part = min(_PARTS - 1, max(0, (one.time - since) // length))
        (held if one.state == "held" else other)[part] += 1
    for part in range(_PARTS):
        start = moment(since + part * length)
        yield FailuresPart(start=start, held=held[part], other=other[part])
