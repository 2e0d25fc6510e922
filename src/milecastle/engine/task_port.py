from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

from milecastle.engine.calls import CallLog
from milecastle.engine.emissions import Emissions
from milecastle.engine.plan import Progress, RunPlan, SendMessage, Spawn
from milecastle.engine.received import Received
from milecastle.engine.records import Records
from milecastle.engine.remembering import Remembered, TaskItems
from milecastle.engine.reserved_channels import ANSWERS, FAILURE, TIMED_OUT, WAITS
from milecastle.engine.saving import Saver
from milecastle.engine.waiting import WaitingTasks, unmet_waits
from milecastle.errors import InvalidRequest
from milecastle.model.checkpoint import to_datetime
from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey
from milecastle.model.message import Message
from milecastle.model.task import Origin, RunFacts, RunTask, TaskFacts
from milecastle.ports.buckets import Turn, require_buckets
from milecastle.ports.files import PlacedFiles
from milecastle.ports.mailbox import Sent
from milecastle.ports.services import Chunks, Services
from milecastle.ports.store import Batch
from milecastle.ports.task import MISSING, Draw, NewChild

_WRITES: Final = ("prepare", "removal")
_DRAWS: Final = ("take", "settle", "hold")
_READS: Final = ("get", "list", "namespaces", "search")


def _method(items: TaskItems, name: str, known: Sequence[str]) -> Callable[..., Any]:
    """A method of the items: the name may come from another process."""
    if name not in known:
        raise InvalidRequest(f"long-term memory has no {name!r}")
    method: Callable[..., Any] = getattr(items, name)
    return method


def _found(name: str, answer: Turn | bool | None) -> Turn | None:
    if not answer:
        raise InvalidRequest(
            f"there is no bucket '{name}', of this tenant or shared: set it with "
            f"milecastle queue bucket '{name}' --rate 100/60"
        )
    return answer if isinstance(answer, Turn) else None


