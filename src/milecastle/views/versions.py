"""Compatibility: whether an app's code would resume older threads, and their replays.

Rules:

- Lists have the newest threads and never grow with the store.
- Replays call the user's code, so the caller decides whether to make any. A list's replays end
  with the thread during which its time is up.
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
    """A graph's newest unfinished threads, 20 in each status; ``is_cut`` if there are more.

    ``skipped`` cannot be read here, or are flows too many or too long to be replayed.
    """

    threads: tuple[ThreadFit, ...]
    skipped: int
    is_cut: bool


class ReplaysDocument(Document, frozen=True):
    """A graph's newest threads, replayed.

    ``skipped`` are too many or too long, or cannot be read here.
    """

    threads: tuple[ReplayLine, ...]
    skipped: int


def thread_fit(app: App[Any], info: ThreadInfo) -> ThreadFit | None:
    head = app.store.head(info.key)
    if head is None or not (head.next or head.route):
        return None
    return _fit_line(info, head, app.compatibility(info.key))


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
    """Compatibility of a graph's unfinished threads. Flows are replayed.

    Threads in one version that would run the same nodes are judged once, if no subgraph has a
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
                known[alike] = app.compatibility(info.key)
            found.append(_fit_line(info, head, known[alike]))
    return FitsDocument(threads=tuple(found), skipped=len(infos) - len(found), is_cut=is_cut)


def replays_document(app: App[Any], tenant: str) -> ReplaysDocument:
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
    end = monotonic() + _SECONDS
    for info in infos:
        head = store.head(info.key)
        if head is None or (is_short and head.seq > LONGEST):
            continue
        if is_short and monotonic() > end:
            return
        yield info, head
