from __future__ import annotations

from typing import Any, Final

from milecastle.model.manifest import END, START
from milecastle.server.chat.langgraph.documents import Assistant, AssistantsRequest
from milecastle.server.graphs import served
from milecastle.server.redaction import after_hook
from milecastle.server.request import ApiRequest
from milecastle.version import __version__
from milecastle.views.graphs import input_schema

_ALWAYS: Final = "1970-01-01T00:00:00Z"
"""Graphs are part of the code: nobody created them here."""


def info(request: ApiRequest) -> dict[str, Any]:
    flags = {"assistants": True, "crons": False, "langsmith": False}
    return {"version": __version__, "flags": flags}


def search_assistants(request: ApiRequest) -> list[Assistant]:
    asked: AssistantsRequest = request.body
    names = [
        name
        for name in request.service.apps
        if asked.graph_id in (None, name) and (asked.name or "") in name
    ]
    return [_assistant(name) for name in names[asked.offset : asked.offset + asked.limit]]


def _assistant(graph: str) -> Assistant:
    return Assistant(
        assistant_id=graph,
        graph_id=graph,
        name=graph,
        created_at=_ALWAYS,
        updated_at=_ALWAYS,
        config={},
        context={},
        metadata={},
        version=1,
        description=None,
    )


def get_assistant(request: ApiRequest) -> Assistant:
    return _assistant(served(request).graph.name)


def get_schemas(request: ApiRequest) -> dict[str, Any]:
    graph = served(request).graph
    schema = after_hook("input", input_schema(graph), request.service.redact)
    return {
        "graph_id": graph.name,
        "input_schema": schema,
        "output_schema": schema,
        "state_schema": schema,
        "config_schema": None,
        "context_schema": None,
    }


def get_graph(request: ApiRequest) -> dict[str, Any]:
    manifest = served(request).graph.manifest
    names = [START, *(node.name for node in manifest.nodes), END]
    nodes = [{"id": name, "type": "runnable", "data": {"name": name}} for name in names]
    edges = [
        {"source": one.source, "target": one.target, "conditional": one.kind != "fixed"}
        for one in manifest.edges
    ]
    return {"nodes": nodes, "edges": edges}
