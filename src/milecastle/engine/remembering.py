"""Long-term memory for a run's tasks (``ctx.memory``).

Rules:

- A write is collected with its task, is in the task's outcome, and is part of its step's commit. A
  task that runs again collects again.
- A task sees its own writes, and none by the tasks beside it.
- If an item has another version than ``if_version=`` says, the store refuses the commit, and the
  task runs again (``repeating.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, Protocol

import msgspec
import msgspec.structs

from milecastle.errors import InvalidRequest
from milecastle.model.memory import (
    ItemPlace,
    MemoryHit,
    MemoryItem,
    MemoryWrite,
    check_size,
    check_total,
)
from milecastle.model.task import RunTask
from milecastle.ports.task import TaskPort

Writes = tuple[MemoryWrite, ...]


class TaskItems(Protocol):
    """A tenant's items. ``pending`` are writes of the asking task, which its reads include."""

    @property
    def waits(self) -> bool:
        """True if preparing a write may wait: for a key, or for an embedding."""
        ...

    def prepare(
        self,
        namespace: Sequence[str],
        key: str,
        value: Any,
        *,
        ttl: float | None,
        words: bool | str | Sequence[str],
        embed: bool | str | Sequence[str],
        if_version: int | None,
    ) -> MemoryWrite: ...

    def removal(self, namespace: Sequence[str], key: str) -> MemoryWrite: ...

    def get(
        self, namespace: Sequence[str], key: str, *, pending: Sequence[MemoryWrite]
    ) -> MemoryItem | None: ...

    def list(
        self,
        under: Sequence[str],
        *,
        limit: int,
        after: MemoryItem | None,
        pending: Sequence[MemoryWrite],
    ) -> Sequence[MemoryItem]: ...

    def namespaces(
        self,
        under: Sequence[str],
        *,
        limit: int,
        after: Sequence[str],
        pending: Sequence[MemoryWrite],
    ) -> Sequence[tuple[str, ...]]: ...

    def search(
        self,
        under: Sequence[str],
        *,
        words: str | None,
        near: str | Sequence[float] | None,
        where: Mapping[str, Any] | None,
        limit: int,
        pending: Sequence[MemoryWrite],
    ) -> Sequence[MemoryHit]: ...


MemoryOf = Callable[[str], TaskItems]
"""The items of a tenant."""


class _Attempt(msgspec.Struct, eq=False):
    task: RunTask  # which keeps its id from being another's
    writes: dict[ItemPlace, MemoryWrite] = {}
    size: int = 0


class Remembered(msgspec.Struct, eq=False):
    """The writes by the step's tasks so far, each attempt apart. OS threads share it.

    ``is_used`` is false until a task has used long-term memory.
    """

    is_used: bool = False
    _lock: Any = msgspec.field(default_factory=Lock)
    _attempts: dict[int, _Attempt] = {}

    def open(self, task: RunTask) -> None:
        with self._lock:
            self.is_used = True
            if id(task) not in self._attempts:
                self._attempts[id(task)] = _Attempt(task)

    def add(self, task: RunTask, write: MemoryWrite) -> None:
        with self._lock:
            attempt = self._attempts.get(id(task))
            if attempt is None:  # it was over before a key or an embedding came
                raise InvalidRequest(
                    f"node '{task.node}' is over, but its code is still running: nothing more is "
                    "written to memory for it"
                )
            own, place = attempt.writes, write.place
            old = own.get(place)
            if old is not None and write.if_version is not None:
                raise InvalidRequest(
                    f"node '{task.node}' has written item {write.key!r} before, in the same "
                    "task: if_version= compares what is stored"
                )
            if old is not None:
                write = msgspec.structs.replace(write, if_version=old.if_version)
            size = attempt.size + write.size - (old.size if old else 0)
            check_total(len(own) + (old is None), size, f"node '{task.node}'")
            own.pop(place, None)
            own[place], attempt.size = write, size

    def of(self, task: RunTask) -> Writes:
        with self._lock:
            found = self._attempts.get(id(task))
            return tuple(found.writes.values()) if found else ()

    def take(self, task: RunTask) -> Writes:
        """An ended attempt's writes: it writes nothing more."""
        with self._lock:
            found = self._attempts.pop(id(task), None)
            return tuple(found.writes.values()) if found else ()


def merged(step: Mapping[str, Writes]) -> Writes:
    """The writes by a step's tasks, in their order; for each item the last counts."""
    if len(step) == 1:
        return next(iter(step.values()))
    found: dict[ItemPlace, MemoryWrite] = {}
    for task, writes in step.items():
        for write in writes:
            old = found.pop(write.place, None)
            if old is not None and (old.if_version, write.if_version) != (None, None):
                raise InvalidRequest(
                    f"task '{task}' and another of its step write item {write.key!r} with "
                    "if_version=: write it in one of them, or in another step"
                )
            found[write.place] = write
    writes = tuple(found.values())
    check_size(writes, "a step")
    return writes


def packed(writes: Writes) -> list[list[Any]]:
    return [[*msgspec.structs.astuple(write)] for write in writes]


def unpacked(kept: Sequence[Sequence[Any]]) -> Writes:
    names = MemoryWrite.__struct_fields__
    each: Iterator[dict[str, Any]] = (dict(zip(names, one, strict=True)) for one in kept)
    return tuple(msgspec.convert(one, MemoryWrite) for one in each)


