"""The graphs that a server runs."""

from __future__ import annotations

import msgspec

from milecastle.server.documents import GraphLine, GraphsDocument
from milecastle.server.exchange import Exchange, Reply
from milecastle.server.problems import NOT_FOUND, Refused
from milecastle.views.documents import GraphDocument
from milecastle.views.graphs import input_schema

__all__ = ["list_graphs", "show_graph"]


async def list_graphs(exchange: Exchange) -> Reply:
    """The graphs that this server runs."""
    graphs = [app.graph for app in exchange.service.apps.values()]
    lines = (
        GraphLine(graph=one.name, fingerprint=one.fingerprint, nodes=tuple(one.nodes))
        for one in graphs
    )
    return Reply(GraphsDocument(graphs=tuple(lines)))


async def show_graph(exchange: Exchange) -> Reply:
    """A graph: its manifest, its drawing as SVG, and the JSON schema of its inputs."""
    app = exchange.service.apps.get(exchange.path["graph"])
    if app is None:
        raise Refused(NOT_FOUND, 404, "this server does not have the graph")
    graph = app.graph
    document = GraphDocument(
        graph=graph.name,
        fingerprint=graph.fingerprint,
        form="svg",
        drawing=app.draw("svg"),
        manifest=msgspec.to_builtins(graph.manifest),
        input=input_schema(graph),
    )
    return Reply(document)
