"""The graphs that a server runs."""

from __future__ import annotations

from typing import Any

import msgspec

from milecastle.app.application import App
from milecastle.server.documents import GraphLine, GraphsDocument
from milecastle.server.exchange import Exchange, Reply
from milecastle.server.problems import NOT_FOUND, Refused
from milecastle.server.service import Service
from milecastle.views.documents import GraphDocument
from milecastle.views.graphs import input_schema

__all__ = ["graph_document", "graphs_document", "list_graphs", "served", "show_graph"]


async def list_graphs(exchange: Exchange) -> Reply:
    """The graphs that this server runs."""
    return Reply(graphs_document(exchange.service))


def graphs_document(service: Service) -> GraphsDocument:
    """The graphs of a service."""
    graphs = [app.graph for app in service.apps.values()]
    lines = (
        GraphLine(graph=one.name, fingerprint=one.fingerprint, nodes=tuple(one.nodes))
        for one in graphs
    )
    return GraphsDocument(graphs=tuple(lines))


async def show_graph(exchange: Exchange) -> Reply:
    """A graph: its manifest, its drawing as SVG, and the JSON schema of its inputs."""
    return Reply(graph_document(served(exchange)))


def served(exchange: Exchange) -> App[Any]:
    """The app of the graph that the path names."""
    app = exchange.service.apps.get(exchange.path["graph"])
    if app is None:
        raise Refused(NOT_FOUND, 404, "this server does not have the graph")
    return app


def graph_document(app: App[Any]) -> GraphDocument:
    """The graph of an app."""
    graph = app.graph
    return GraphDocument(
        graph=graph.name,
        fingerprint=graph.fingerprint,
        form="svg",
        drawing=app.draw("svg"),
        manifest=msgspec.to_builtins(graph.manifest),
        input=input_schema(graph),
    )
