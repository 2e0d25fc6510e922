"""A run's events, created only if there are observers or a reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Generator, Iterable, Mapping
from typing import Any

import msgspec.structs

from milecastle.engine.effects import Effect, Emit
from milecastle.engine.plan import Progress, RunPlan
from milecastle.engine.routing import Looked
from milecastle.engine.saving import Saver
from milecastle.engine.tasks import Task
from milecastle.errors import CycleDetected
from milecastle.model.checkpoint import Entry
from milecastle.model.event import Event, EventType
from milecastle.model.interrupt import Interrupt
from milecastle.model.manifest import START


class Items:
    def __init__(self, tasks: Iterable[Task], finished: Container[str]) -> None:
        sent = [task for task in tasks if task.update is not None]
        self._totals = Counter(task.node.name for task in sent)
        self._done = Counter(task.node.name for task in sent if task.id in finished)

    def place(self, task: Task) -> dict[str, int]:
        if task.update is None:
            return {}
        return {"index": task.item, "total": self._totals[task.node.name]}

    def finish(self, task: Task) -> dict[str, int]:
        if task.update is None:
            return {}
        self._done[task.node.name] += 1
        return {**self.place(task), "done": self._done[task.node.name]}


class RunEvents:
    """Turns a run's progress into ``Emit`` effects.

    Updates for a reader are held back until they are committed.
    """

    def __init__(self, plan: RunPlan, saver: Saver | None, progress: Progress) -> None:
        self._plan = plan
        self._saver = saver
        self._progress = progress
        self._guard = progress.guard
        self._key = plan.journal.key if plan.journal else None
        self._held: list[Event] = []

    def event(self, type: EventType, **fields: Any) -> Emit:
        plan = self._plan
        return Emit(
            Event(type=type, run_id=plan.run_id, time=plan.clock.now(), key=self._key, **fields)
        )

    @property
    def _seq(self) -> int | None:
        saved = self._saver is not None and self._saver.is_saved
        return self._plan.journal.head if saved and self._plan.journal else None

    def opening(self, waiting: tuple[str, ...]) -> Generator[Effect, Any, None]:
        entry = self._plan.position.entry
        data = {"graph": self._plan.graph.name}
        yield self.event("graph_start", step=self._progress.step, data=data)
        if entry is not None:
            yield self._of_entry("checkpoint_load", entry, {"id": entry.id})
            if self._plan.update is None:
                yield self._of_entry("checkpoint_resume", entry, {"next": waiting})

    def created(self, values: Mapping[str, Any]) -> Emit:
        return self.event("state_created", data={"keys": len(values)})

    def node_start(
        self, name: str, task: str, *, attempt: int = 1, item: Mapping[str, int] = {}
    ) -> Generator[Effect, Any, None]:
        if self._guard.visit_count(name) > 1:
            yield self._revisited(name)
        where = self._task(name, task, attempt)
        yield self.event("state_copied", **where, data={"keys": len(self._progress.values)})
        yield self.event("node_start", **where, data={"iteration": self._guard.steps, **item})

    def node_ended(
        self, name: str, task: str, update: Any, error: BaseException | None, *, attempt: int = 1
    ) -> Emit:
        where = self._task(name, task, attempt)
        data: dict[str, Any] = {"iteration": self._guard.steps}
        if error is not None:
            data["error"] = type(error).__qualname__
            return self.event("node_failed", **where, data=data)
        emit = self.event("node_complete", **where, update=update, data=data)
        if self._plan.streaming == "updates":
            self._held.append(emit.event)
        return emit

    def item_complete(self, name: str, task: str, attempt: int, item: Mapping[str, int]) -> Emit:
        return self.event("item_complete", **self._task(name, task, attempt), data=item)

    def updates(self) -> Generator[Effect, Any, None]:
        held, self._held = self._held, []
        for event in held:
            yield Emit(msgspec.structs.replace(event, type="update", seq=self._seq))

    def retry(self, name: str, task: str, attempt: int, error: BaseException) -> Emit:
        data = {"error": type(error).__qualname__}
        return self.event("retry", **self._task(name, task, attempt), data=data)

    def _task(self, name: str, task: str, attempt: int) -> dict[str, Any]:
        step = self._progress.step + 1
        return {"node": name, "step": step, "task": task, "attempt": attempt}

    def moved(
        self, names: tuple[str, ...], looked: Iterable[Looked], step: int, values: Mapping[str, Any]
    ) -> Generator[Effect, Any, None]:
        seq = self._seq
        yield from self.updates()
        for source, target, holds in looked:
            data = {"target": target, "taken": holds}
            yield self.event("edge_evaluate", node=source, step=step, seq=seq, data=data)
            if holds:
                data = {"target": target}
                yield self.event("edge_transition", node=source, step=step, seq=seq, data=data)
        state = self._plan.graph.schema.present(dict(values))
        yield self.event("state", step=step, seq=seq, state=state, data={"nodes": names})

    def saved(self, entry: Entry) -> Emit:
        return self._of_entry("checkpoint_save", entry, {"id": entry.id, "source": entry.source})

    def _of_entry(self, type: EventType, entry: Entry, data: dict[str, Any]) -> Emit:
        node = entry.nodes[-1] if entry.nodes else START
        data["nodes"] = entry.nodes
        return self.event(type, node=node, step=entry.step, seq=entry.seq, data=data)

    def interrupted(
        self, waiting: Iterable[Interrupt], step: int, values: Mapping[str, Any]
    ) -> Generator[Effect, Any, None]:
        state = self._plan.graph.schema.present(dict(values))
        for found in waiting:
            data = {"id": found.id, "question": found.question, "show": found.show}
            yield self.event(
                "interrupt",
                node=found.node,
                step=step,
                seq=self._seq,
                state=state,
                data=data if found.asks else {"id": found.id},
            )

    def asleep(self, step: int, wake_at: int | None) -> Emit:
        return self.event("sleep", step=step, seq=self._seq, data={"wake_at": wake_at})

    def completed(self, step: int, nodes: tuple[str, ...]) -> Emit:
        node = nodes[-1] if nodes else None
        data = {"iterations": self._guard.steps, "nodes": nodes}
        return self.event("graph_complete", node=node, step=step, seq=self._seq, data=data)

    def failed(self, error: BaseException, step: int) -> Generator[Effect, Any, None]:
        node: str | None = getattr(error, "node", None)
        if isinstance(error, CycleDetected) and node is not None:
            yield self._revisited(node)
        data = {"error": type(error).__qualname__, "iterations": self._guard.steps}
        yield self.event("graph_failed", node=node, step=step, data=data)

    def _revisited(self, name: str) -> Emit:
        guard, step = self._guard, self._progress.step + 1
        data = {"visits": guard.visit_count(name), "iteration": guard.steps}
        data["path_length"] = len(guard.path)
        return self.event("cycle", node=name, step=step, data=data)
