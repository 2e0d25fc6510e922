from __future__ import annotations

from typing import Any

import msgspec
import msgspec.structs

from milecastle.app.application import App
from milecastle.model.manifest import Manifest
from milecastle.server.documents import GraphLine, GraphsDocument
from milecastle.server.problems import NOT_FOUND, Refused
from milecastle.server.request import ApiRequest, Endpoint
from milecastle.server.service import Service
from milecastle.views.documents import GraphDocument
from milecastle.views.graphs import input_schema
from milecastle.views.values import plain


@Endpoint("GET", "/v1/graphs", "read", answers={200: GraphsDocument}, stores=False)
def list_graphs(request: ApiRequest) -> GraphsDocument:
    """List the graphs this server runs."""
    return graphs_document(request.service)


def graphs_document(service: Service) -> GraphsDocument:
    graphs = [app.graph for app in service.apps.values()]
    lines = (
        GraphLine(graph=one.name, fingerprint=one.fingerprint, nodes=tuple(one.nodes))
        for one in graphs
    )
    return GraphsDocument(graphs=tuple(lines))


@Endpoint(
    "GET", "/v1/graphs/{graph}", "read", answers={200: GraphDocument}, problems=(404,), stores=False
)
def show_graph(request: ApiRequest) -> GraphDocument:
    """Show a graph: manifest, drawing, JSON schema of inputs."""
    return graph_document(served(request))


def served(request: ApiRequest) -> App[Any]:
    app = request.service.apps.get(request.path["graph"])
    if app is None:
        raise Refused(NOT_FOUND, 404, "this server does not have the graph")
    return app


def _manifest(manifest: Manifest) -> dict[str, Any]:
    few = msgspec.structs.replace(manifest, nodes=(), edges=())
    return {
        **msgspec.to_builtins(few),
        "nodes": [msgspec.to_builtins(node) for node in manifest.nodes],
        "edges": [msgspec.to_builtins(edge) for edge in manifest.edges],
    }


def graph_document(app: App[Any]) -> GraphDocument:
    graph = app.graph
    return GraphDocument(
        graph=graph.name,
        fingerprint=graph.fingerprint,
        form="svg",
        drawing=app.draw("svg"),
        manifest=_manifest(graph.manifest),
        input=plain(input_schema(graph)),
    )
