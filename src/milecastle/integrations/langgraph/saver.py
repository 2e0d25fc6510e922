"""The checkpointer: every method in LangGraph's base class, sync and async.

The work is in generators that yield reads and commits; ``performing.py`` performs it, on this
thread or from an event loop. Rules:

- The key is the fence: a batch is appended to the head its writer knows, or refused. A writer that
  was overtaken reads the log again and appends after the other; nothing is lost.
- A checkpoint that continues another one needs one, and writes need their checkpoint. So a run
  whose thread was deleted is refused, and does not create the thread again.
- A log's known end is cached, and used only while its head is the same.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any, Final, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from milecastle.app.threads.children import children_of, delete_with_children, every_thread
from milecastle.engine.rollup_rule import CHAT_ROLLUP_AFTER
from milecastle.errors import Conflict, InvalidRequest
from milecastle.integrations.langgraph import upkeep
from milecastle.integrations.langgraph.log import Log, LogState, TaskWrite
from milecastle.integrations.langgraph.naming import config_of, configurable, key_of, namespace_of
from milecastle.integrations.langgraph.performing import Performer, Work
from milecastle.integrations.langgraph.reading import (
    as_tuple,
    delta_history,
    matches,
    metadata_of,
    read_checkpoint,
    read_log,
    read_newest,
    refuse_foreign,
    walk,
    with_run,
)
from milecastle.integrations.langgraph.serde import StrictSerializer
from milecastle.integrations.langgraph.writing import append_checkpoint, append_writes, pack_writes
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch, Store
from milecastle.stores.opening import find_store, require_store

_Found = tuple[ThreadKey, str, LogState]

_CHUNK: Final = 50
_ATTEMPTS: Final = 1000


class MilecastleSaver(BaseCheckpointSaver[Any]):
    """Stores LangGraph threads in a Milecastle store.

    ``store`` is a URL or a store. Values whose class LangGraph does not know are decoded only if
    the class is in ``allow``, or if your own ``serde`` allows it. Two runs writing to a thread
    continue as two branches.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        tenant: str = "default",
        serde: SerializerProtocol | None = None,
        allow: Sequence[type] = (),
    ) -> None:
        super().__init__(serde=serde or StrictSerializer(allow))
        if not isinstance(store, str):
            require_store(store)
        self._owns = isinstance(store, str)
        self._store = find_store(store) if isinstance(store, str) else store
        self._tenant = tenant
        most = self._store.rollup_after
        self._rollup_after = None if most is None else min(most, CHAT_ROLLUP_AFTER)
        self._performer = Performer(self._store)

    def close(self) -> None:
        """Close the store, if this saver opened it."""
        if self._owns:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._performer.call(self.close)

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Numbers; text another saver wrote is continued in its form."""
        if isinstance(current, str):
            number = int(current.partition(".")[0]) + 1
            return f"{number:032}.{current.partition('.')[2]}"
        return super().get_next_version(current, channel)

    # reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The newest checkpoint, or the one the configuration names."""
        return self._performer.run(self._getting(config))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Async version of ``get_tuple``."""
        return await self._performer.arun(self._getting(config))

    def _getting(self, config: RunnableConfig) -> Work[CheckpointTuple | None]:
        key, wanted = self._address(config)
        slot = self._performer.slot(key)
        known = slot.log
        if wanted is None or (known and known.state.record and known.state.record.id == wanted):
            log: Log = yield partial(read_newest, self._store, key, known)
            slot.log = log
            if wanted is None or (log.state.record and log.state.record.id == wanted):
                if log.seq and log.state.record is None:
                    yield partial(refuse_foreign, self._store, key)
                return as_tuple(self.serde, key, log.state)
        state: LogState | None = yield partial(read_checkpoint, self._store, key, wanted, slot.log)
        if state is None:
            yield partial(refuse_foreign, self._store, key)
            return None
        return as_tuple(self.serde, key, state)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest first: for a namespace, a thread, or all threads.

        A namespace's checkpoints are in the order they were stored; several namespaces are listed
        together in the order of their ids.
        """
        wanted = filter or {}
        found = (
            (key, state)
            for key, _, state in self._listed(config, before)
            if not wanted or matches(metadata_of(self.serde, state), wanted)
        )
        for key, state in islice(found, limit):
            listed = as_tuple(self.serde, key, state)
            if listed is not None:
                yield listed

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Async version of ``list``. Nothing is held between checkpoints."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while chunk := await self._performer.call(lambda: [*islice(found, _CHUNK)]):
            for one in chunk:
                yield one

    def _listed(
        self, config: RunnableConfig | None, before: RunnableConfig | None
    ) -> Iterator[_Found]:
        given: dict[str, Any] = (config or {}).get("configurable", {})
        limit = (before or {}).get("configurable", {}).get("checkpoint_id") or None
        keys = self._keys(given)
        if wanted := given.get("checkpoint_id"):
            for key in keys:
                state = read_checkpoint(self._store, key, wanted)
                if state is not None and (limit is None or wanted < limit):
                    yield key, wanted, state
        elif len(keys) == 1:
            yield from self._walked(keys[0], limit)
        else:
            walks = [self._walked(key, limit) for key in keys]
            yield from heapq.merge(*walks, key=itemgetter(1), reverse=True)

    def _walked(self, key: ThreadKey, limit: str | None) -> Iterator[_Found]:
        seq = None if limit is None else self._store.locate(key, limit)
        for entry, state in walk(self._store, key, seq):
            if limit is None or seq is not None or entry.id < limit:
                yield key, entry.id, state

    def _keys(self, given: dict[str, Any]) -> Sequence[ThreadKey]:
        if "thread_id" not in given:
            return [info.key for info in every_thread(self._store, self._tenant)]
        logs, namespace = self._logs(given["thread_id"]), given.get("checkpoint_ns")
        if namespace is not None:
            return [key_of(self._tenant, given["thread_id"], namespace)]
        return logs

    def _logs(self, thread: object) -> Sequence[ThreadKey]:
        root = key_of(self._tenant, thread)
        refuse_foreign(self._store, root)
        return [root, *(info.key for info in children_of(self._store, root))]

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Data for delta channels: the nearest stored value, and the writes since."""
        key, wanted = self._address(config)
        found = delta_history(self._store, self.serde, key, wanted, channels)
        if found is None:
            return super().get_delta_channel_history(config=config, channels=channels)
        return found

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Async version of ``get_delta_channel_history``."""
        work = partial(self.get_delta_channel_history, config=config, channels=channels)
        return await self._performer.call(work)

    # writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; the configuration names its parent. Durable on return."""
        slot = self._performer.slot(self._address(config)[0])
        return self._performer.run(self._putting(config, checkpoint, metadata, new_versions), slot)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Async version of ``put``."""
        slot = self._performer.slot(self._address(config)[0])
        work = self._putting(config, checkpoint, metadata, new_versions)
        return await self._performer.arun(work, slot)

    def _putting(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> Work[RunnableConfig]:
        key, parent = self._address(config)
        namespace = configurable(config).get("checkpoint_ns") or ""
        id = checkpoint["id"]
        said = dict(get_serializable_checkpoint_metadata(config, metadata))
        after = self._rollup_after
        early: Sequence[TaskWrite] = ()

        def work(log: Log) -> Work[tuple[Batch, Log] | None]:
            nonlocal early
            base = yield from self._base(log, parent)
            early = self._performer.held(key, id)
            versions, serde = new_versions, self.serde
            return append_checkpoint(
                log, base, serde, checkpoint, said, versions, parent, namespace, early, after
            )

        yield from self._append(key, work)
        yield from self._storing(key, id, self._performer.take(key, id)[len(early) :])
        return config_of(key, id, namespace)

    def _base(self, log: Log, parent: str | None) -> Work[LogState]:
        if parent is None:
            return LogState()
        if log.state.record is not None and log.state.record.id == parent:
            return log.state
        found: LogState | None = yield partial(read_checkpoint, self._store, log.key, parent, log)
        if found is None:
            raise _conflict(log)
        return found

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store a task's writes at the checkpoint the configuration names.

        Writes coming before their checkpoint are stored with it, and not sooner.
        """
        slot = self._performer.slot(self._address(config)[0])
        self._performer.run(self._writing(config, writes, (task_id, task_path)), slot)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Async version of ``put_writes``."""
        slot = self._performer.slot(self._address(config)[0])
        await self._performer.arun(self._writing(config, writes, (task_id, task_path)), slot)

    def _writing(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task: tuple[str, str]
    ) -> Work[None]:
        key, checkpoint = self._address(config)
        if checkpoint is None:
            raise InvalidRequest("writes belong to a checkpoint: give configurable.checkpoint_id")
        yield from self._storing(key, checkpoint, pack_writes(self.serde, writes, task))

    def _storing(self, key: ThreadKey, checkpoint: str, packed: Sequence[TaskWrite]) -> Work[None]:
        was_stored = False

        def work(log: Log) -> Work[tuple[Batch, Log] | None]:
            nonlocal was_stored
            if log.state.record is None or log.state.record.id != checkpoint:
                found: int | None = yield partial(self._store.locate, key, checkpoint)
                if found is None:
                    newest: Log = yield partial(read_newest, self._store, key, log)
                    if newest.state.record is None or newest.state.record.id != checkpoint:
                        if was_stored:
                            raise _conflict(log)
                        self._performer.hold(key, checkpoint, packed)
                        return None
                    log = yield partial(self._writable, key, newest)  # its own entry is pruned
            was_stored = True
            return append_writes(log, checkpoint, packed, self._rollup_after)

        while packed:
            yield from self._append(key, work)
            if was_stored or (yield partial(self._store.locate, key, checkpoint)) is None:
                return
            packed = self._performer.take(key, checkpoint)  # the checkpoint came meanwhile

    def _append(
        self, key: ThreadKey, work: Callable[[Log], Work[tuple[Batch, Log] | None]]
    ) -> Work[None]:
        slot = self._performer.slot(key)
        for left in reversed(range(_ATTEMPTS)):
            known = slot.log
            if known is None or (known.run is None and known.seq):
                known = yield partial(self._writable, key, known)
            log: Log = known
            if log.seq and log.state.record is None:
                raise InvalidRequest(f"thread '{key.thread}' is not one of LangGraph: use another")
            made = yield from work(log)
            if made is None:
                return
            batch, after = made
            slot.log = None  # until the outcome is known
            try:
                yield batch
            except Conflict:
                if not left:
                    raise
                continue
            slot.log = after
            return

    def _writable(self, key: ThreadKey, known: Log | None) -> Log:
        return with_run(self._store, known or read_log(self._store, key))

    # removing and copying

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with all its namespaces. A run that still writes to it is refused."""
        key = key_of(self._tenant, thread_id)
        refuse_foreign(self._store, key)
        delete_with_children(self._store, key)

    async def adelete_thread(self, thread_id: str) -> None:
        """Async version of ``delete_thread``."""
        await self._performer.call(partial(self.delete_thread, thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete these runs' checkpoints, in whatever threads they are.

        A thread with nothing left is deleted. Every thread in the tenant is looked at.
        """
        runs = set(run_ids)
        for info in list(every_thread(self._store, self._tenant)):
            if any(self._store.run(info.key, run) for run in runs):
                upkeep.delete_runs(self._store, info.key, runs)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Async version of ``delete_for_runs``."""
        await self._performer.call(partial(self.delete_for_runs, run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with all its namespaces, checkpoints and writes to a new one."""
        for key in self._logs(source_thread_id):
            target = key_of(self._tenant, target_thread_id, namespace_of(key))
            upkeep.copy_log(self._store, key, target)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Async version of ``copy_thread``."""
        await self._performer.call(partial(self.copy_thread, source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep each namespace's newest checkpoint, or delete the threads.

        Ancestors needed by delta channels are kept too.
        """
        if strategy not in ("keep_latest", "delete"):
            raise InvalidRequest("strategy must be 'keep_latest' or 'delete'")
        for thread in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread)
                continue
            for key in self._logs(thread):
                upkeep.keep_latest(self._store, key)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Async version of ``prune``."""
        await self._performer.call(partial(self.prune, thread_ids, strategy=strategy))

    def copy_from(self, saver: BaseCheckpointSaver[Any], thread_id: str | None = None) -> int:
        """Copy a thread, or all, from another saver; return the number of checkpoints.

        Existing checkpoints are not copied again. Other savers' readers do not know task paths, so
        writes are ordered by task and position.
        """
        config: RunnableConfig | None = None
        if thread_id is not None:
            config = {"configurable": {"thread_id": thread_id}}
        found = sorted(saver.list(config), key=lambda one: one.checkpoint["id"])
        return sum(self._copied(one) for one in found)

    def _copied(self, found: CheckpointTuple) -> bool:
        key, _ = self._address(found.config)
        if self._store.locate(key, found.checkpoint["id"]) is not None:
            return False
        given = configurable(found.config)
        parent = (found.parent_config or {}).get("configurable", {}).get("checkpoint_id")
        place = {"thread_id": given["thread_id"], "checkpoint_ns": given.get("checkpoint_ns", "")}
        if parent is not None and self._store.locate(key, parent) is not None:
            place["checkpoint_id"] = parent
        tasks: dict[str, list[tuple[str, Any]]] = {}
        for task, channel, value in found.pending_writes or ():
            tasks.setdefault(task, []).append((channel, value))
        for task, writes in tasks.items():  # before their checkpoint: they are stored with it
            writes.sort(key=lambda write: write[0] in WRITES_IDX_MAP)  # these have no position
            self.put_writes(found.config, writes, task)
        versions = found.checkpoint["channel_versions"]
        self.put({"configurable": place}, found.checkpoint, found.metadata, versions)
        return True

    def _address(self, config: RunnableConfig) -> tuple[ThreadKey, str | None]:
        given = configurable(config)
        key = key_of(self._tenant, given["thread_id"], given.get("checkpoint_ns") or "")
        return key, given.get("checkpoint_id") or None


def _conflict(log: Log) -> Conflict:
    key = log.key
    return Conflict(tenant=key.tenant, thread=key.thread, expected=0, head=log.seq)
