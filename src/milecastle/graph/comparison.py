"""Compare two manifests: the changes, and their effect on a given thread.

A thread is affected if it would run something that was removed, or if its state no longer matches.
Additions do not strand a thread. Types and subgraphs that only one of the two has are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

import msgspec
import msgspec.structs

from milecastle.graph.edges import reachable
from milecastle.model.manifest import ChannelInfo, EdgeInfo, Manifest, NodeInfo, TypeInfo, TypeKind

NodePair = tuple[str, str]
Label = Callable[[str], str]

_KINDS: Final[Mapping[TypeKind, str]] = {
    "dict": "a TypedDict",
    "record": "a dataclass or struct",
    "model": "a pydantic model",
    "enum": "an enum",
}


class Renames(msgspec.Struct, frozen=True, kw_only=True):
    nodes: Mapping[str, str] = {}
    channels: Mapping[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self.nodes or self.channels)


class FieldChanges(msgspec.Struct, frozen=True, kw_only=True):
    added: tuple[ChannelInfo, ...] = ()
    removed: tuple[str, ...] = ()
    renamed: Mapping[str, str] = {}
    retyped: Mapping[str, tuple[str, str]] = {}
    loosened: tuple[str, ...] = ()
    tightened: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__struct_fields__)

    def changes(self, label: Label) -> list[str]:
        return [
            *(
                f"{label(field.name)} added"
                for field in self.added
                if field.name not in self.renamed.values()
            ),
            *(f"{label(name)} removed" for name in self.removed),
            *(f"{label(old)} renamed to '{new}'" for old, new in self.renamed.items()),
            *(
                f"{label(name)} changed from {before} to {after}"
                for name, (before, after) in self.retyped.items()
            ),
            *(f"{label(name)} is optional now" for name in self.loosened),
            *(f"{label(name)} is required now" for name in self.tightened),
        ]

    def misfits(self, label: Label) -> list[str]:
        renamed = self.renamed
        return [
            *(f"{label(old)} was removed (renamed to '{new}'?)" for old, new in renamed.items()),
            *(f"{label(name)} was removed" for name in self.removed),
            *(
                f"{label(name)} was {before} and is now {after}"
                for name, (before, after) in self.retyped.items()
            ),
            *(
                f"{label(field.name)} was added and is required, but the thread has no value for "
                "it: mark it NotRequired or give it a default"
                for field in self.added
                if not field.optional and field.name not in renamed.values()
            ),
        ]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Differences between ``new`` and ``old``, in both directions.

    A rename is a guess: one thing was removed and one with the same shape is in its place.
    ``changed_edges`` are conditional now and were not, or the other way round. ``types`` are those
    inside channels whose fields changed, ``kinds`` those that are another kind now;
    ``subgraphs`` are nodes whose graphs changed, and ``functions`` are former subgraphs.
    """

    old: Manifest
    new: Manifest
    added_nodes: tuple[str, ...] = ()
    removed_nodes: tuple[str, ...] = ()
    renamed_nodes: Mapping[str, str] = {}
    reversioned_nodes: tuple[str, ...] = ()
    added_edges: tuple[EdgeInfo, ...] = ()
    removed_edges: tuple[EdgeInfo, ...] = ()
    changed_edges: tuple[EdgeInfo, ...] = ()
    channels: FieldChanges = FieldChanges()
    types: Mapping[str, FieldChanges] = {}
    kinds: Mapping[str, tuple[TypeKind, TypeKind]] = {}
    subgraphs: Mapping[str, Difference] = {}
    functions: tuple[str, ...] = ()
    declared: Renames = Renames()

    def __bool__(self) -> bool:
        return self.old.fingerprint != self.new.fingerprint

    def summary(self) -> str:
        parts = [*self._node_changes(), *self._edge_changes(), *self._field_changes()]
        if not parts and self:
            more = _details(self.new) - _details(self.old)
            parts = ["nested types or subgraphs added" if more else "order changed"]
        return ", ".join(parts) or "nothing changed"

    def reasons_against(self, pending: Iterable[str]) -> list[str]:
        pending = tuple(dict.fromkeys(self.declared.nodes.get(name, name) for name in pending))
        return [*self._state_reasons(), *self._node_reasons(pending), *self._way_reasons(pending)]

    @property
    def is_readable(self) -> bool:
        kinds = {found.name: found.kind for found in self.new.types or ()}
        lacking = (
            kinds[name] in ("record", "model") and any(not field.optional for field in found.added)
            for name, found in self.types.items()
        )
        return not self.kinds and not any(lacking)

    def _node_changes(self) -> list[str]:
        return [
            *(f"node '{name}' added" for name in self.added_nodes),
            *(f"node '{name}' removed" for name in self.removed_nodes),
            *(f"node '{old}' renamed to '{new}'" for old, new in self.renamed_nodes.items()),
            *(f"node '{old}' renamed to '{new}'" for old, new in self.declared.nodes.items()),
            *(f"node '{name}' has another version" for name in self.reversioned_nodes),
            *(f"node '{name}' was a subgraph and is a function now" for name in self.functions),
            *(
                f"in subgraph '{name}': {difference.summary()}"
                for name, difference in self.subgraphs.items()
            ),
        ]

    def _edge_changes(self) -> list[str]:
        return [
            *(f"edge {edge.source} -> {edge.target} added" for edge in self.added_edges),
            *(f"edge {edge.source} -> {edge.target} removed" for edge in self.removed_edges),
            *(
                f"edge {edge.source} -> {edge.target} has another kind"
                for edge in self.changed_edges
            ),
        ]

    def _field_changes(self) -> list[str]:
        inside = [found.changes(self._field_of(name)) for name, found in self.types.items()]
        renamed = [f"{_key(old)} renamed to '{new}'" for old, new in self.declared.channels.items()]
        return [
            *renamed,
            *self.channels.changes(_key),
            *chain.from_iterable(inside),
            *self._kind_changes(),
        ]

    def _kind_changes(self) -> list[str]:
        return [
            f"{name} was {_KINDS[before]} and is now {_KINDS[after]}"
            for name, (before, after) in self.kinds.items()
        ]

    def _field_of(self, type: str) -> Label:
        kinds = {found.name: found.kind for found in self.new.types or ()}
        what = "member" if kinds.get(type) == "enum" else "field"
        return lambda name: f"{what} '{name}' of {type}"

    def _state_reasons(self) -> list[str]:
        inside = [found.misfits(self._field_of(name)) for name, found in self.types.items()]
        return [
            *self.channels.misfits(lambda name: f"state key '{name}'"),
            *chain.from_iterable(inside),
            *self._kind_changes(),
        ]

    def _node_reasons(self, pending: tuple[str, ...]) -> list[str]:
        reasons: list[str] = []
        for name in pending:
            if name in self.renamed_nodes:
                guess = self.renamed_nodes[name]
                remedy = f"renamed to '{guess}'? then declare renamed_from='{name}'"
                reasons.append(f"node '{name}' would run next but was removed ({remedy})")
            elif name in self.removed_nodes:
                reasons.append(f"node '{name}' would run next but was removed")
            elif name in self.functions:
                reasons.append(f"node '{name}' would run next, but it used to be a subgraph")
        return reasons

    def _way_reasons(self, pending: tuple[str, ...]) -> list[str]:
        ahead = {*pending, *reachable(_ways_on(self.old.edges), pending)}
        gone = {*self.removed_nodes, *self.renamed_nodes}
        nodes = [
            f"node '{node.name}' is ahead of the thread and was removed"
            for node in self.old.nodes
            if node.name in gone & ahead and node.name not in pending
        ]
        edges = [
            f"the edge from '{edge.source}' to '{edge.target}' is ahead of the thread and was "
            "removed"
            for edge in self._undetoured()
            if edge.source in ahead and edge.source not in gone and edge.target not in gone
        ]
        return nodes + edges

    def _undetoured(self) -> list[EdgeInfo]:
        ways = _ways_on(self.new.edges)
        inserted = {name: ways[name] for name in self.added_nodes if name in ways}
        lost: list[EdgeInfo] = []
        for source, edges in _by_source(self.removed_edges).items():
            first = ways.get(source, [])
            arrived = {*first, *reachable(inserted, first)}
            lost += [edge for edge in edges if edge.target not in arrived]
        return lost


