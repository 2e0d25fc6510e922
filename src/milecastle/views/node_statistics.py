"""Durations and failure rates of nodes, over the newest runs; cached for a minute."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from threading import Lock
from time import monotonic
from typing import Final

from milecastle.app.encryption.keyring import Keyring
from milecastle.app.threads.children import is_child
from milecastle.model.checkpoint import Entry
from milecastle.model.run import RunRecord
from milecastle.model.step_times import DONE, StepTimes
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
    """A node of a graph: the median and the 95th percentile of its attempts, in microseconds.

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
    """The nodes, slowest first by p95, of the newest ``runs`` runs (at most 200)."""

    nodes: tuple[NodeStatistic, ...]
    runs: int


class StatisticsCache:
    """Statistics by tenant and graph, each computed at most once a minute.

    ``keyrings`` decrypts the times of encrypted threads. May be called from any thread.
    """

    def __init__(self, store: Store, keyrings: Keyrings = lambda graph: None) -> None:
        self._store = store
        self._keyrings = keyrings
        self._lock = Lock()
        self._known: dict[tuple[str, str | None], tuple[float, NodeStatistics]] = {}

    def of(self, tenant: str, graph: str | None = None) -> NodeStatistics:
        """The nodes of a graph, or of all graphs, in a tenant's newest 200 runs."""
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
    """Statistics of the newest runs: two reads for each, whatever the size of the store."""
    runs = [*_newest(store, tenant, graph)]
    taken: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    retried: defaultdict[tuple[str, str], int] = defaultdict(int)
    failed: defaultdict[tuple[str, str], int] = defaultdict(int)
    for run in runs:
        if run.cause is not None and run.cause[1] is not None:
            failed[run.graph, run.cause[1]] += 1
        entries = [*reversed([*store.history(run.key, limit=_STEPS)])]
        times: Mapping[int, StepTimes] = {}
        if entries:
            ring = partial(keyrings, run.graph)
            span = entries[0].seq, entries[-1].seq
            times = read_times(store, run.key, ring, *span, most=_BYTES)
        for node, took, count, is_done in _attempts(run, entries, times):
            if is_done:
                taken[run.graph, node].append((took, count))
            else:
                retried[run.graph, node] += count
    found = [
        NodeStatistic(
            graph=graph_name,
            node=node,
            attempts=sum(count for _, count in taken[graph_name, node]),
            p50=_percentile(taken[graph_name, node], 50),
            p95=_percentile(taken[graph_name, node], 95),
            retried=retried[graph_name, node],
            failed=failed[graph_name, node],
        )
        for graph_name, node in {**taken, **retried, **failed}
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


def _attempts(
    run: RunRecord, entries: Sequence[Entry], times: Mapping[int, StepTimes]
) -> Iterator[tuple[str, int, int, bool]]:
    """Attempts of a run's nodes: the node, microseconds, how many, and whether they succeeded."""
    for before, entry in pairwise(entries):
        if entry.run_id != run.run_id:
            continue
        if (known := times.get(entry.seq)) is not None:
            yield from _timed(entry, known)
        elif entry.source == "step":
            start = before.created_at
            if before.run_id != run.run_id:
                start = max(start, run.started_at)
            for node in entry.nodes:
                yield node, max(0, entry.created_at - start), 1, True


def _timed(entry: Entry, times: StepTimes) -> Iterable[tuple[str, int, int, bool]]:
    names = nodes_of_times(entry)
    many = times.many
    counted = {one.node for one in many.nodes} if many else set[int]()
    if many is not None:
        place, width = many.nodes[0].node, many.width * times.unit
        if 0 <= place < len(names):
            for at, count in enumerate(many.durations):
                if count:
                    yield names[place], at * width + width // 2, count, True
        for node in many.nodes:
            if node.failed and 0 <= node.node < len(names):
                yield names[node.node], 0, node.failed, False
    for one in times.tasks:
        if 0 <= one.node < len(names) and one.node not in counted:
            if one.end == DONE:
                yield names[one.node], one.took * times.unit, 1, True
            elif one.end >= 0:
                yield names[one.node], 0, 1, False


def _percentile(taken: Sequence[tuple[int, int]], percent: int) -> int:
    total = sum(count for _, count in taken)
    seen = 0
    for took, count in sorted(taken):
        seen += count
        if seen * 100 >= total * percent:
            return took
    return 0
