"""A graph's versions with unfinished threads: which would resume, and replays of the newest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from milecastle.app.application import App
from milecastle.ports.claims import ClaimStore
from milecastle.ports.store import offers
from milecastle.server.documents import HttpDocument
from milecastle.server.graphs import served
from milecastle.server.pages.excerpts import Excerpt, Excerpts
from milecastle.server.pages.rendering import fitting, shown_size
from milecastle.server.pages.view import PageView, WebPage, of_tenant
from milecastle.server.request import ApiRequest
from milecastle.views.documents import LaneLine, ReplayLine, ThreadFit
from milecastle.views.lines import lane_line
from milecastle.views.versions import FitsDocument, fits_document, replays_document

_ROWS: Final = 20
_TEXTS: Final = 60_000
_REASON: Final = 1000


class VersionsQuery(HttpDocument, frozen=True):
    """``replay``: also replay ended threads. ``version`` selects one."""

    tab: Literal["resume", "replay"] = "resume"
    version: str | None = None


class VersionRow(msgspec.Struct, frozen=True):
    """A version with its unfinished threads, as far as read; ``fitting`` would resume here.

    ``fitting`` is ``None`` if it takes a replay to find out; ``lane`` is its queue.
    """

    fingerprint: str
    threads: int
    fitting: int | None
    lane: LaneLine | None
    is_served: bool


class ReplayRow(msgspec.Struct, frozen=True):
    fingerprint: str
    same: int
    continues: int
    differs: int


def version_rows(request: ApiRequest, app: App[Any], fits: FitsDocument | None) -> list[VersionRow]:
    """The version served here first, then those with most threads that would not resume."""
    threads = fits.threads if fits else ()
    found = Counter(one.fingerprint for one in threads)
    fitting_ones = Counter(one.fingerprint for one in threads if one.fits)
    lanes = {one.fingerprint: one for one in _lanes(request, app)}
    rows = [
        VersionRow(
            fingerprint=version,
            threads=found[version],
            fitting=fitting_ones[version] if fits else None,
            lane=lanes.get(version),
            is_served=version == app.fingerprint,
        )
        for version in {**found, **lanes}
    ]
    return sorted(rows, key=lambda row: (not row.is_served, (row.fitting or 0) - row.threads))


def _lanes(request: ApiRequest, app: App[Any]) -> list[LaneLine]:
    store, graph = request.service.store, app.graph.name
    if not offers(store, ClaimStore):
        return []
    workers = store.workers()
    lanes = (lane_line(depth, workers) for depth in store.depths())
    return [one for one in lanes if (one.graph, one.tenant) == (graph, request.tenant)]


def quick_fits(request: ApiRequest, app: App[Any]) -> FitsDocument | None:
    """The fits found without calling the user's code: for a flow, none."""
    return None if app.graph.has_flow else fits_document(app, request.tenant)


@WebPage("GET", "/graphs/{graph}/versions", "read", query=VersionsQuery)
def show_versions(request: ApiRequest) -> PageView:
    """A graph's unfinished threads by version: which would resume here, and why others would not.

    Replays call the graph's code, so they need the scope ``run``.
    """
    app, query = served(request), request.query
    texts = Excerpts(_TEXTS, request.service.redact)
    may_run = "run" in request.identity.scopes
    values: dict[str, Any] = {"tab": query.tab, "version": query.version, "may_run": may_run}
    if query.tab == "replay":
        request.require("run")
        replays = replays_document(app, request.tenant)
        values |= {
            "replays": _by_version(replays.threads),
            "lines": _shown(replays.threads, query.version, texts),
            "skipped": replays.skipped,
        }
    else:
        fits = fits_document(app, request.tenant) if may_run else quick_fits(request, app)
        lines = sorted(fits.threads, key=lambda one: one.fits) if fits else []
        values |= {
            "rows": version_rows(request, app, fits)[:_ROWS],
            "lines": _shown(lines, query.version, texts),
            "skipped": fits.skipped if fits else 0,
            "is_cut": fits is not None and fits.is_cut,
            "is_known": fits is not None,
        }
    verb = ("replay",) if query.tab == "replay" else ("check", "--threads")
    return PageView(
        template="versions.html",
        title=f"Versions of {app.graph.name}",
        commands=((*verb, *of_tenant(request.tenant), "MODULE:ATTRIBUTE"),),
        values={"graph_name": app.graph.name, "served": app.fingerprint, **values},
    )


def _by_version(lines: Sequence[ReplayLine]) -> list[ReplayRow]:
    count = Counter((line.fingerprint, line.verdict) for line in lines)
    versions = dict.fromkeys(line.fingerprint for line in lines)
    verdicts = ("same", "continues", "differs")
    return [ReplayRow(one, *(count[one, verdict] for verdict in verdicts)) for one in versions]


def _shown(
    lines: Sequence[ThreadFit | ReplayLine], version: str | None, texts: Excerpts
) -> list[tuple[Any, list[Excerpt]]]:
    chosen = [line for line in lines if version in (None, line.fingerprint)]
    return [(line, _said(line, texts)) for line in fitting(chosen, _size)]


def _said(line: ThreadFit | ReplayLine, texts: Excerpts) -> list[Excerpt]:
    said = (line.detail,) if isinstance(line, ReplayLine) else line.reasons or (line.note,)
    return [texts.text("message", one, _REASON) for one in said if one]


def _size(line: ThreadFit | ReplayLine) -> int:
    names = line.next if isinstance(line, ThreadFit) else ()
    return 700 + 2 * shown_size(line.thread) + sum(map(shown_size, names))
