"""Comparing two manifests: what changed, and whether a given thread is touched by it.

A thread is touched when it would run something that is gone, or when its state no longer fits.
What was only added strands nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from milecastle.model.manifest import ChannelInfo, EdgeInfo, Manifest

__all__ = ["Difference", "compare"]

Way = tuple[str, str]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What ``new`` has and ``old`` had not, and the other way round.

    A rename is a guess: one thing gone and one of the same shape in its place. ``changed_edges``
    are conditional now and were not, or the other way round.
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
    added_channels: tuple[ChannelInfo, ...] = ()
    removed_channels: tuple[str, ...] = ()
    renamed_channels: Mapping[str, str] = {}
    retyped_channels: Mapping[str, tuple[str, str]] = {}
    loosened_channels: tuple[str, ...] = ()
    tightened_channels: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.old.fingerprint != self.new.fingerprint

    def summary(self) -> str:
        """One line for a history: what was added, removed, renamed, retyped."""
        parts = [*self._node_changes(), *self._edge_changes(), *self._channel_changes()]
        return ", ".join(parts) or ("order changed" if self else "nothing changed")

    def reasons_against(self, pending: Iterable[str]) -> list[str]:
        """Why a thread that would run ``pending`` next cannot go on; empty if it can."""
        pending = tuple(dict.fromkeys(pending))
        return [*self._state_reasons(), *self._node_reasons(pending), *self._way_reasons(pending)]

    def _node_changes(self) -> list[str]:
        return [
            *(f"node '{name}' added" for name in self.added_nodes),
            *(f"node '{name}' removed" for name in self.removed_nodes),
            *(f"node '{old}' renamed to '{new}'" for old, new in self.renamed_nodes.items()),
            *(f"node '{name}' has another version" for name in self.reversioned_nodes),
        ]

    def _edge_changes(self) -> list[str]:
        return [
            *(f"edge {edge.source} -> {edge.target} added" for edge in self.added_edges),
            *(f"edge {edge.source} -> {edge.target} removed" for edge in self.removed_edges),
            *(
                f"edge {edge.source} -> {edge.target} is of another kind"
                for edge in self.changed_edges
            ),
        ]

    def _channel_changes(self) -> list[str]:
        renamed = self.renamed_channels
        return [
            *(
                f"key '{channel.name}' added"
                for channel in self.added_channels
                if channel.name not in renamed.values()
            ),
            *(f"key '{name}' removed" for name in self.removed_channels),
            *(f"key '{old}' renamed to '{new}'" for old, new in renamed.items()),
            *(
                f"key '{name}' changed from {before} to {after}"
                for name, (before, after) in self.retyped_channels.items()
            ),
            *(f"key '{name}' is optional now" for name in self.loosened_channels),
            *(f"key '{name}' is required now" for name in self.tightened_channels),
        ]

    def _state_reasons(self) -> list[str]:
        renamed = self.renamed_channels
        return [
            *(f"state key '{old}' is gone (renamed to '{new}'?)" for old, new in renamed.items()),
            *(f"state key '{name}' is gone" for name in self.removed_channels),
            *(
                f"state key '{name}' was {before} and is now {after}"
                for name, (before, after) in self.retyped_channels.items()
            ),
            *(
                f"state key '{channel.name}' was added and is required, and the thread has no "
                "value for it: mark it NotRequired or give it a default"
                for channel in self.added_channels
                if not channel.optional and channel.name not in renamed.values()
            ),
        ]

    def _node_reasons(self, pending: tuple[str, ...]) -> list[str]:
        reasons: list[str] = []
        for name in pending:
            if name in self.renamed_nodes:
                guess = self.renamed_nodes[name]
                reasons.append(f"node '{name}' would run next and is gone (renamed to '{guess}'?)")
            elif name in self.removed_nodes:
                reasons.append(f"node '{name}' would run next and is gone")
        return reasons

    def _way_reasons(self, pending: tuple[str, ...]) -> list[str]:
        """What was removed must not lie on the thread's way."""
        ahead = {*pending, *_reachable(_ways_on(self.old.edges), pending)}
        gone = {*self.removed_nodes, *self.renamed_nodes}
        nodes = [
            f"node '{node.name}' lies ahead of the thread and is gone"
            for node in self.old.nodes
            if node.name in gone & ahead and node.name not in pending
        ]
        edges = [
            f"the edge from '{edge.source}' to '{edge.target}' lies ahead of the thread and is gone"
            for edge in self._undetoured()
            if edge.source in ahead and edge.source not in gone and edge.target not in gone
        ]
        return nodes + edges

    def _undetoured(self) -> list[EdgeInfo]:
        """Edges that were removed, but for those into which new nodes were put."""
        ways = _ways_on(self.new.edges)
        inserted = {name: ways[name] for name in self.added_nodes if name in ways}
        lost: list[EdgeInfo] = []
        for source, edges in _by_source(self.removed_edges).items():
            first = ways.get(source, [])
            arrived = {*first, *_reachable(inserted, first)}
            lost += [edge for edge in edges if edge.target not in arrived]
        return lost


