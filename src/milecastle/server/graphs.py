"""The graphs that a server runs."""

from __future__ import annotations

from typing import Any

import msgspec
import msgspec.structs

from milecastle.app.application import App
from milecastle.model.manifest import Manifest
from milecastle.server.documents import GraphLine, GraphsDocument
from milecastle.server.problems import NOT_FOUND, Refused
from milecastle.server.request import ApiRequest, Reply
from milecastle.server.service import Service
from milecastle.views.documents import GraphDocument
from milecastle.views.graphs import input_schema

__all__ = ["graph_document", "graphs_document", "list_graphs", "served", "show_graph"]


async def list_graphs(request: ApiRequest) -> Reply:
    """The graphs that this server runs."""
    return Reply(await request.off_loop(graphs_document, request.service))


def graphs_document(service: Service) -> GraphsDocument:
    """The graphs of a service."""
    graphs = [app.graph for app in service.apps.values()]
    lines = (
        GraphLine(graph=one.name, fingerprint=one.fingerprint, nodes=tuple(one.nodes))
        for one in graphs
    )
    return GraphsDocument(graphs=tuple(lines))


async def show_graph(request: ApiRequest) -> Reply:
    """A graph: its manifest, its drawing as SVG, and the JSON schema of its inputs."""
    return Reply(await request.off_loop(graph_document, served(request)))


def served(request: ApiRequest) -> App[Any]:
    """The app of the graph that the path names."""
    app = request.service.apps.get(request.path["graph"])
    if app is None:
        raise Refused(NOT_FOUND, 404, "this server does not have the graph")
    return app


def _manifest(manifest: Manifest) -> dict[str, Any]:
    """A manifest as JSON. Nodes and edges may be many: each is converted by its own call."""
    few = msgspec.structs.replace(manifest, nodes=(), edges=())
    return {
        **msgspec.to_builtins(few),
        "nodes": [msgspec.to_builtins(node) for node in manifest.nodes],
        "edges": [msgspec.to_builtins(edge) for edge in manifest.edges],
    }


def graph_document(app: App[Any]) -> GraphDocument:
    """The graph of an app."""
    graph = app.graph
    return GraphDocument(
        graph=graph.name,
        fingerprint=graph.fingerprint,
        form="svg",
        drawing=app.draw("svg"),
        manifest=_manifest(graph.manifest),
        input=input_schema(graph),
    )
