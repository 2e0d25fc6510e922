"""Graphs as LangGraph's assistants, and what this server is."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from milecastle.app.application import App
from milecastle.model.manifest import END, START, Manifest
from milecastle.server.chat.langgraph.describing import answered
from milecastle.server.chat.langgraph.documents import Assistant, AssistantsRequest
from milecastle.server.graphs import served
from milecastle.server.redaction import Redact, after_hook
from milecastle.server.request import ApiRequest
from milecastle.version import __version__
from milecastle.views.graphs import input_schema

__all__ = ["get_assistant", "get_graph", "get_schemas", "info", "search_assistants"]

_ALWAYS: Final = "1970-01-01T00:00:00Z"
"""Graphs are part of the code: nobody created them here."""


async def info(request: ApiRequest) -> Response:
    """What this server is."""
    flags = {"assistants": True, "crons": False, "langsmith": False}
    return await answered(request, dict, {"version": __version__, "flags": flags})


async def search_assistants(request: ApiRequest) -> Response:
    """The graphs that this server runs."""
    asked: AssistantsRequest = request.body
    names = [
        name
        for name in request.service.apps
        if asked.graph_id in (None, name) and (asked.name or "") in name
    ]
    page = names[asked.offset : asked.offset + asked.limit]
    return await answered(request, list, [_assistant(name) for name in page])


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


async def get_assistant(request: ApiRequest) -> Response:
    """A graph."""
    return await answered(request, _assistant, served(request).graph.name)


async def get_schemas(request: ApiRequest) -> Response:
    """The JSON schemas of a graph. Input, output and state have the same channels."""
    return await answered(request, _schemas, served(request), request.service.redact)


def _schemas(app: App[Any], redact: Redact | None) -> dict[str, Any]:
    schema = after_hook("input", input_schema(app.graph), redact)
    return {
        "graph_id": app.graph.name,
        "input_schema": schema,
        "output_schema": schema,
        "state_schema": schema,
        "config_schema": None,
        "context_schema": None,
    }


async def get_graph(request: ApiRequest) -> Response:
    """The nodes and edges of a graph."""
    return await answered(request, _drawn, served(request).graph.manifest)


def _drawn(manifest: Manifest) -> dict[str, Any]:
    names = [START, *(node.name for node in manifest.nodes), END]
    nodes = [{"id": name, "type": "runnable", "data": {"name": name}} for name in names]
    edges = [
        {"source": one.source, "target": one.target, "conditional": one.kind != "fixed"}
        for one in manifest.edges
    ]
    return {"nodes": nodes, "edges": edges}
