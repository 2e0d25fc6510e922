"""The compiled graph: immutable, thread-safe, everything looked up and nothing searched."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from milecastle.errors import DefinitionError
from milecastle.graph.builder import Declared
from milecastle.graph.caller import caller
from milecastle.graph.edges import Exits, edge_infos, exits_of
from milecastle.graph.nodes import Node
from milecastle.graph.schema import StateSchema
from milecastle.model.manifest import START, Manifest, NodeInfo
from milecastle.model.policies import ExecutionConfig

if TYPE_CHECKING:
    from milecastle.graph.findings import Findings

__all__ = ["CompiledGraph", "compile_graph"]


class CompiledGraph(msgspec.Struct, frozen=True, kw_only=True):
    """A graph that passed every check. ``order`` ranks nodes as they were declared.

    ``gotos`` are the nodes that each node may lead to by whatever way.
    """

    name: str
    schema: StateSchema
    nodes: Mapping[str, Node]
    order: Mapping[str, int]
    exits: Mapping[str, Exits]
    gotos: Mapping[str, frozenset[str]]
    config: ExecutionConfig
    manifest: Manifest
    fingerprint: str
    is_async: bool
    defers: bool = False
    interrupt_before: frozenset[str] = frozenset()
    interrupt_after: frozenset[str] = frozenset()

    @property
    def stops(self) -> bool:
        """Whether a run looks at a step before running it: something in it may have to wait."""
        return self.defers or bool(self.interrupt_before or self.interrupt_after)


def compile_graph(
    declared: Declared,
    *,
    interrupt_before: tuple[str, ...] = (),
    interrupt_after: tuple[str, ...] = (),
) -> CompiledGraph:
    """Check the whole graph; freeze it, or raise ``DefinitionError`` with every problem."""
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
    exits = exits_of((START, *nodes), declared.edges, findings.routers)
    manifest = Manifest(
        nodes=tuple(NodeInfo(node.name, node.version) for node in nodes.values()),
        edges=edge_infos(declared.edges, findings.routers),
        channels=tuple(channel.info() for channel in schema.channels.values()),
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
    )


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
