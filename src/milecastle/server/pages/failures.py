"""Failures by error, node and graph, with their common properties."""

from __future__ import annotations

import time
from typing import Final, Literal

import msgspec

from milecastle.app.threads.children import is_child
from milecastle.server.documents import HttpDocument
from milecastle.server.pages.charts import Stack, stacked
from milecastle.server.pages.excerpts import Excerpt, Excerpts
from milecastle.server.pages.thread import Frame, frames_of
from milecastle.server.pages.view import PageView, WebPage, of_tenant
from milecastle.server.request import ApiRequest
from milecastle.server.service import Service
from milecastle.views.failures import FailedRunsGroup, FailureState, failures_document
from milecastle.views.replicas import source_of

Since = Literal["1h", "24h", "7d"]

SECONDS: Final[dict[str, int]] = {"15min": 900, "1h": 3600, "24h": 86400, "7d": 7 * 86400}
_NEWEST: Final = 4
_TEXTS: Final = 60_000
_MESSAGE: Final = 200
_TRACEBACK: Final = 4000
_COUNTED: Final = 100


class FailuresQuery(HttpDocument, frozen=True):
    """``held`` failures wait for a person, ``retried`` for a worker, ``settled`` for neither."""

    state: FailureState = "held"
    graph: str | None = None
    since: Since = "24h"


class ShownGroup(msgspec.Struct, frozen=True):
    group: FailedRunsGroup
    message: Excerpt
    frames: list[Frame]


def held_failures(service: Service, tenant: str) -> str:
    """Number of failed threads no worker will retry; a lower bound if there are many."""
    page = service.store.recent_threads(tenant, status="failed", limit=_COUNTED)
    count = sum(one.due_at is None and not is_child(one.key) for one in page.items)
    return f"{count}{'+' if page.after else ''}" if count else ""


@WebPage(
    "GET",
    "/failures",
    "read",
    query=FailuresQuery,
    label="Failures",
    badge=held_failures,
    tone="bad",
    counts="failed",
)
def show_failures(request: ApiRequest) -> PageView:
    query: FailuresQuery = request.query
    service, graph = request.service, query.graph or None
    store, behind = source_of(service.store)
    found = failures_document(
        store,
        request.tenant,
        now=time.time_ns() // 1000,
        span=SECONDS[query.since] * 1_000_000,
        state=query.state,
        graph=graph,
    )
    excerpts = Excerpts(_TEXTS, service.redact)
    stacks = [Stack(part.start, part.other, part.held) for part in found.parts]
    chosen = {
        "state": query.state if query.state != "held" else None,
        "graph": graph,
        "since": query.since if query.since != "24h" else None,
    }
    return PageView(
        template="failures.html",
        live="_failures.html",
        behind=behind,
        title="Failures",
        commands=(("runs", *of_tenant(request.tenant), "--status=failed", "--limit=100"),),
        values={
            "failures": found,
            "groups": [_shown(group, excerpts) for group in found.groups],
            "newest": _NEWEST,
            "chart": stacked(stacks, 92, ("others", "wait for you"), days=query.since == "7d"),
            "chosen": chosen,
            "query": query,
            "graphs": sorted(service.apps),
            "may_retry": query.state != "settled" and "run" in request.identity.scopes,
        },
    )


def _shown(group: FailedRunsGroup, excerpts: Excerpts) -> ShownGroup:
    traceback = excerpts.text("traceback", "\n".join(group.traceback), _TRACEBACK).text
    message = excerpts.text("message", group.message, _MESSAGE)
    return ShownGroup(group, message, frames_of(traceback))
