"""This process's executors: the calling thread, worker threads, and an event loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from milecastle.drivers.node_caller import NodeCaller, perform
from milecastle.drivers.observing import Observers
from milecastle.engine.context import Around
from milecastle.graph.structure import CompiledGraph
from milecastle.model.event import Event
from milecastle.model.task import Finished, RunTask
from milecastle.ports.executor import EmitEvent, Executor, LoopExecutor
from milecastle.ports.observer import Observer, TaskObserver
from milecastle.ports.task import TaskPort

if TYPE_CHECKING:
    from milecastle.drivers.workers import Workers


class LocalExecutors:
    def __init__(self, graphs: Sequence[CompiledGraph], observers: Sequence[Observer] = ()) -> None:
        self._graphs = graphs
        self._wrapping = [found for found in observers if isinstance(found, TaskObserver)]

    def seen_by(self, observers: Sequence[Observer]) -> LocalExecutors:
        return LocalExecutors(self._graphs, observers)

    def on_thread(self, ports: Mapping[str, TaskPort], most: int) -> Executor:
        around = self._around() if self._wrapping else None
        return _Threads(self._graphs, ports, most, around)

    def _around(self) -> Around | None:
        return Observers(self._wrapping).around if self._wrapping else None

    def on_loop(
        self, ports: Mapping[str, TaskPort], most: int, tell: EmitEvent | None
    ) -> LoopExecutor:
        from milecastle.drivers.loop_tasks import LoopTasks

        return LoopTasks(self._graphs, ports, most, tell, self._around())


class _Threads(NodeCaller):
    """An ``Executor``; the workers are made when they are first needed.

    That may be on two threads at once: the driver waits while something elsewhere wakes it.
    """

    __slots__ = ("_making", "_most", "_workers")

    def __init__(
        self,
        graphs: Sequence[CompiledGraph],
        ports: Mapping[str, TaskPort],
        most: int,
        around: Around | None,
    ) -> None:
        super().__init__(graphs, ports, perform, around=around)
        self._most = most
        self._workers: Workers | None = None
        self._making = Lock()

    def start(self, tasks: Sequence[RunTask]) -> None:
        self._get().start([self.open(task) for task in tasks])

    def wait(self, until: float | None) -> list[Finished | Event]:
        return self._get().wait(until)

    @property
    def can_stop(self) -> bool:
        return False

    def wake(self) -> None:
        self._get().wake()

    def cancel(self, tasks: Sequence[RunTask]) -> None: ...

    def emit(self, event: Event) -> None:
        self._get().emit(event)

    def close(self) -> None:
        super().close()
        if self._workers is not None:
            self._workers.close()

    def _get(self) -> Workers:
        if self._workers is not None:
            return self._workers
        from milecastle.drivers.workers import Workers

        with self._making:
            if self._workers is None:
                self._workers = Workers(self._most)
            return self._workers
