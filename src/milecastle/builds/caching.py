"""State nodes with a cache, in any run: a node is not run again for the same key.

Needs no plan and no file run: the key is found when the node is called. Used for nodes that declare
``cache=`` and no files. Results are never shared between tenants. A result belongs to the thread
that created it: with encryption it is encrypted with that thread's key, and is deleted with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import time_ns
from typing import Any

import msgspec
import msgspec.structs

from milecastle.builds.declarations import Cache, files_of
from milecastle.builds.file_graph import codec_of, digest_of, encode_update, version_of
from milecastle.builds.hashing import task_hash
from milecastle.builds.records import FORMAT, CacheEntry, open_update, seal_update
from milecastle.builds.workspace import Workspace
from milecastle.codec.envelope import Sealer, Sealers
from milecastle.codec.values import ValueCodec
from milecastle.errors import CodecError, Corrupted
from milecastle.graph.structure import CompiledGraph, Node
from milecastle.model.keys import ThreadKey


def with_caches(
    graph: CompiledGraph,
    workspace: Workspace,
    *,
    tenant: str = "default",
    encryption: Sealers | None = None,
) -> CompiledGraph:
    """The graph with its ``cache=`` nodes asking the workspace's cache before they run.

    ``tenant`` is that of runs without a thread.
    """
    codec = codec_of(graph)
    nodes: dict[str, Node] = {}
    for name, node in graph.nodes.items():
        declared = files_of(node.function)
        if declared is not None and declared.cache and not (declared.inputs or declared.outputs):
            memory = _Memory(
                graph=graph,
                workspace=workspace,
                codec=codec,
                node=name,
                version=version_of(node, declared),
                cache=declared.cache,
                tenant=tenant,
                encryption=encryption,
            )
            node = _remembering(node, memory)  # noqa: PLW2901
        nodes[name] = node
    return msgspec.structs.replace(graph, nodes=nodes)


class _Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What one node returned, by what it saw of the state."""

    graph: CompiledGraph
    workspace: Workspace
    codec: ValueCodec
    node: str
    version: str
    cache: Cache
    tenant: str
    encryption: Sealers | None

    def tenant_of(self, owner: ThreadKey | None) -> str:
        """The tenant of a call: its thread's, or without one the app's."""
        return self.tenant if owner is None else owner.tenant

    def key(self, state: Any, owner: ThreadKey | None) -> str:
        """The hash of tenant, node, version and what it sees of the state."""
        tenant = self.tenant_of(owner)
        return task_hash(
            node=self.node,
            code_version=self.version,
            parameters=msgspec.json.encode(("cache of", self.graph.name, tenant)).decode(),
            input="",
            seen=digest_of(self.codec, self.graph, self.cache, state),
            inputs={},
            upstream={},
            outputs=(),
        )

    def recall(self, key: str, owner: ThreadKey | None) -> tuple[Any] | None:
        """The cached result of a key.

        An entry that is damaged or cannot be decoded counts as missing.
        """
        try:
            entry = self.workspace.cache.load(key)
            if entry is None or entry.tenant != self.tenant_of(owner) or self._is_old(entry):
                return None
            update = self.codec.decode(open_update(entry, self.encryption))
        except (Corrupted, CodecError):
            return None
        self.workspace.cache.touch(key)
        return (update,)

    def keep(self, key: str, owner: ThreadKey | None, update: Any) -> None:
        """Store what the node returned, if that is an update without targets.

        With encryption nothing is stored of a run without a thread: there is no key for it.
        """
        fields: Any = update
        if update is not None and not isinstance(update, Mapping):
            return
        sealer: Sealer | None = None
        if self.encryption is not None:
            if owner is None:
                return
            sealer = self.encryption.sealer(owner, new=False)
        body = encode_update(self.codec, fields, self.node)
        entry = CacheEntry(
            format=FORMAT,
            node=self.node,
            task_hash=key,
            artifacts=(),
            update=seal_update(sealer, key, body),
            tenant=self.tenant_of(owner),
            thread=owner.thread if owner else "",
            created_at=time_ns() // 1000,
        )
        with self.workspace.cache.sharing():
            self.workspace.cache.store(self.workspace.places, entry)

    def _is_old(self, entry: CacheEntry) -> bool:
        ttl = self.cache.ttl
        return ttl is not None and time_ns() // 1000 >= entry.created_at + ttl * 1_000_000


def _remembering(node: Node, memory: _Memory) -> Node:
    call = _async_call(node, memory) if node.is_async else _call(node, memory)
    return msgspec.structs.replace(node.calling(call), wants_context=True)


def _call(node: Node, memory: _Memory) -> Callable[..., Any]:
    def call(state: Any, config: Any = None, ctx: Any = None) -> Any:
        owner = ctx.thread if ctx else None
        key = memory.key(state, owner)
        if (known := memory.recall(key, owner)) is not None:
            return known[0]
        update = node.call(state, config, ctx)
        memory.keep(key, owner, update)
        return update

    return call


def _async_call(node: Node, memory: _Memory) -> Callable[..., Any]:
    async def call(state: Any, config: Any = None, ctx: Any = None) -> Any:
        from milecastle.support.off_loop import off_loop

        owner = ctx.thread if ctx else None
        key = memory.key(state, owner)
        if (known := await off_loop(memory.recall, key, owner)) is not None:
            return known[0]
        update = await node.call(state, config, ctx)
        await off_loop(memory.keep, key, owner, update)
        return update

    return call
