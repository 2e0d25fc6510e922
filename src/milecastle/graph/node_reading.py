"""Reading one declared node: a function, or a subgraph, and where it may lead by its own word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from milecastle.graph.builder import NodeDeclaration
from milecastle.graph.compiled import CompiledGraph
from milecastle.graph.edges import Router
from milecastle.graph.findings import Findings
from milecastle.graph.nodes import Node, NotCallable, read_node
from milecastle.graph.schema import StateSchema
from milecastle.graph.source import returned_keys
from milecastle.graph.subgraphs import Subgraph, shared_keys, unshareable_keys
from milecastle.graph.targets import goto_of

__all__ = ["read_declared"]


def read_declared(
    declaration: NodeDeclaration, local_names: Mapping[str, Any], findings: Findings
) -> None:
    """Add a node to the findings, and the ways that its declaration opens."""
    graph = getattr(declaration.function, "graph", None)
    gotos = declaration.policy.goto
    if isinstance(graph, CompiledGraph):
        findings.nodes[declaration.name] = _read_subgraph(declaration, graph, findings)
    else:
        node = _read_function(declaration, findings)
        if node is None:
            return
        findings.nodes[declaration.name] = node
        findings.writes[declaration.name] = returned_keys(node.function)
        gotos = gotos or goto_of(node.function, local_names)
    _add_way("goto", gotos, declaration, findings)
    if declaration.policy.on_error is not None:
        _add_way("on error", (declaration.policy.on_error,), declaration, findings)


def _read_function(declaration: NodeDeclaration, findings: Findings) -> Node | None:
    policy = declaration.policy
    try:
        if policy.give is not None or policy.take is not None:
            raise NotCallable(
                f"node '{declaration.name}' has give= or take= and is no subgraph",
                "leave them out, or pass a compiled graph as the node",
            )
        return read_node(declaration.name, declaration.function, policy, declaration.place)
    except NotCallable as error:
        findings.report("MC118", str(error), declaration.place, error.suggestion)
        return None


def _read_subgraph(declaration: NodeDeclaration, graph: CompiledGraph, findings: Findings) -> Node:
    policy = declaration.policy
    if findings.schema is not None:
        _check_keys(declaration, findings.schema, graph.schema, findings)
    return Node(
        name=declaration.name,
        function=declaration.function,
        is_async=False,
        parameters=(),
        leading=0,
        positional=False,
        wants_context=False,
        simple=False,
        policy=policy,
        place=declaration.place,
        subgraph=_subgraph_of(declaration, graph, findings.schema),
    )


def _subgraph_of(
    declaration: NodeDeclaration, graph: CompiledGraph, parent: StateSchema | None
) -> Subgraph | None:
    if parent is None:
        return None
    interval = getattr(declaration.function, "interval", 1)
    return Subgraph(graph, parent, interval, declaration.policy.give, declaration.policy.take)


def _check_keys(
    declaration: NodeDeclaration, parent: StateSchema, child: StateSchema, findings: Findings
) -> None:
    policy, name = declaration.policy, declaration.name
    if policy.timeout is not None:
        findings.report(
            "MC124",
            f"the subgraph '{name}' has a timeout",
            declaration.place,
            "give the timeout to the nodes inside it",
        )
    if not shared_keys(parent, child) and (policy.give is None or policy.take is None):
        findings.report(
            "MC124",
            f"the state of the subgraph '{name}' shares no key with the state of this graph",
            declaration.place,
            "give the node give= and take=, the ways into its state and out of it",
        )
    for key in [] if policy.take else unshareable_keys(parent, child):
        findings.report(
            "MC124",
            f"the subgraph '{name}' shares the key '{key}', whose reducer is your own: what it "
            "adds cannot be told",
            declaration.place,
            "give the node take=, which makes the update of its last state",
        )


def _add_way(
    label: str, targets: tuple[str, ...], declaration: NodeDeclaration, findings: Findings
) -> None:
    if targets:
        findings.routers.append(
            Router(
                source=declaration.name,
                function=_never_asked,
                targets={target: target for target in targets},
                name=label,
                asked=False,
                place=declaration.place,
            )
        )


def _never_asked(state: Any) -> Any:
    raise AssertionError("this way is taken by the node's own word")
