"""Builds: the file runs in the apps' workspaces, their reuse, and the next plan.

A plan is made only on request: it reads the declared files.
"""

from __future__ import annotations

from typing import Any, Final, get_args

import msgspec

from milecastle.app.application import App
from milecastle.builds.workspace import Workspace
from milecastle.errors import InvalidRequest
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Mode, RunRecord
from milecastle.server.documents import HttpDocument
from milecastle.server.graphs import served
from milecastle.server.pages.rendering import BYTES, fitting, shown_size
from milecastle.server.pages.view import PageView, WebPage, of_tenant
from milecastle.server.problems import NOT_FOUND, Refused
from milecastle.server.request import ApiRequest
from milecastle.views.builds import FileThreads, plan_document
from milecastle.views.documents import PlanLine

_ROWS: Final = 30
_LOOKED_AT: Final = 300
"""Rows of a page, and how many runs are looked at for it."""


class BuildsQuery(HttpDocument, frozen=True):
    """Graph to list, and the run after which older ones begin."""

    graph: str | None = None
    after: str | None = None


class PlanQuery(HttpDocument, frozen=True):
    mode: Mode = "incremental"


class BuildLine(msgspec.Struct, frozen=True, kw_only=True):
    graph: str
    run: Any
    executed: int
    reused: int


@WebPage("GET", "/builds", "read", query=BuildsQuery, label="Builds")
def list_builds(request: ApiRequest) -> PageView:
    query: BuildsQuery = request.query
    apps = {name: app for name, app in request.service.apps.items() if app.workspace is not None}
    graph = query.graph or next(iter(apps), None)
    if query.graph and query.graph not in apps:
        raise Refused(NOT_FOUND, 404, "this server has no builds of the graph")
    lines, next_ = list[BuildLine](), None
    if graph is not None:
        lines, next_ = _lines(apps[graph], request.tenant, query.after or None)
    chosen = {"graph": query.graph or None, "after": query.after or None}
    return PageView(
        template="builds.html",
        live="_builds.html",
        title="Builds",
        commands=(("runs", *of_tenant(request.tenant)), ("plan",)),
        values={
            "graphs": sorted(apps),
            "graph": graph,
            "lines": lines,
            "chosen": chosen,
            "next": {**chosen, "after": next_} if next_ else None,
        },
    )


def _lines(app: App[Any], tenant: str, after: str | None) -> tuple[list[BuildLine], str | None]:
    files, name = FileThreads(_workspace(app), tenant), app.graph.name
    lines: list[BuildLine] = []
    size, last = 0, after
    for count, record in enumerate(files.recent(after)):
        size += 500 + shown_size(record.key.thread)
        if len(lines) == _ROWS or size > BYTES or count == _LOOKED_AT:
            return lines, last
        last = record.run_id
        lines += [_line(files, record)] if record.graph in ("", name) else []
    return lines, None


def _line(files: FileThreads, record: RunRecord) -> BuildLine:
    document = files.show_document(record)
    executed = sum(node.run_id == record.run_id for node in document.nodes)
    return BuildLine(
        graph=record.graph,
        run=document.run,
        executed=executed,
        reused=len(document.nodes) - executed,
    )


def _workspace(app: App[Any]) -> Workspace:
    if app.workspace is None:
        raise Refused(NOT_FOUND, 404, "the graph has no workspace, and so no builds")
    return app.workspace


@WebPage("GET", "/builds/{graph}/runs/{run}", "read")
def show_build(request: ApiRequest) -> PageView:
    files = FileThreads(_workspace(served(request)), request.tenant)
    record = files.run(request.path["run"])
    if record is None:
        raise Refused(NOT_FOUND, 404, "there is no such build")
    document = files.show_document(record)
    nodes = list(fitting(document.nodes, _node_size))
    address = f"{document.thread}@{document.run.run_id}"
    return PageView(
        template="build.html",
        live="_build.html",
        title="Build",
        commands=(("show", *of_tenant(request.tenant), "--", address),),
        values={
            "graph": request.path["graph"],
            "document": document,
            "nodes": nodes,
            "left": len(document.nodes) - len(nodes),
        },
    )


def _node_size(node: Any) -> int:
    return 300 + shown_size(node.node) + sum(map(shown_size, node.outputs))


@WebPage("GET", "/builds/{graph}/plan", "read", query=PlanQuery)
def show_plan(request: ApiRequest) -> PageView:
    mode: Mode = request.query.mode
    app = served(request)
    _workspace(app)
    key = ThreadKey(request.tenant, app.graph.name)
    try:
        document = plan_document(key.thread, app.plan(mode=mode, thread=key))
    except OSError as error:
        raise InvalidRequest(f"the files cannot be read: {error.strerror}") from None
    nodes = list(fitting(document.nodes, _plan_size))
    return PageView(
        template="plan.html",
        title="Plan",
        commands=(("plan", *of_tenant(request.tenant), f"--mode={mode}"),),
        values={
            "graph": app.graph.name,
            "document": document,
            "modes": get_args(Mode),
            "nodes": nodes,
            "left": len(document.nodes) - len(nodes),
            "refused": list(fitting(document.refused, shown_size, 50_000)),
        },
    )


def _plan_size(line: PlanLine) -> int:
    return 300 + sum(40 + shown_size(text) for text in (line.node, *line.reasons, *line.restore))