class TaskMemory:
    """Long-term memory in a node. Its writes are part of the step's commit."""

    __slots__ = ("_port", "_refuse_read", "_refuse_write", "_task")

    def __init__(
        self,
        port: TaskPort,
        task: RunTask,
        refuse_read: Callable[[], None],
        refuse_write: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._port = port
        self._task = task
        self._refuse_read = refuse_read
        self._refuse_write = refuse_write

    def put(
        self,
        namespace: Sequence[str],
        key: str,
        value: Any,
        *,
        ttl: float | None = None,
        words: bool | str | Sequence[str] = False,
        embed: bool | str | Sequence[str] = False,
        if_version: int | None = None,
    ) -> None:
        """Put an item. It is stored by the step's commit, or not at all.

        ``ttl`` is in seconds. ``words`` and ``embed`` name the fields whose text can be searched,
        or are ``True`` for all. With ``if_version`` the item must have this version, or with 0 be
        absent: otherwise the node runs again, three times, and then fails with ``MemoryChanged``.
        """
        how = {"ttl": ttl, "words": words, "embed": embed, "if_version": if_version}
        self._write("prepare", namespace=namespace, key=key, value=value, **how)

    async def aput(
        self,
        namespace: Sequence[str],
        key: str,
        value: Any,
        *,
        ttl: float | None = None,
        words: bool | str | Sequence[str] = False,
        embed: bool | str | Sequence[str] = False,
        if_version: int | None = None,
    ) -> None:
        """Async version of ``put``."""
        how = {"ttl": ttl, "words": words, "embed": embed, "if_version": if_version}
        await self._awrite("prepare", namespace=namespace, key=key, value=value, **how)

    def delete(self, namespace: Sequence[str], key: str) -> None:
        """Delete an item, with the step's commit."""
        self._write("removal", namespace=namespace, key=key)

    async def adelete(self, namespace: Sequence[str], key: str) -> None:
        """Async version of ``delete``."""
        await self._awrite("removal", namespace=namespace, key=key)

    def get(self, namespace: Sequence[str], key: str) -> MemoryItem | None:
        """An item, or ``None``."""
        found: MemoryItem | None = self._read("get", namespace=namespace, key=key)
        return found

    async def aget(self, namespace: Sequence[str], key: str) -> MemoryItem | None:
        """Async version of ``get``."""
        found: MemoryItem | None = await self._aread("get", namespace=namespace, key=key)
        return found

    def list(
        self, under: Sequence[str] = (), *, limit: int = 100, after: MemoryItem | None = None
    ) -> Sequence[MemoryItem]:
        """Items in the namespaces that begin with these labels, by namespace and key.

        ``after`` is the previous page's last item.
        """
        found: Sequence[MemoryItem] = self._read("list", under=under, limit=limit, after=after)
        return found

    async def alist(
        self, under: Sequence[str] = (), *, limit: int = 100, after: MemoryItem | None = None
    ) -> Sequence[MemoryItem]:
        """Async version of ``list``."""
        found: Sequence[MemoryItem] = await self._aread(
            "list", under=under, limit=limit, after=after
        )
        return found

    def namespaces(
        self, under: Sequence[str] = (), *, limit: int = 100, after: Sequence[str] = ()
    ) -> Sequence[tuple[str, ...]]:
        """Namespaces that have items and begin with these labels."""
        how = {"under": under, "limit": limit, "after": after}
        found: Sequence[tuple[str, ...]] = self._read("namespaces", **how)
        return found

    async def anamespaces(
        self, under: Sequence[str] = (), *, limit: int = 100, after: Sequence[str] = ()
    ) -> Sequence[tuple[str, ...]]:
        """Async version of ``namespaces``."""
        how = {"under": under, "limit": limit, "after": after}
        found: Sequence[tuple[str, ...]] = await self._aread("namespaces", **how)
        return found

    def search(
        self,
        under: Sequence[str] = (),
        *,
        words: str | None = None,
        near: str | Sequence[float] | None = None,
        where: Mapping[str, Any] | None = None,
        limit: int = 10,
    ) -> Sequence[MemoryHit]:
        """Items under these labels by words, by nearness or in order, if they are as ``where``.

        ``words`` finds items with at least one of them, those with most first; ``near`` is a text
        or a vector, compared by cosine. ``where`` compares top-level fields: ``{"kind": "fact"}``,
        ``{"age": {">=": 18}}``.
        """
        how = {"words": words, "near": near, "where": where, "limit": limit}
        found: Sequence[MemoryHit] = self._read("search", under=under, **how)
        return found

    async def asearch(
        self,
        under: Sequence[str] = (),
        *,
        words: str | None = None,
        near: str | Sequence[float] | None = None,
        where: Mapping[str, Any] | None = None,
        limit: int = 10,
    ) -> Sequence[MemoryHit]:
        """Async version of ``search``."""
        how = {"words": words, "near": near, "where": where, "limit": limit}
        found: Sequence[MemoryHit] = await self._aread("search", under=under, **how)
        return found

    def _write(self, write: str, **how: Any) -> None:
        self._refuse_write(how)
        self._port.remember(self._task, write, how)

    async def _awrite(self, write: str, **how: Any) -> None:
        self._refuse_write(how)
        await self._port.aremember(self._task, write, how)

    def _read(self, read: str, **how: Any) -> Any:
        self._refuse_read()
        return self._port.recall(self._task, read, how)

    async def _aread(self, read: str, **how: Any) -> Any:
        self._refuse_read()
        return await self._port.arecall(self._task, read, how)
