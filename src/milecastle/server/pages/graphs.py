from __future__ import annotations

import base64
import shlex
from hashlib import sha256
from secrets import token_hex
from typing import Any, Final, Literal, get_args

import msgspec
import msgspec.structs
from markupsafe import escape
from starlette.responses import Response

from milecastle.app.application import App
from milecastle.draw.sketch import notes_of
from milecastle.draw.style import STYLE
from milecastle.errors import InvalidAnswer, InvalidRequest, MilecastleError
from milecastle.fleet.schedules import Schedules
from milecastle.ports.claims import ClaimStore
from milecastle.server.documents import HttpDocument, RunRequest
from milecastle.server.graphs import graph_document, graphs_document, served
from milecastle.server.pages.drawing import NodeLook, draw_page
from milecastle.server.pages.rendering import command_line, fitting, segment, shown_size
from milecastle.server.pages.schedules import when_said
from milecastle.server.pages.schema_forms import SchemaForm, form_fields, parsed, typed_in
from milecastle.server.pages.timeline import folded
from milecastle.server.pages.versions import quick_fits, version_rows
from milecastle.server.pages.view import PagePlace, PageView, WebPage, of_tenant
from milecastle.server.pages.words import duration, plural
from milecastle.server.problems import Refused, problem_document
from milecastle.server.redaction import Redact, after_hook, without_values
from milecastle.server.request import ApiRequest
from milecastle.server.runs import submit_run
from milecastle.support.printable import printable
from milecastle.views.documents import ScheduleLine
from milecastle.views.graphs import input_schema
from milecastle.views.lines import schedule_line
from milecastle.views.node_statistics import NodeStatistic, NodeStatistics
from milecastle.views.values import as_json

ColouredBy = Literal["failures", "time", "plain"]

_VERSIONS: Final = 20
_HIDDEN: Final = "[hidden]"
_PART: Final = 50_000
"""The bytes that each part of a page may take."""
_POLICY: Final = (
    "default-src 'none'; frame-ancestors 'none'; style-src 'sha256-"
    + base64.b64encode(sha256(STYLE.encode()).digest()).decode()
    + "'"
)
_EXAMPLES: Final[dict[str, Any]] = {
    "integer": 1,
    "number": 1.5,
    "string": "text",
    "boolean": True,
    "array": [],
    "object": {},
}


class ColourQuery(HttpDocument, frozen=True):
    by: ColouredBy = "failures"


class StartForm(SchemaForm, frozen=True, kw_only=True):
    thread: str
    key: str = ""
    priority: str = ""
    delay: str = ""
    config: str = ""


@WebPage("GET", "/graphs", "read", label="Graphs")
def list_graphs(request: ApiRequest) -> PageView:
    lines = graphs_document(request.service).graphs
    shown = list(fitting(lines, lambda line: 400 + shown_size(line.graph)))
    return PageView(
        template="graphs.html",
        title="Graphs",
        commands=(("graph",),),
        values={"lines": shown, "left": len(lines) - len(shown)},
    )


@WebPage("GET", "/graphs/{graph}", "read", query=ColourQuery)
def show_graph(request: ApiRequest) -> PageView:
    return _view(request, served(request), by=request.query.by)


@WebPage("GET", "/graphs/{graph}/drawing.svg", "read")
def draw_graph(request: ApiRequest) -> Response:
    """A graph's drawing. Its style is inside it, and nothing else is loaded."""
    headers = {"Content-Security-Policy": _POLICY}
    return Response(served(request).draw("svg"), headers=headers, media_type="image/svg+xml")


def _view(
    request: ApiRequest,
    app: App[Any],
    form: StartForm | None = None,
    error: Exception | None = None,
    by: ColouredBy = "failures",
) -> PageView:
    document, redact = graph_document(app), request.service.redact
    error = None if error is None else without_values(error, redact)
    manifest = after_hook("manifest", document.manifest, redact)
    nodes, channels = document.manifest["nodes"], document.manifest["channels"]
    if manifest != document.manifest:  # a type may list values
        channels = [{**channel, "type": _HIDDEN} for channel in channels]
    targets: dict[str, list[str]] = {}
    for edge in document.manifest["edges"]:
        targets.setdefault(edge["source"], []).append(edge["target"])
    for targeted in targets.values():
        targeted[:] = dict.fromkeys(targeted)
    counted = request.service.statistics.of(request.tenant, document.graph)
    known = {one.node: one for one in counted.nodes}
    rows = [
        {**node, "next": targets.get(node["name"], []), "stat": known.get(node["name"])}
        for node in nodes
    ]
    drawing = draw_page(
        app.graph.manifest,
        {node["name"]: _look(known.get(node["name"]), counted, by) for node in nodes},
        lambda name: f"#node-{segment(name)}",
        notes=notes_of(app.graph),
    )
    fits = quick_fits(request, app)
    versions = version_rows(request, app, fits)
    return PageView(
        template="graph.html",
        title=document.graph,
        status=200 if error is None else problem_document(error)[0].status,
        commands=(("graph",), _command(request, app, form)),
        values={
            "document": document,
            "nodes": list(fitting(rows, _size, _PART)),
            "node_count": len(nodes),
            "drawing": drawing,
            "by": by,
            "ways": get_args(ColouredBy),
            "runs": counted.runs,
            "slowest": max((one.p95 for one in counted.nodes), default=0),
            "versions": versions[:_VERSIONS],
            "version_count": len(versions),
            "is_cut": fits is not None and fits.is_cut,
            "channels": list(fitting(channels, _size, _PART)),
            "channel_count": len(channels),
            "schedules": _schedules(request, app),
            "manifest": _whole(manifest),
            "schema": _whole(after_hook("input", document.input, redact)),
            "start": start_values(request, app, form, error),
        },
    )


