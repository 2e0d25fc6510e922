from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import UNSET

from milecastle.errors import DefinitionError
from milecastle.graph.edges import Exits, edge_infos, exits_of, followed
from milecastle.graph.functions import caller
from milecastle.graph.schema import StateSchema
from milecastle.graph.state_types import describe_types
from milecastle.graph.structure import CompiledGraph, Declared, Node
from milecastle.model.manifest import START, Manifest, NodeInfo

if TYPE_CHECKING:
    from milecastle.graph.validation import Findings


def compile_graph(
    declared: Declared,
    *,
    interrupt_before: tuple[str, ...] = (),
    interrupt_after: tuple[str, ...] = (),
) -> CompiledGraph:
    # What only compiling needs is loaded here: `ast`, `difflib` and `inspect` are slow to import.
    from milecastle.graph.validation import examine

    findings = examine(declared, (*interrupt_before, *interrupt_after), caller())
    if findings.problems or findings.schema is None:
        raise DefinitionError(findings.problems)
    return _freeze(declared, findings, findings.schema, interrupt_before, interrupt_after)


def _freeze(
    declared: Declared,
    findings: Findings,
    schema: StateSchema,
    interrupt_before: tuple[str, ...],
    interrupt_after: tuple[str, ...],
) -> CompiledGraph:
    nodes = dict(findings.nodes)
    edges, routers = followed(declared.edges, findings.routers, declared.exit_points)
    exits = exits_of((START, *nodes), edges, routers)
    manifest = Manifest(
        nodes=tuple(_describe_node(node) for node in nodes.values()),
        edges=edge_infos(edges, routers),
        channels=tuple(channel.info() for channel in schema.channels.values()),
        types=describe_types(channel.annotation for channel in schema.channels.values()) or UNSET,
    )
    return CompiledGraph(
        name=declared.name,
        schema=schema,
        nodes=MappingProxyType(nodes),
        order=MappingProxyType({name: rank for rank, name in enumerate(nodes)}),
        exits=MappingProxyType(exits),
        gotos=_targets_of_each(manifest),
        config=declared.config,
        manifest=manifest,
        fingerprint=manifest.fingerprint,
        is_async=_any_async(nodes, exits),
        defers=any(node.policy.defer for node in nodes.values()),
        interrupt_before=frozenset(interrupt_before),
        interrupt_after=frozenset(interrupt_after),
        schedules=tuple(declared.schedules),
        hooks=tuple(declared.hooks),
        topics=declared.topics,
        config_type=declared.config_type,
        call_types=declared.call_types,
    )


def _describe_node(node: Node) -> NodeInfo:
    subgraph = UNSET if node.subgraph is None else node.subgraph.graph.manifest
    return NodeInfo(node.name, node.version, subgraph, node.policy.renamed_from or UNSET)


def _targets_of_each(manifest: Manifest) -> Mapping[str, frozenset[str]]:
    targets: dict[str, set[str]] = {}
    for edge in manifest.edges:
        targets.setdefault(edge.source, set()).add(edge.target)
    return MappingProxyType({source: frozenset(found) for source, found in targets.items()})


def _any_async(nodes: Mapping[str, Node], exits: Mapping[str, Exits]) -> bool:
    return (
        any(node.is_async for node in nodes.values())
        or any(node.subgraph.graph.is_async for node in nodes.values() if node.subgraph)
        or any(branch.is_async for exit in exits.values() for branch in exit.branches)
        or any(router.is_async for exit in exits.values() for router in exit.routers)
    )