def compare(old: Manifest, new: Manifest) -> Difference:
    """What changed from ``old`` to ``new``."""
    old_nodes = {node.name: node for node in old.nodes}
    new_nodes = {node.name: node for node in new.nodes}
    old_channels = {channel.name: channel for channel in old.channels}
    new_channels = {channel.name: channel for channel in new.channels}
    kept = [
        (old_channels[name], new_channels[name]) for name in new_channels if name in old_channels
    ]
    renamed_nodes = _renamed_nodes(old, new)
    renamed_channels = _renamed_channels(old.channels, new.channels)
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
        added_channels=tuple(
            channel for name, channel in new_channels.items() if name not in old_channels
        ),
        removed_channels=_only(old_channels, new_channels, renamed_channels),
        renamed_channels=renamed_channels,
        retyped_channels={
            then.name: (_shape(then), _shape(now))
            for then, now in kept
            if _shape(then) != _shape(now)
        },
        loosened_channels=tuple(
            now.name for then, now in kept if now.optional and not then.optional
        ),
        tightened_channels=tuple(
            now.name for then, now in kept if then.optional and not now.optional
        ),
    )


def _only(here: Iterable[str], there: Iterable[str], besides: Iterable[str]) -> tuple[str, ...]:
    left_out = {*there, *besides}
    return tuple(name for name in here if name not in left_out)


def _shape(channel: ChannelInfo) -> str:
    if channel.reducer == "last":
        return channel.type
    return f"{channel.type} with reducer {channel.reducer}"


def _kinds(manifest: Manifest) -> dict[Way, set[str]]:
    kinds: dict[Way, set[str]] = {}
    for edge in manifest.edges:
        kinds.setdefault((edge.source, edge.target), set()).add(edge.kind)
    return kinds


def _renamed_nodes(old: Manifest, new: Manifest) -> dict[str, str]:
    """A node that went and one that came with the same edges, apart from the name."""
    olds = {node.name: None for node in old.nodes}
    news = {node.name: None for node in new.nodes}
    old_ways, new_ways = _ways_of_each(old), _ways_of_each(new)
    came: dict[frozenset[Way], list[str]] = {}
    for name in news:
        if name not in olds:
            came.setdefault(new_ways.get(name, frozenset()), []).append(name)
    renamed: dict[str, str] = {}
    for name in olds:
        candidates = came.get(old_ways.get(name, frozenset()))
        if name not in news and candidates:
            renamed[name] = candidates.pop(0)
    return renamed


def _ways_of_each(manifest: Manifest) -> dict[str, frozenset[Way]]:
    """The edges of each node, with the node itself left blank."""
    ways: dict[str, set[Way]] = {}
    for edge in manifest.edges:
        for name in (edge.source, edge.target):
            source = "" if edge.source == name else edge.source
            target = "" if edge.target == name else edge.target
            ways.setdefault(name, set()).add((source, target))
    return {name: frozenset(found) for name, found in ways.items()}


def _renamed_channels(old: Iterable[ChannelInfo], new: Iterable[ChannelInfo]) -> dict[str, str]:
    """A key that went and one that came with the same type and reducer."""
    olds = {channel.name: _shape(channel) for channel in old}
    news = {channel.name: _shape(channel) for channel in new}
    came: dict[str, list[str]] = {}
    for name, shape in news.items():
        if name not in olds:
            came.setdefault(shape, []).append(name)
    renamed: dict[str, str] = {}
    for name, shape in olds.items():
        if name not in news and came.get(shape):
            renamed[name] = came[shape].pop(0)
    return renamed


def _by_source(edges: Iterable[EdgeInfo]) -> dict[str, list[EdgeInfo]]:
    found: dict[str, list[EdgeInfo]] = {}
    for edge in edges:
        found.setdefault(edge.source, []).append(edge)
    return found


def _ways_on(edges: Iterable[EdgeInfo]) -> dict[str, list[str]]:
    return {source: [edge.target for edge in ways] for source, ways in _by_source(edges).items()}


def _reachable(ways: Mapping[str, list[str]], start: Iterable[str]) -> set[str]:
    """What can be reached over at least one edge."""
    seen: set[str] = set()
    waiting = list(start)
    while waiting:
        for target in ways.get(waiting.pop(), ()):
            if target not in seen:
                seen.add(target)
                waiting.append(target)
    return seen