def compare(old: Manifest, new: Manifest) -> Difference:
    declared = Renames(
        nodes=_declared_for(old.nodes, new.nodes),
        channels=_declared_for(old.channels, new.channels),
    )
    old = _under_new_names(old, declared)
    old_nodes = {node.name: node for node in old.nodes}
    new_nodes = {node.name: node for node in new.nodes}
    renamed_nodes = _renamed_nodes(old, new)
    old_ways, new_ways = _kinds(old), _kinds(new)
    edges = {(edge.source, edge.target): edge for edge in (*old.edges, *new.edges)}
    return Difference(
        old=old,
        new=new,
        added_nodes=_only(new_nodes, old_nodes, renamed_nodes.values()),
        removed_nodes=_only(old_nodes, new_nodes, renamed_nodes),
        renamed_nodes=renamed_nodes,
        reversioned_nodes=tuple(
            name
            for name, node in new_nodes.items()
            if name in old_nodes and old_nodes[name].version != node.version
        ),
        added_edges=tuple(edges[way] for way in new_ways if way not in old_ways),
        removed_edges=tuple(edges[way] for way in old_ways if way not in new_ways),
        changed_edges=tuple(
            edges[way] for way in new_ways if old_ways.get(way, new_ways[way]) != new_ways[way]
        ),
        channels=_compare_fields(old.channels, new.channels),
        types=_compare_types(old, new),
        kinds={
            now.name: (then.kind, now.kind)
            for then, now in _types_of_both(old, new)
            if then.kind != now.kind
        },
        subgraphs=_compare_subgraphs(old_nodes, new_nodes),
        functions=tuple(
            name
            for name, node in new_nodes.items()
            if name in old_nodes and old_nodes[name].subgraph and not node.subgraph
        ),
        declared=declared,
    )