def _look(stat: NodeStatistic | None, all_: NodeStatistics, by: ColouredBy) -> NodeLook:
    if stat is None or by == "plain":
        return NodeLook("plain")
    if by == "time":
        most = max(one.p95 for one in all_.nodes)
        return NodeLook("plain", f"p95 {duration(stat.p95 / 1e6)}", stat.p95 / most if most else 0)
    if not stat.failed:
        return NodeLook("done", plural(stat.attempts, "run"))
    tried = stat.attempts + stat.failed
    return NodeLook("bad", f"{stat.failed} of {plural(tried, 'run')} failed", stat.failed / tried)


def _size(row: dict[str, Any]) -> int:
    texts = [*row.values(), *row.get("next", ())]
    return 300 + sum(30 + shown_size(text) for text in texts if isinstance(text, str))


def _whole(value: Any) -> Any:
    return value if len(escape(as_json(value, indent=2)).encode()) <= _PART else None


def _schedules(request: ApiRequest, app: App[Any]) -> list[ScheduleLine] | None:
    if request.tenant != app.tenant or not isinstance(request.service.store, ClaimStore):
        return None
    lines = [
        msgspec.structs.replace(schedule_line(info), when=when_said(info.schedule))
        for info in Schedules(app).all()
    ]
    return list(fitting(lines, lambda line: 600 + shown_size(line.name), _PART))


def _command(request: ApiRequest, app: App[Any], form: StartForm | None) -> tuple[str, ...]:
    example = as_json(_example(input_schema(app.graph)))
    thread = form.thread if form is not None else "NAME"
    return ("submit", *of_tenant(request.tenant), f"--thread={thread}", f"--input={example}")


def _example(schema: dict[str, Any]) -> dict[str, Any]:
    kinds = ((name, str(one.get("type"))) for name, one in schema["properties"].items())
    found = [(name, _EXAMPLES[kind]) for name, kind in kinds if kind in _EXAMPLES]
    return dict(found[:10])


def start_values(
    request: ApiRequest,
    app: App[Any],
    form: StartForm | None = None,
    error: Exception | None = None,
) -> dict[str, Any] | None:
    if "run" not in request.identity.scopes:
        return None
    name, schema = app.graph.name, input_schema(app.graph)
    proposal = StartForm(thread=f"{printable(name[:100])}-{token_hex(4)}")
    return {
        "action": f"/graphs/{segment(name)}/runs",
        "graph": name,
        "example": as_json(_example(schema)),
        "fields": form_fields(
            after_hook("input", schema, request.service.redact),
            {} if form is None else typed_in(form),
        ),
        "given": form or proposal,
        "has_config": app.graph.config_type is not None,
        "nodes": folded(node.name for node in app.graph.manifest.nodes),
        **_worker(request),
        "error": problem_document(error)[0].detail if error is not None else "",
        "samples": _samples(request, name, _example(schema)),
    }


def _worker(request: ApiRequest) -> dict[str, str]:
    """Where runs are executed; without a worker, the reason they are not."""
    store = request.service.store
    if request.service.worker is not None:
        return {"worker": "in this server", "trouble": ""}
    if not isinstance(store, ClaimStore):
        return {"worker": "the process that calls", "trouble": ""}
    alive = sum(not one.is_gone for one in store.workers())
    trouble = "" if alive else "What is submitted waits until a worker runs."
    return {"worker": plural(alive, "process", "processes"), "trouble": trouble}


def _samples(request: ApiRequest, graph: str, example: dict[str, Any]) -> dict[str, str]:
    http = request.http
    given = as_json(example)
    body = as_json({"graph": graph, "input": example})
    submit = ("submit", "--app=MODULE:ATTRIBUTE", "--thread=first", f"--input={given}")
    return {
        "shell": command_line(submit),
        "python": f'app.submit({example!r}, "first")',
        "curl": f"curl {http.url.scheme}://{http.headers['host']}/v1/threads/first/runs \\\n"
        '  -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/json" \\\n'
        f"  -d {shlex.quote(body)}",
    }


@WebPage("POST", "/graphs/{graph}/runs", "run", form=StartForm)
async def start_run(request: ApiRequest) -> PageView:
    form: StartForm = request.body
    app = served(request)
    try:
        key = request.service.key(request.tenant, form.thread)
        asked = await request.off_loop(_asked, app, form, request.service.redact)
        handle = await submit_run(request.service, key, asked)
    except (MilecastleError, Refused) as error:
        if "read" not in request.identity.scopes:
            raise
        return await request.off_loop(_view, request, app, form, error)
    thread = handle.thread.thread
    return PageView(
        template="started.html",
        title="Started",
        commands=(("show", *of_tenant(request.tenant), "--", thread),),
        values={"thread_name": thread, "state": handle.status},
        place=PagePlace("/threads/{thread}", {"thread": thread}),
    )


def _asked(app: App[Any], form: StartForm, redact: Redact | None) -> RunRequest:
    schema = input_schema(app.graph)
    given: dict[str, Any] = {"graph": app.graph.name, "key": form.key or None}
    try:
        given["input"] = parsed(schema, typed_in(form), after_hook("input", schema, redact))
    except InvalidAnswer as error:
        raise InvalidAnswer(error.message.replace("the answer", "the input", 1)) from None
    if form.config.strip():
        try:
            given["config"] = msgspec.json.decode(form.config)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise InvalidRequest("config is not JSON") from None
    for name, kind, text in (("priority", int, form.priority), ("delay", float, form.delay)):
        if text.strip():
            try:
                given[name] = kind(text)
            except ValueError:
                raise InvalidRequest(f"{name} is not a number") from None
    try:
        return msgspec.convert(given, RunRequest)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"it cannot be submitted: {error}") from None
