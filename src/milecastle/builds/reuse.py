"""Reuse when a node is called: by a file run's plan, or by a ``cache=`` key.

Nodes are wrapped: each is asked first whether it needs to run at all. A node the plan reuses
gives its recorded update, after its outputs were put back. Any other is run, its outputs are
stored, and then, last of all, its checkpoint is written: so a node is complete or it is not,
wherever the process dies.

Facts only the run itself can know are checked here: a node is executed after all if something
upstream of it was, or if the state it reads changed.

A node with ``cache=`` and no files needs no plan and no file run: its key is found when it is
called. Results are never shared between tenants. A result belongs to the thread
that created it: with encryption it is encrypted with that thread's key, and is deleted with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from time import time_ns
from typing import TYPE_CHECKING, Any

import msgspec
import msgspec.structs

from milecastle.builds.cache import harvest
from milecastle.builds.file_graph import FileTask, codec_of, digest_of, encode_update, version_of
from milecastle.builds.nodes import Cache, CurrentRun, files_of, within
from milecastle.builds.paths import Links, StatIndex, problem_of_entry, result_hash, task_hash
from milecastle.builds.plan import Plan, Why
from milecastle.builds.records import (
    FORMAT,
    Artifact,
    CacheEntry,
    NodeCheckpoint,
    TraceFile,
    open_update,
    seal_update,
)
from milecastle.builds.survey import Base
from milecastle.builds.workspace import Workspace
from milecastle.codec.envelope import Sealer, Sealers
from milecastle.codec.values import ValueCodec
from milecastle.disk.replacing import make_folders, put
from milecastle.errors import CodecError, Corrupted, FileRefused, InvalidUpdate
from milecastle.graph.structure import CompiledGraph, Node
from milecastle.model.keys import ThreadKey

if TYPE_CHECKING:
    from milecastle.builds.cache import SharedCache


class Reused(msgspec.Struct, frozen=True):
    update: Any


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    task: FileTask | None
    inputs: Mapping[str, str]
    seen: str
    started_at: int


class BuildSession(msgspec.Struct, kw_only=True, eq=False):
    """Shared by one run's nodes, on several threads; each node's facts are its own."""

    workspace: Workspace
    graph: CompiledGraph
    tasks: Mapping[str, FileTask]
    plan: Plan
    base: Base
    codec: ValueCodec
    trace: TraceFile
    run_id: str
    input: str
    index: StatIndex
    owner: ThreadKey
    encryption: Sealers | None = None
    sealer: Sealer | None = None
    executed: dict[str, tuple[Why, ...]] = {}
    reused: dict[str, NodeCheckpoint] = {}
    made: dict[str, NodeCheckpoint] = {}
    given: dict[str, str] = {}
    shared: SharedCache | None = None
    fetched: set[str] = set()

    def taken_over(self) -> list[NodeCheckpoint]:
        ran = self.executed.keys() | self.fetched
        nodes = (name for name in self.plan.reused if name not in ran)
        return [self.base.checkpoints[name] for name in nodes]

    def begin(self, node: str, state: Any) -> Reused | Execution:
        task = self.tasks.get(node)
        if task is None:
            self.executed[node] = self.plan.decisions[node].reasons
            return self._execution(node, None, {}, "")
        seen = digest_of(self.codec, self.graph, task.cache, state) if task.takes_state else ""
        reasons = self._reasons(task, seen)
        if not reasons:
            return Reused(self._reuse(node))
        inputs = self._make_ready(task)
        fetched = self._fetch(task, inputs, seen)
        if fetched is not None:
            return fetched
        self.executed[node] = reasons
        return self._execution(node, task, inputs, seen)

    def finish(self, execution: Execution, update: Any) -> Any:
        task, node = execution.task, execution.node
        if task is None:
            return update
        body = self._encode(node, update)
        places = self.workspace.places
        artifacts = tuple(harvest(places, path, node) for path, _ in task.outputs)
        checkpoint, sealed = self._checkpoint(execution, task, artifacts, body)
        entry = CacheEntry(
            format=FORMAT,
            node=node,
            task_hash=checkpoint.task_hash,
            artifacts=artifacts,
            update=sealed,
            tenant=self.owner.tenant,
            thread=self.owner.thread,
            created_at=checkpoint.ended_at,
        )
        with self.workspace.cache.sharing():
            self.workspace.cache.store(places, entry)
            self.trace.note("complete", node)
            self.workspace.write_checkpoint(checkpoint)
        self.made[node] = checkpoint
        self.given[node] = checkpoint.output_hash
        if self.shared is not None and self.sealer is None:
            self.shared.publish(self.owner.tenant, checkpoint.task_hash, self.workspace.cache)
        return update

    def _fetch(self, task: FileTask, inputs: Mapping[str, str], seen: str) -> Reused | None:
        """Another workspace's result for the same task, restored here; ``None`` if none did.

        Nodes depending on one without declarations always run.
        """
        shared = self.shared
        if shared is None or self.sealer is not None or self.plan.mode == "clean":
            return None
        if not self.given.keys() >= set(task.upstream):
            return None
        cache, places = self.workspace.cache, self.workspace.places
        outputs = {path for path, _ in task.outputs}
        with cache.sharing():
            digest = self._task_hash(task, inputs, seen)
            entry = shared.fetch(self.owner.tenant, digest, outputs, cache)
            if entry is None or _is_old(entry, task.cache):
                return None
            try:
                update: Any = self.codec.decode(entry.update)
                for artifact in entry.artifacts:
                    cache.restore(places, artifact, task.name)
            except (Corrupted, CodecError):
                for path in outputs:
                    places.clear(path, task.name)
                return None
            execution = Execution(
                node=task.name, task=task, inputs=inputs, seen=seen, started_at=entry.created_at
            )
            checkpoint, _ = self._checkpoint(execution, task, entry.artifacts, entry.update)
            self.trace.note("complete", task.name)
            self.workspace.write_checkpoint(checkpoint)
        self.fetched.add(task.name)
        self.made[task.name] = self.reused[task.name] = checkpoint
        self.given[task.name] = checkpoint.output_hash
        return Reused(update)

    def fail(self, execution: Execution) -> None:
        with suppress(OSError):  # the node's own error says more
            self.trace.note("failed", execution.node)

    def keep_log(self, node: str, data: bytes) -> str:
        path = self.workspace.log_path(self.run_id, node)
        make_folders(path.parent)
        put(path, data, durable=False)
        return str(path)

    def _reasons(self, task: FileTask, seen: str) -> tuple[Why, ...]:
        decision = self.plan.decisions[task.name]
        if decision.action == "execute":
            return decision.reasons
        late = [
            Why("upstream", f"upstream node '{name}' was executed after all")
            for name in task.upstream
            if name in self.executed or name in self.fetched
        ]
        if self.base.checkpoints[task.name].seen != seen:
            late.append(Why("state", "the state that it reads changed"))
        return tuple(late)

    def _reuse(self, node: str) -> Any:
        checkpoint = self.base.checkpoints[node]
        restore = self.plan.decisions[node].restore
        update: Any = None
        if restore or checkpoint.has_update:
            entry = self.workspace.cache.load(checkpoint.task_hash)
            why = problem_of_entry(entry, checkpoint) if entry else "is missing"
            if entry is None or why:
                place = str(self.workspace.cache.entry_path(checkpoint.task_hash))
                raise Corrupted(f"the cache entry of node '{node}' {why}", place=place)
            for artifact in entry.artifacts:
                if artifact.path in restore:
                    self.workspace.cache.restore(self.workspace.places, artifact, node)
            update = self.codec.decode(open_update(entry, self.encryption))
            self.workspace.cache.touch(checkpoint.task_hash)
        self.trace.note("reused", node)
        self.reused[node] = checkpoint
        self.given[node] = checkpoint.output_hash
        return update

    def _execution(
        self, node: str, task: FileTask | None, inputs: Mapping[str, str], seen: str
    ) -> Execution:
        self.trace.note("started", node)
        return Execution(
            node=node, task=task, inputs=inputs, seen=seen, started_at=time_ns() // 1000
        )

    def _make_ready(self, task: FileTask) -> dict[str, str]:
        for path, _ in task.outputs:
            self.workspace.places.clear(path, task.name)
        for path, place in task.made:
            self._hash_input(task.name, path, place)
        return {path: self._hash_input(task.name, path, place) for path, place in task.given}

    def _hash_input(self, node: str, path: str, place: str) -> str:
        try:
            found = self.index.hash_of(place, follow=True)
        except Links as link:
            raise FileRefused(
                f"the input '{path}' of node '{node}' cannot be read: {link}", file=path, node=node
            ) from None
        if found is None:
            raise FileRefused(
                f"node '{node}' declares the input '{path}', which does not exist",
                file=path,
                node=node,
            )
        return found

    def _encode(self, node: str, update: Any) -> bytes:
        fields: Any = update
        if update is None or isinstance(update, Mapping):
            return encode_update(self.codec, fields, node)
        schema = self.graph.schema
        if schema.form != "typed-dict" and isinstance(update, schema.state_type):
            return encode_update(self.codec, schema.fields_of(update), node)
        raise InvalidUpdate(
            f"node '{node}' declares files or a cache and returned {type(update).__qualname__}: "
            "it must return an update (a dict) or None",
            node=node,
        )

    def _checkpoint(
        self, execution: Execution, task: FileTask, artifacts: tuple[Artifact, ...], body: bytes
    ) -> tuple[NodeCheckpoint, bytes]:
        outputs = {one.path: one.hash for one in artifacts}
        ended_at = time_ns() // 1000
        ttl = task.cache.ttl if task.cache else None
        digest = self._task_hash(task, execution.inputs, execution.seen)
        sealed = seal_update(self.sealer, digest, body)
        checkpoint = NodeCheckpoint(
            format=FORMAT,
            run_id=self.run_id,
            exit_code=0,
            task_hash=digest,
            **self._facts(task, execution.seen),
            inputs=dict(execution.inputs),
            upstream=self._upstream(task),
            outputs=outputs,
            output_hash=result_hash(artifacts, sealed),
            has_update=bool(self.codec.decode(body)),
            started_at=execution.started_at,
            ended_at=ended_at,
            expires_at=None if ttl is None else ended_at + int(ttl * 1_000_000),
        )
        return checkpoint, sealed

    def _task_hash(self, task: FileTask, inputs: Mapping[str, str], seen: str) -> str:
        return task_hash(
            **self._facts(task, seen),
            inputs=inputs,
            upstream=self._upstream(task),
            outputs=[path for path, _ in task.outputs],
        )

    def _facts(self, task: FileTask, seen: str) -> dict[str, str]:
        return {
            "node": task.name,
            "code_version": task.code_version,
            "parameters": task.parameters,
            "input": self.input if task.takes_state else "",
            "seen": seen,
        }

    def _upstream(self, task: FileTask) -> dict[str, str]:
        return {name: self.given.get(name, "") for name in task.upstream}


def _is_old(entry: CacheEntry, cache: Cache | None) -> bool:
    ttl = cache.ttl if cache else None
    return ttl is not None and time_ns() // 1000 >= entry.created_at + ttl * 1_000_000


def wrap(node: Node, session: BuildSession, lock: int | None) -> Node:
    if getattr(node, "subgraph", None) is not None:
        session.executed.setdefault(node.name, ())
        return node
    call = _async_planned(node, session, lock) if node.is_async else _planned(node, session, lock)
    return node.calling(call)


def _planned(node: Node, session: BuildSession, lock: int | None) -> Callable[..., Any]:
    def call(state: Any, config: Any = None, ctx: Any = None) -> Any:
        begun = session.begin(node.name, state)
        if isinstance(begun, Reused):
            return begun.update
        token = within.set(_current(node.name, session, lock))
        try:
            update = node.call(state, config, ctx)
            return session.finish(begun, update)
        except BaseException:
            session.fail(begun)
            raise
        finally:
            within.reset(token)

    return call


def _async_planned(node: Node, session: BuildSession, lock: int | None) -> Callable[..., Any]:
    async def call(state: Any, config: Any = None, ctx: Any = None) -> Any:
        from milecastle.support.off_loop import off_loop

        begun = await off_loop(session.begin, node.name, state)
        if isinstance(begun, Reused):
            return begun.update
        token = within.set(_current(node.name, session, lock))
        try:
            update = await node.call(state, config, ctx)
            return await off_loop(session.finish, begun, update)
        except BaseException:
            session.fail(begun)
            raise
        finally:
            within.reset(token)

    return call


def _current(name: str, session: BuildSession, lock: int | None) -> CurrentRun:
    return CurrentRun(
        session.workspace.places.root, lock, lambda data: session.keep_log(name, data)
    )


def with_caches(
    graph: CompiledGraph,
    workspace: Workspace,
    *,
    tenant: str = "default",
    encryption: Sealers | None = None,
) -> CompiledGraph:
    """The graph with its ``cache=`` nodes asking the workspace's cache before they run.

    ``tenant`` is for runs without a thread.
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
            call = _async_cached(node, memory) if node.is_async else _cached(node, memory)
            node = msgspec.structs.replace(node.calling(call), wants_context=True)  # noqa: PLW2901
        nodes[name] = node
    return msgspec.structs.replace(graph, nodes=nodes)