def _declared_for(
    old: Sequence[NodeInfo | ChannelInfo], new: Sequence[NodeInfo | ChannelInfo]
) -> dict[str, str]:
    """New names by former ones, if the former is gone."""
    before, after = {one.name for one in old}, {one.name for one in new}
    found: dict[str, str] = {}
    for one in new:
        former = [name for name in one.renamed_from or () if name in before - after]
        if former and one.name not in before:
            found[former[0]] = one.name
    return found


def _under_new_names(manifest: Manifest, renames: Renames) -> Manifest:
    if not renames:
        return manifest
    replace, nodes, channels = msgspec.structs.replace, renames.nodes, renames.channels
    return replace(
        manifest,
        nodes=tuple(replace(one, name=nodes.get(one.name, one.name)) for one in manifest.nodes),
        edges=tuple(
            replace(
                edge,
                source=nodes.get(edge.source, edge.source),
                target=nodes.get(edge.target, edge.target),
            )
            for edge in manifest.edges
        ),
        channels=tuple(
            replace(one, name=channels.get(one.name, one.name)) for one in manifest.channels
        ),
    )


def _compare_types(old: Manifest, new: Manifest) -> dict[str, FieldChanges]:
    compared = {
        now.name: _compare_fields(then.fields, now.fields)
        for then, now in _types_of_both(old, new)
        if then.kind == now.kind
    }
    return {name: changes for name, changes in compared.items() if changes}


def _types_of_both(old: Manifest, new: Manifest) -> list[tuple[TypeInfo, TypeInfo]]:
    before = {found.name: found for found in old.types or ()}
    return [(before[now.name], now) for now in new.types or () if now.name in before]


