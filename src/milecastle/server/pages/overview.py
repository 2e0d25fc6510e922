from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from milecastle.fleet.schedules import Schedules
from milecastle.model.keys import ThreadKey
from milecastle.ports.claims import ClaimStore
from milecastle.ports.store import offers
from milecastle.server.documents import HttpDocument
from milecastle.server.health import OVERVIEW
from milecastle.server.pages.charts import Stack, stacked
from milecastle.server.pages.excerpts import short
from milecastle.server.pages.failures import SECONDS
from milecastle.server.pages.graphs import start_values
from milecastle.server.pages.rendering import segment
from milecastle.server.pages.view import PageView, WebPage
from milecastle.server.pages.words import ago, duration, plural
from milecastle.server.problems import Refused
from milecastle.server.redaction import redacted
from milecastle.server.request import ApiRequest
from milecastle.server.service import Service
from milecastle.server.threads import inbox_line
from milecastle.views.listing import recent_page
from milecastle.views.overview import AttentionLine, overview_document
from milecastle.views.replicas import source_of
from milecastle.views.values import as_json

_LOOK: Final = 6
_SCHEDULES: Final = 500
"""Threads of schedules and jobs that are looked at for one that somebody started."""
_TITLE: Final = 120


class OverviewQuery(HttpDocument, frozen=True):
    graph: str | None = None
    since: Literal["15min", "1h", "24h", "7d"] = "1h"


class Trouble(msgspec.Struct, frozen=True):
    """Something to look at: how bad it is, its colour and icon, one line, and why.

    It links to a page, or to the page for ``thread``.
    """

    level: int
    tone: str
    icon: str
    title: str
    said: str
    href: str = ""
    thread: str = ""


@WebPage("GET", OVERVIEW, "read", query=OverviewQuery, label="Overview")
def show_overview(request: ApiRequest) -> PageView:
    query: OverviewQuery = request.query
    service, tenant = request.service, request.tenant
    store, graph = service.store, query.graph or None
    graphs = sorted(service.apps)
    values: dict[str, Any] = {"graphs": graphs, "start": None}
    if not recent_page(store, tenant, limit=1, most=_SCHEDULES, upkeep=False).lines:
        start = start_values(request, next(iter(service.apps.values())))
        if start is not None:
            return PageView(
                template="start.html",
                title="Overview",
                commands=(("submit", "--thread=first", f"--input={start['example']}"),),
                values={**values, "start": start},
            )
    now, span = time.time_ns() // 1000, SECONDS[query.since] * 1_000_000
    lists, behind = source_of(store)
    found = overview_document(lists, tenant, service.statistics, now=now, span=span, graph=graph)
    questions = {one.thread: _question(service, tenant, one.thread) for one in found.asking}
    troubles = [_trouble(one, questions) for one in found.attention]
    troubles += _schedules(service, tenant, graph)
    stacks = [Stack(part.start, part.completed, part.failed) for part in found.parts]
    return PageView(
        template="overview.html",
        live="_overview.html",
        behind=behind,
        title="Overview",
        commands=(("doctor",), ("queue",), ("workers",)),
        values={
            **values,
            "overview": found,
            "has_fleet": offers(store, ClaimStore),
            "questions": questions,
            "chart": stacked(stacks, 226, ("completed", "failed"), days=query.since == "7d"),
            "troubles": sorted(troubles, key=lambda one: -one.level)[:_LOOK],
            "query": query,
            "chosen": {"graph": graph, "since": query.since if query.since != "1h" else None},
        },
    )


def _question(service: Service, tenant: str, thread: str) -> str:
    try:
        line = inbox_line(service, service.line(ThreadKey(tenant, thread)))
    except Refused:  # deleted since
        return ""
    if not line.questions:
        return ""
    question = redacted(line, service.redact).questions[0].question
    text = question if isinstance(question, str) else as_json(question)
    return text[:_TITLE].partition("\n")[0]


def _trouble(line: AttentionLine, questions: Mapping[str, str]) -> Trouble:
    lasted, began = duration(line.seconds), ago(line.since) if line.since else ""
    if line.kind == "failures":
        node = f" at {short(line.node)}" if line.node else ""
        title = f"{plural(line.count, 'run')} of {short(line.graph)} failed{node}"
        said = f"{short(line.error)}, {began}"
        return Trouble(line.level, "bad", "fail", title, said, "/failures")
    if line.kind == "no-worker":
        title = f"No worker has {short(line.graph)} {line.version[:8]}"
        said = f"{plural(line.count, 'run waits', 'runs wait')} for {lasted}"
        return Trouble(line.level, "bad", "lost", title, said, "/workers")
    if line.kind == "silent":
        title = f"{short(line.worker)} has been silent for {lasted}"
        return Trouble(line.level, "bad", "lost", title, "its runs go to other workers", "/workers")
    if line.kind == "question":
        title = questions.get(line.thread) or f"{short(line.graph)} asks a question"
        said = f"asked {began} by {short(line.thread)}"
        return Trouble(line.level, "ask", "ask", title, said, "/inbox")
    said = f"a thread of {short(line.graph)}"
    title = f"{short(line.thread)} has had no checkpoint for {lasted}"
    return Trouble(line.level, "ask", "clock", title, said, thread=line.thread)


def _schedules(service: Service, tenant: str, graph: str | None) -> Iterator[Trouble]:
    if not offers(service.store, ClaimStore):
        return
    for app in service.apps.values():
        if app.tenant != tenant or graph not in (None, app.graph.name):
            continue
        place = f"/graphs/{segment(app.graph.name)}"
        for info in Schedules(app).all():
            name = short(info.schedule.name)
            if info.status in ("failing", "held"):
                title = f"{name} is {info.status}"
                yield Trouble(3, "bad", "calendar", title, "a schedule", place)
            elif info.missed:
                title = f"{name} missed {plural(info.missed, 'tick')}"
                yield Trouble(1, "ask", "calendar", title, "a schedule", place)
