"""Nodes' durations and failure rates over the newest runs, cached for a minute."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from threading import Lock
from time import monotonic
from typing import Final, NamedTuple

from milecastle.app.encryption.keyring import Keyring
from milecastle.app.threads.children import is_child
from milecastle.model.checkpoint import Entry
from milecastle.model.run import RunRecord
from milecastle.model.step_times import DONE, NodeTime, StepTimes
from milecastle.ports.store import Store
from milecastle.views.documents import Document
from milecastle.views.step_times import nodes_of_times, read_times

_RUNS: Final = 200
_SCANNED: Final = 1000
_PAGE: Final = 200
_STEPS: Final = 50
_BYTES: Final = 50_000
_LASTS: Final = 60.0
_REMEMBERED: Final = 100

Keyrings = Callable[[str], Keyring | None]
"""The keys of a graph's threads, by the graph's name; ``None`` if they cannot be decrypted."""


class NodeStatistic(Document, frozen=True):
    """Median and 95th percentile of a node's attempts, in microseconds.

    ``attempts`` succeeded. ``retried`` failed and were tried again, ``failed`` ended their run.
    """

    graph: str
    node: str
    attempts: int
    p50: int
    p95: int
    retried: int
    failed: int


class NodeStatistics(Document, frozen=True):
    """The nodes in the newest ``runs`` runs (at most 200), slowest first by p95."""

    nodes: tuple[NodeStatistic, ...]
    runs: int


class StatisticsCache:
    """Statistics by tenant and graph, computed at most once a minute. Thread-safe.

    ``keyrings`` decrypts the times of encrypted threads.
    """

    def __init__(self, store: Store, keyrings: Keyrings = lambda graph: None) -> None:
        self._store = store
        self._keyrings = keyrings
        self._lock = Lock()
        self._known: dict[tuple[str, str | None], tuple[float, NodeStatistics]] = {}

    def of(self, tenant: str, graph: str | None = None) -> NodeStatistics:
        asked, now = (tenant, graph), monotonic()
        with self._lock:
            known = self._known.get(asked)
            if known is not None and now - known[0] < _LASTS:
                return known[1]
        found = node_statistics(self._store, tenant, graph, self._keyrings)
        with self._lock:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[asked] = (now, found)
        return found


def node_statistics(
    store: Store, tenant: str, graph: str | None, keyrings: Keyrings
) -> NodeStatistics:
    """Statistics over the newest runs: two reads for each, whatever the store's size."""
    runs = [*_newest(store, tenant, graph)]
    taken: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    done: Counter[tuple[str, str]] = Counter()
    retried: Counter[tuple[str, str]] = Counter()
    failed: Counter[tuple[str, str]] = Counter()
    for run in runs:
        if run.cause is not None and run.cause[1] is not None:
            failed[run.graph, run.cause[1]] += 1
        entries = [*reversed([*store.history(run.key, limit=_STEPS)])]
        times: Mapping[int, StepTimes] = {}
        if entries:
            ring = partial(keyrings, run.graph)
            span = entries[0].seq, entries[-1].seq
            times = read_times(store, run.key, ring, *span, most=_BYTES)
        for one in _attempts(run, entries, times):
            node = run.graph, one.node
            if one.measured:
                taken[node].append((one.took, one.measured))
            done[node] += one.done
            retried[node] += one.failed
    found = [
        NodeStatistic(
            graph=node[0],
            node=node[1],
            attempts=done[node],
            p50=_percentile(taken[node], 50),
            p95=_percentile(taken[node], 95),
            retried=retried[node],
            failed=failed[node],
        )
        for node in {**done, **failed}
    ]
    return NodeStatistics(nodes=tuple(sorted(found, key=lambda one: -one.p95)), runs=len(runs))


def _newest(store: Store, tenant: str, graph: str | None) -> Iterator[RunRecord]:
    left, after = _RUNS, None
    for _ in range(_SCANNED // _PAGE):
        page = store.recent_runs(tenant, limit=_PAGE, after=after)
        for run in page.items:
            if graph in (None, run.graph) and not is_child(run.key):
                yield run
                left -= 1
                if not left:
                    return
        if (after := page.after) is None:
            return


class _Attempts(NamedTuple):
    """A node's attempts: ``measured`` attempts took ``took`` microseconds each."""

    node: str
    took: int = 0
    measured: int = 0
    done: int = 0
    failed: int = 0


def _attempts(
    run: RunRecord, entries: Sequence[Entry], times: Mapping[int, StepTimes]
) -> Iterator[_Attempts]:
    for before, entry in pairwise(entries):
        if entry.run_id != run.run_id:
            continue
        if (known := times.get(entry.seq)) is not None:
            names = dict(enumerate(nodes_of_times(entry)))
            yield from (one for one in _timed(names, known) if one.node)
        elif entry.source == "step":
            start = before.created_at
            if before.run_id != run.run_id:
                start = max(start, run.started_at)
            for node in entry.nodes:
                yield _Attempts(node, max(0, entry.created_at - start), measured=1, done=1)


def _timed(names: Mapping[int, str], times: StepTimes) -> Iterator[_Attempts]:
    """A step's attempts. If there are too many to list, those that failed are measured, too."""
    many: list[NodeTime] = [*times.many.nodes] if times.many else []
    counted = {one.node for one in many}
    if times.many is not None:
        name, width = names.get(many[0].node, ""), times.many.width * times.unit
        for at, count in enumerate(times.many.durations):
            yield _Attempts(name, at * width + width // 2, measured=count)
    for node in many:
        yield _Attempts(names.get(node.node, ""), done=node.ran - node.failed, failed=node.failed)
    for one in times.tasks:
        name, took = names.get(one.node, ""), one.took * times.unit
        if one.node not in counted and one.end == DONE:
            yield _Attempts(name, took, measured=1, done=1)
        elif one.node not in counted and one.end >= 0:
            yield _Attempts(name, failed=1)
        elif one.node in counted and one.node != many[0].node:
            yield _Attempts(name, took, measured=1)


def _percentile(taken: Sequence[tuple[int, int]], percent: int) -> int:
    total = sum(count for _, count in taken)
    seen = 0
    for took, count in sorted(taken):
        seen += count
        if seen * 100 >= total * percent:
            return took
    return 0
