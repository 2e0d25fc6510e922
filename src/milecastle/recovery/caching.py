"""State nodes with a cache, in any run: what a node returned for the same key is not done again.

Needs no plan and no file run: the key is found when the node is called. Used for nodes that declare
``cache=`` and no files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import time_ns
from typing import Any

import msgspec.structs

from milecastle.codec.values import ValueCodec
from milecastle.errors import Corrupted
from milecastle.graph.compiled import CompiledGraph
from milecastle.graph.nodes import Node
from milecastle.recovery.declarations import Cache, files_of
from milecastle.recovery.hashing import task_hash
from milecastle.recovery.places import Places
from milecastle.recovery.records import FORMAT, CacheEntry
from milecastle.recovery.tasks import codec_of, digest_of, version_of
from milecastle.recovery.workspace import Workspace

__all__ = ["with_caches"]

_PARAMETERS = tuple((name, name) for name in ("state", "config", "ctx"))


def with_caches(graph: CompiledGraph, workspace: Workspace) -> CompiledGraph:
    """The graph with its ``cache=`` nodes asking the workspace's cache before they run."""
    codec = codec_of(graph)
    nodes: dict[str, Node] = {}
    for name, node in graph.nodes.items():
        declared = files_of(node.function)
        if declared is not None and declared.cache and not (declared.inputs or declared.outputs):
            version = version_of(node, declared)
            memory = _Memory(graph, workspace, codec, name, version, declared.cache)
            node = _remembering(node, memory)  # noqa: PLW2901
        nodes[name] = node
    return msgspec.structs.replace(graph, nodes=nodes)


class _Memory:
    """What one node returned, by what it saw of the state."""

    def __init__(
        self,
        graph: CompiledGraph,
        workspace: Workspace,
        codec: ValueCodec,
        node: str,
        version: str,
        cache: Cache,
    ) -> None:
        self._graph = graph
        self._workspace = workspace
        self._codec = codec
        self._node = node
        self._version = version
        self._cache = cache

    def key(self, state: Any) -> str:
        """The hash of node, version and what it sees of the state."""
        return task_hash(
            node=self._node,
            code_version=self._version,
            parameters=f"cache of {self._graph.name}",
            input="",
            seen=digest_of(self._codec, self._graph, self._cache, state),
            inputs={},
            upstream={},
            outputs=(),
        )

    def recall(self, key: str) -> tuple[Any] | None:
        """What is known under a key. A damaged entry is as good as none: it is made anew."""
        try:
            entry = self._workspace.cache.load(key)
        except Corrupted:
            return None
        if entry is None or self._is_old(entry):
            return None
        self._workspace.cache.touch(key)
        return (self._codec.decode(entry.update),)

    def keep(self, key: str, update: Any) -> None:
        """Keep what the node returned, if that is an update and not a word on where to go."""
        fields: Any = update
        if update is not None and not isinstance(update, Mapping):
            return
        body = self._codec.encode(None if update is None else dict(fields))
        entry = CacheEntry(
            format=FORMAT,
            node=self._node,
            task_hash=key,
            artifacts=(),
            update=body,
            created_at=time_ns() // 1000,
        )
        with self._workspace.cache.sharing():
            self._workspace.cache.store(Places(self._workspace.root), entry)

    def _is_old(self, entry: CacheEntry) -> bool:
        ttl = self._cache.ttl
        return ttl is not None and time_ns() // 1000 >= entry.created_at + ttl * 1_000_000


def _remembering(node: Node, memory: _Memory) -> Node:
    call = _async_call(node, memory) if node.is_async else _call(node, memory)
    return msgspec.structs.replace(
        node, function=call, parameters=_PARAMETERS, leading=0, positional=False
    )


def _call(node: Node, memory: _Memory) -> Callable[..., Any]:
    def call(state: Any, config: Any = None, ctx: Any = None) -> Any:
        key = memory.key(state)
        if (known := memory.recall(key)) is not None:
            return known[0]
        update = node.call(state, config, ctx)
        memory.keep(key, update)
        return update

    return call


def _async_call(node: Node, memory: _Memory) -> Callable[..., Any]:
    async def call(state: Any, config: Any = None, ctx: Any = None) -> Any:
        from asyncio import to_thread

        key = memory.key(state)
        if (known := await to_thread(memory.recall, key)) is not None:
            return known[0]
        update = await node.call(state, config, ctx)
        await to_thread(memory.keep, key, update)
        return update

    return call