class RunTaskPort:
    def __init__(
        self,
        plan: RunPlan,
        progress: Progress,
        saver: Saver | None,
        records: Records,
        received: Received,
        services: Services | None,
    ) -> None:
        self._plan = plan
        self._services = services
        self._progress = progress
        self._saver = saver
        self._journal = plan.journal
        self._records = records
        self._received = received
        self._stopped = False
        self.remembered = Remembered()
        self._items: TaskItems | None = None
        self._given: dict[str, Any] | None = None
        self._by_task: dict[str, dict[str, Any]] = {}
        self.key = plan.journal.key if plan.journal else None
        root = plan.root or plan.graph.fingerprint
        self.run = RunFacts(plan.run_id, root, plan.path, self.key, plan.node_config)
        if services is not None:
            services.enter(plan.run_id, self)

    @property
    def settled_id(self) -> str:
        """The id of the entry that started this step; empty without a store.

        Unlike its seq, it differs between a deleted thread and the next with its name.
        """
        return self._journal.settled_id if self._journal else ""

    def facts(self, task: RunTask) -> TaskFacts:
        if self._saver is not None and not self._saver.is_saved:
            self._saver.holds = True
        return TaskFacts(self._origin(), self._progress.reserved.get(FAILURE, {}), self.settled_id)

    def call_log(self, task: RunTask) -> CallLog:
        return CallLog(
            self._plan,
            self._progress,
            self._saver,
            self._received,
            self._services,
            partial(self.is_running, task),
            self.remembered.take,
        )

    def is_running(self, task: RunTask) -> bool:
        return task.step == self._progress.step + 1 and not self._stopped

    def stop(self) -> None:
        self._stopped = True

    def _refuse_if_stopped(self, task: RunTask) -> None:
        if self._stopped:
            raise InvalidRequest(
                f"node '{task.node}' is over (it timed out or was cancelled), but its code is "
                "still running: nothing more is recorded for it"
            )

    def heartbeat(self, task: RunTask) -> None:
        self._refuse_if_stopped(task)
        if self._services is not None:
            self._services.heartbeat()

    def _origin(self) -> Origin:
        plan, progress = self._plan, self._progress
        entry = plan.position.entry
        found = entry is not None and plan.update is None and progress.step == entry.step
        run_id = entry.run_id if found and entry else plan.run_id
        return Origin(run_id, progress.nodes, to_datetime(self.time()))

    def time(self) -> int:
        is_saved = self._saver is not None and self._saver.is_saved
        return self._progress.since if is_saved else self._plan.clock.now()

    def answer(self, label: str) -> Any:
        return self._progress.reserved.get(ANSWERS, {}).get(label, MISSING)

    def wake_time(self, label: str, until: int | None, seconds: float) -> int | None:
        known = self._progress.reserved.get(WAITS, {}).get(label)
        now = self._plan.clock.now()
        begun = known[2] if known else now + round(seconds * 1_000_000)
        end: int = begun if until is None else until
        return end if now < end else None

    def waits(self) -> WaitingTasks:
        reserved = self._progress.reserved
        if WAITS not in reserved:
            return {}
        return unmet_waits(reserved, self._plan.clock.now(), self._plan.arrived)

    def answers_within(self, task: str) -> dict[str, Any]:
        given: dict[str, Any] = self._progress.reserved.get(ANSWERS, {})
        if given is not self._given:
            self._given, self._by_task = given, {}
            for label, answer in given.items():
                owner, _, id = label.partition("/")
                self._by_task.setdefault(owner, {})[id] = answer
        return self._by_task.get(task, {})

    def timed_out_within(self, task: str) -> dict[str, int]:
        found: dict[str, int] = self._progress.reserved.get(TIMED_OUT, {})
        mark = f"{task}/"
        return {
            label.removeprefix(mark): at
            for label, at in found.items()
            if label[: len(mark)] == mark
        }

    def recorded(self, task: RunTask, name: str) -> Any:
        self._refuse_if_stopped(task)
        return self._records.recorded(task, name)

    def record(self, task: RunTask, name: str, value: Any) -> None:
        self._refuse_if_stopped(task)
        numbers = self._received.recorded(task.id)
        rows = self._records.results(task, name, value, numbers)
        if rows and self._journal is not None and self._services is not None:
            self._services.commit(self._journal.rows(rows))
        self._records.keep(task, name, value)

    async def arecord(self, task: RunTask, name: str, value: Any) -> None:
        self._refuse_if_stopped(task)
        numbers = self._received.recorded(task.id)
        rows = self._records.results(task, name, value, numbers)
        if rows and self._journal is not None and self._services is not None:
            await self._services.acommit(self._journal.rows(rows))
        self._records.keep(task, name, value)

    def receive(self, task: RunTask, topics: Sequence[str]) -> Message | None:
        services, _ = self._mail(task)
        return self._seen(services, services.call(self._received.next, task, topics))

    async def areceive(self, task: RunTask, topics: Sequence[str]) -> Message | None:
        services, _ = self._mail(task)
        return self._seen(services, await services.acall(self._received.next, task, topics))

    def _seen(self, services: Services, found: Message | None) -> Message | None:
        if found is not None and found.carried:
            services.message_received(self._plan.run_id, found.carried)
        return found

    def send(self, task: RunTask, thread: str, value: Any, topic: str, name: str) -> Sent:
        services, send = self._mail(task)
        return services.call(send, thread, value, topic, name, services.message_sent())

    async def asend(self, task: RunTask, thread: str, value: Any, topic: str, name: str) -> Sent:
        services, send = self._mail(task)
        carried = services.message_sent()
        return await services.acall(send, thread, value, topic, name, carried)

    def spawn(self, task: RunTask, app: Any, children: Sequence[NewChild]) -> None:
        services, spawn = self._spawner(task)
        services.call(spawn, app, children)

    async def aspawn(self, task: RunTask, app: Any, children: Sequence[NewChild]) -> None:
        services, spawn = self._spawner(task)
        await services.acall(spawn, app, children)

    def _spawner(self, task: RunTask) -> tuple[Services, Callable[..., None]]:
        services, _ = self._mail(task)
        plan = self._plan
        spawn, key = cast("Spawn", plan.spawn), cast("ThreadKey", self.key)
        return services, partial(spawn, key, plan.run_id, plan.node_config)

    def _mail(self, task: RunTask) -> tuple[Services, SendMessage]:
        self._refuse_if_stopped(task)
        if self._services is None or self._plan.send is None:
            raise InvalidRequest(
                f"node '{task.node}' uses messages, which need a store that has mailboxes: "
                "compile(store='sqlite:///...') or 'postgresql://...'"
            )
        return self._services, self._plan.send

    def remember(self, task: RunTask, write: str, how: Mapping[str, Any]) -> None:
        services, items, remembered = self._memory(task)
        prepare = partial(_method(items, write, _WRITES), **how)
        remembered.add(task, services.call(prepare) if items.waits else prepare())

    async def aremember(self, task: RunTask, write: str, how: Mapping[str, Any]) -> None:
        services, items, remembered = self._memory(task)
        prepare = partial(_method(items, write, _WRITES), **how)
        remembered.add(task, await services.acall(prepare) if items.waits else prepare())

    def recall(self, task: RunTask, read: str, how: Mapping[str, Any]) -> Any:
        services, items, remembered = self._memory(task)
        method = _method(items, read, _READS)
        return services.call(partial(method, **how, pending=remembered.of(task)))

    async def arecall(self, task: RunTask, read: str, how: Mapping[str, Any]) -> Any:
        services, items, remembered = self._memory(task)
        method = _method(items, read, _READS)
        asked = partial(method, **how, pending=remembered.of(task))
        return await services.acall(asked)

    def _memory(self, task: RunTask) -> tuple[Services, TaskItems, Remembered]:
        self._refuse_if_stopped(task)
        if self._services is None or self._plan.memory is None or self.key is None:
            raise InvalidRequest(
                f"node '{task.node}' uses long-term memory, which needs a store that has it: "
                "compile(store='sqlite:///...') or 'postgresql://...'"
            )
        self.remembered.open(task)
        if self._items is None:
            self._items = self._plan.memory(self.key.tenant)
        return self._services, self._items, self.remembered

    def draw(self, task: RunTask, how: Draw, name: str, given: Sequence[Any]) -> Turn | None:
        services, call = self._bucket(task, how, name, given)
        return _found(name, services.call(call))

    async def adraw(self, task: RunTask, how: Draw, name: str, given: Sequence[Any]) -> Turn | None:
        services, call = self._bucket(task, how, name, given)
        return _found(name, await services.acall(call))

    def _bucket(
        self, task: RunTask, how: Draw, name: str, given: Sequence[Any]
    ) -> tuple[Services, Callable[[], Turn | bool | None]]:
        self._refuse_if_stopped(task)
        services = self._services
        found = require_buckets(services.buckets() if services and self.key else None)
        if how not in _DRAWS:
            raise InvalidRequest(f"buckets have no {how!r}")
        method: Callable[..., Any] = getattr(found, how)
        key = cast("ThreadKey", self.key)
        return cast("Services", services), partial(method, key.tenant, name, *given)

    def deadline(self, label: str, seconds: float | None) -> tuple[int | None, bool]:
        reserved = self._progress.reserved
        if (passed := reserved.get(TIMED_OUT, {}).get(label)) is not None:
            return passed, True
        if seconds is None:
            return None, False
        known = reserved.get(WAITS, {}).get(label)
        until: int | None = known[2] if known else None
        return until or self._plan.clock.now() + round(seconds * 1_000_000), False

    def transact(self, task: RunTask, name: str, function: Callable[[Any], Any]) -> Any:
        journal, services = self._journal, self._services
        if journal is None or services is None:
            raise InvalidRequest(
                "ctx.transaction() needs a store: compile(store='postgresql://...')"
            )
        row = self._records.row(task, name)
        made: list[Any] = []
        numbers = self._received.recorded(task.id)

        def work(connection: Any) -> Batch:
            made[:] = [function(connection)]
            self._refuse_if_stopped(task)
            return journal.rows(self._records.results(task, name, made[0], numbers))

        recall = self._plan.recall
        if not services.transact(journal.key, work) and recall is not None:
            made[:] = [recall()[row]["value"]]  # a call whose answer was lost has recorded it
        self._records.keep(task, name, made[0])
        return made[0]

    def files(self, task: RunTask) -> PlacedFiles:
        self._refuse_if_stopped(task)
        journal, services = self._journal, self._services
        if journal is None or services is None:
            raise InvalidRequest(
                "files need a store and an object storage: compile(store=..., objects=...)"
            )
        return services.files(journal.key.tenant, sealed=journal.encrypts)

    def _event(self, task: RunTask, value: Any) -> Event:
        return Event(
            type="emit",
            run_id=task.run.run_id,
            time=self._plan.clock.now(),
            key=task.run.thread,
            step=task.step,
            node=task.node,
            task=task.id,
            attempt=task.attempt,
            update=value,
        )

    def emit(self, task: RunTask, value: Any, keep: bool = False) -> None:
        self._refuse_if_stopped(task)
        chunks = self._kept(task, value) if keep else None
        if chunks is not None:
            chunks.flush()
        elif self._services is not None and self._plan.feeding:
            self._services.publish(self._event(task, value))
        if self._services is not None and self._plan.has_readers:
            self._services.emit(self._event(task, value))

    async def aemit(self, task: RunTask, value: Any, keep: bool = False) -> None:
        self._refuse_if_stopped(task)
        chunks = self._kept(task, value) if keep else None
        if chunks is not None:
            await chunks.aflush()
        elif self._services is not None and self._plan.feeding:
            self._services.publish(self._event(task, value))
        if self._services is not None and self._plan.has_readers:
            await self._services.aemit(self._event(task, value))

    def _kept(self, task: RunTask, value: Any) -> Chunks | None:
        """Add a value to those stored with the step; ``None`` without a store.

        Readers elsewhere get it from there.
        """
        journal, saver, services = self._journal, self._saver, self._services
        if journal is None or saver is None or services is None:
            return None
        found = saver.emissions.get(task.step) or saver.emissions.setdefault(
            task.step, Emissions(task.step, journal, self._records.rows, services)
        )
        return found.keep(task, value)