def _compare_subgraphs(
    old: Mapping[str, NodeInfo], new: Mapping[str, NodeInfo]
) -> dict[str, Difference]:
    compared = {
        name: compare(old[name].subgraph or node.subgraph, node.subgraph)
        for name, node in new.items()
        if name in old and node.subgraph
    }
    return {name: difference for name, difference in compared.items() if difference}


def _compare_fields(old: Iterable[ChannelInfo], new: Iterable[ChannelInfo]) -> FieldChanges:
    before, after = {field.name: field for field in old}, {field.name: field for field in new}
    kept = [(before[name], after[name]) for name in after if name in before]
    renamed = _renamed_fields(before, after)
    return FieldChanges(
        added=tuple(field for name, field in after.items() if name not in before),
        removed=_only(before, after, renamed),
        renamed=renamed,
        retyped={
            then.name: (_shape(then), _shape(now))
            for then, now in kept
            if _shape(then) != _shape(now)
        },
        loosened=tuple(now.name for then, now in kept if now.optional and not then.optional),
        tightened=tuple(now.name for then, now in kept if then.optional and not now.optional),
    )


def _details(manifest: Manifest) -> set[str]:
    types = {found.name for found in manifest.types or ()}
    return types | {f"node {node.name}" for node in manifest.nodes if node.subgraph}


def _key(name: str) -> str:
    return f"key '{name}'"


def _only(here: Iterable[str], there: Iterable[str], besides: Iterable[str]) -> tuple[str, ...]:
    left_out = {*there, *besides}
    return tuple(name for name in here if name not in left_out)


def _shape(channel: ChannelInfo) -> str:
    if channel.reducer == "last":
        return channel.type
    return f"{channel.type} with reducer {channel.reducer}"


def _kinds(manifest: Manifest) -> dict[NodePair, set[str]]:
    kinds: dict[NodePair, set[str]] = {}
    for edge in manifest.edges:
        kinds.setdefault((edge.source, edge.target), set()).add(edge.kind)
    return kinds


def _renamed_nodes(old: Manifest, new: Manifest) -> dict[str, str]:
    olds = {node.name: None for node in old.nodes}
    news = {node.name: None for node in new.nodes}
    old_ways, new_ways = _ways_of_each(old), _ways_of_each(new)
    came: dict[frozenset[NodePair], list[str]] = {}
    for name in news:
        if name not in olds:
            came.setdefault(new_ways.get(name, frozenset()), []).append(name)
    renamed: dict[str, str] = {}
    for name in olds:
        candidates = came.get(old_ways.get(name, frozenset()))
        if name not in news and candidates:
            renamed[name] = candidates.pop(0)
    return renamed


def _ways_of_each(manifest: Manifest) -> dict[str, frozenset[NodePair]]:
    ways: dict[str, set[NodePair]] = {}
    for edge in manifest.edges:
        for name in (edge.source, edge.target):
            source = "" if edge.source == name else edge.source
            target = "" if edge.target == name else edge.target
            ways.setdefault(name, set()).add((source, target))
    return {name: frozenset(found) for name, found in ways.items()}


def _renamed_fields(
    old: Mapping[str, ChannelInfo], new: Mapping[str, ChannelInfo]
) -> dict[str, str]:
    came: dict[str, list[str]] = {}
    for name, field in new.items():
        if name not in old:
            came.setdefault(_shape(field), []).append(name)
    renamed: dict[str, str] = {}
    for name, field in old.items():
        if name not in new and came.get(_shape(field)):
            renamed[name] = came[_shape(field)].pop(0)
    return renamed


def _by_source(edges: Iterable[EdgeInfo]) -> dict[str, list[EdgeInfo]]:
    found: dict[str, list[EdgeInfo]] = {}
    for edge in edges:
        found.setdefault(edge.source, []).append(edge)
    return found


def _ways_on(edges: Iterable[EdgeInfo]) -> dict[str, list[str]]:
    return {source: [edge.target for edge in ways] for source, ways in _by_source(edges).items()}