class _Memory(msgspec.Struct, frozen=True, kw_only=True):
    graph: CompiledGraph
    workspace: Workspace
    codec: ValueCodec
    node: str
    version: str
    cache: Cache
    tenant: str
    encryption: Sealers | None

    def tenant_of(self, owner: ThreadKey | None) -> str:
        return self.tenant if owner is None else owner.tenant

    def key(self, state: Any, owner: ThreadKey | None) -> str:
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

        A damaged or undecodable entry counts as missing.
        """
        try:
            entry = self.workspace.cache.load(key)
            if entry is None or entry.tenant != self.tenant_of(owner) or _is_old(entry, self.cache):
                return None
            update = self.codec.decode(open_update(entry, self.encryption))
        except (Corrupted, CodecError):
            return None
        self.workspace.cache.touch(key)
        return (update,)

    def keep(self, key: str, owner: ThreadKey | None, update: Any) -> None:
        """Store the node's result, if it is an update without targets.

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


def _cached(node: Node, memory: _Memory) -> Callable[..., Any]:
    def call(state: Any, config: Any = None, ctx: Any = None) -> Any:
        owner = ctx.thread if ctx else None
        key = memory.key(state, owner)
        if (known := memory.recall(key, owner)) is not None:
            return known[0]
        update = node.call(state, config, ctx)
        memory.keep(key, owner, update)
        return update

    return call


def _async_cached(node: Node, memory: _Memory) -> Callable[..., Any]:
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
