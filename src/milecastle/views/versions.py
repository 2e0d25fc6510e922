"""Threads of older code: whether they would resume with an app's, and what it would do now.

Rules:

- Lists are of the newest threads and never grow with the store.
- Replays call code of the user, so the caller decides whether to make any. Those of a list end with
  the thread during which its time is up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from milecastle.app.application import App
from milecastle.app.threads.children import is_child
from milecastle.app.threads.compatibility import Compatibility
from milecastle.errors import MilecastleError
from milecastle.model.checkpoint import Entry
from milecastle.model.keys import ThreadKey, is_upkeep
from milecastle.model.run import RunStatus, ThreadInfo
from milecastle.ports.store import Store
from milecastle.views.documents import Document, ReplayLine, ThreadFit

_UNFINISHED: Final[tuple[RunStatus, ...]] = (
    "interrupted",
    "sleeping",
    "failed",
    "queued",
    "running",
    "cancelled",
)
EACH: Final = 20
"""The most unfinished threads of each status."""
LONGEST: Final = 200
"""The most checkpoints of a thread to replay."""

_SCANNED: Final = 100
_REPLAYED: Final = 20
_SECONDS: Final = 2.0


class FitsDocument(Document, frozen=True):
    """The newest unfinished threads of a graph, 20 of each status; ``is_cut`` if there are more.

    ``skipped`` cannot be read here, or are flows too many or too long to be replayed.
    """

    threads: tuple[ThreadFit, ...]
    skipped: int
    is_cut: bool


class ReplaysDocument(Document, frozen=True):
    """The newest threads of a graph, replayed.

    ``skipped`` are too many or too long, or cannot be read here.
    """

    threads: tuple[ReplayLine, ...]
    skipped: int


def thread_fit(app: App[Any], info: ThreadInfo) -> ThreadFit | None:
    """A thread that has something left to run, and whether it would resume; else ``None``."""
    head = app.store.head(info.key)
    if head is None or not (head.next or head.route):
        return None
    return _fit_line(info, head, app.fit(info.key))


def _fit_line(info: ThreadInfo, head: Entry, fit: Compatibility) -> ThreadFit:
    return ThreadFit(
        thread=info.key.thread,
        status=info.status,
        fingerprint=head.fingerprint,
        next=head.next or head.route,
        fits=bool(fit),
        reasons=fit.reasons,
        note=fit.note,
    )


def replay_line(app: App[Any], info: ThreadInfo, nodes: Collection[str] = ()) -> ReplayLine:
    head = app.store.head(info.key)
    found = app.replay(info.key, nodes=nodes)
    return ReplayLine(
        thread=found.thread,
        run_id=found.run_id,
        fingerprint=head.fingerprint if head else "",
        verdict=found.verdict,
        calls=found.calls,
        detail=found.detail,
    )


def fits_document(app: App[Any], tenant: str) -> FitsDocument:
    """Whether a graph's unfinished threads would resume. Flows are replayed.

    Threads of one version that would run the same nodes are judged once, if no subgraph has a
    thread of its own.
    """
    infos, is_cut = _unfinished(app, tenant)
    nodes = app.graph.nodes.values()
    is_alike = not app.graph.has_flow and all(node.subgraph is None for node in nodes)
    known: dict[ThreadKey | tuple[str, tuple[str, ...], tuple[str, ...]], Compatibility] = {}
    found: list[ThreadFit] = []
    for info, head in _with_heads(app.store, infos, is_short=app.graph.has_flow):
        alike = (head.fingerprint, head.next, head.route) if is_alike else info.key
        with suppress(MilecastleError):
            if alike not in known:
                known[alike] = app.fit(info.key)
            found.append(_fit_line(info, head, known[alike]))
    return FitsDocument(threads=tuple(found), skipped=len(infos) - len(found), is_cut=is_cut)


def replays_document(app: App[Any], tenant: str) -> ReplaysDocument:
    """This code on a graph's newest threads, as ``milecastle replay`` reports it."""
    page = app.store.recent_threads(tenant, limit=_SCANNED)
    infos = list(_of_graph(app, page.items))[:_REPLAYED]
    found: list[ReplayLine] = []
    for info, _ in _with_heads(app.store, infos, is_short=True):
        with suppress(MilecastleError):
            found.append(replay_line(app, info))
    return ReplaysDocument(threads=tuple(found), skipped=len(infos) - len(found))


def _unfinished(app: App[Any], tenant: str) -> tuple[list[ThreadInfo], bool]:
    found: list[ThreadInfo] = []
    is_cut = False
    for status in _UNFINISHED:
        page = app.store.recent_threads(tenant, status=status, limit=_SCANNED)
        matching = list(_of_graph(app, page.items))
        found += matching[:EACH]
        is_cut = is_cut or page.after is not None or len(matching) > EACH
    return found, is_cut


def _of_graph(app: App[Any], infos: Iterable[ThreadInfo]) -> Iterator[ThreadInfo]:
    for info in infos:
        is_own = not is_child(info.key) and not is_upkeep(info.key.thread)
        if is_own and info.graph == app.graph.name:
            yield info


def _with_heads(
    store: Store, infos: Iterable[ThreadInfo], *, is_short: bool
) -> Iterator[tuple[ThreadInfo, Entry]]:
    """Threads that have one; if ``is_short``, of at most 200 checkpoints, until time is up."""
    end = monotonic() + _SECONDS
    for info in infos:
        head = store.head(info.key)
        if head is None or (is_short and head.seq > LONGEST):
            continue
        if is_short and monotonic() > end:
            return
        yield info, head
