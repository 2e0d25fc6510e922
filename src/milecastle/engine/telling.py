"""Events of a run, made only when somebody listens."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import Any

from milecastle.engine.effects import Effect, Emit
from milecastle.engine.guard import Guard
from milecastle.engine.plan import RunPlan
from milecastle.engine.routing import Looked
from milecastle.errors import CycleDetected
from milecastle.model.event import Event, EventType
from milecastle.model.interrupt import Interrupt
from milecastle.ports.store import Batch

__all__ = ["Teller"]


class Teller:
    """Turns what happens in a run into ``Emit`` effects."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._key = plan.journal.key if plan.journal else None

    def event(self, type: EventType, **fields: Any) -> Emit:
        """One event of this run."""
        return Emit(Event(type=type, run_id=self._plan.run_id, key=self._key, **fields))

    def opening(self, waiting: tuple[str, ...]) -> Generator[Effect, Any, None]:
        """The run starts, or goes on from a checkpoint."""
        entry = self._plan.position.entry
        yield self.event("graph_start", data={"graph": self._plan.graph.name})
        if entry is not None:
            seq = entry.seq
            yield self.event("checkpoint_load", step=entry.step, seq=seq, data={"id": entry.id})
            if self._plan.update is None:
                yield self.event(
                    "checkpoint_resume", step=entry.step, seq=seq, data={"next": waiting}
                )

    def node_start(
        self, name: str, step: int, guard: Guard, attempt: int = 1, task: str | None = None
    ) -> Generator[Effect, Any, None]:
        """A node is about to run; a revisit is told as well."""
        if guard.visit_count(name) > 1:
            yield self._revisited(name, step, guard)
        yield self.event("state_copied", node=name, step=step)
        data = {"attempt": attempt, **_task(name, task)}
        yield self.event("node_start", node=name, step=step, data=data)

    def node_ended(
        self,
        name: str,
        step: int,
        update: Any,
        error: BaseException | None,
        task: str | None = None,
    ) -> Emit:
        """A node returned, or raised."""
        if error is None:
            data = _task(name, task)
            return self.event("node_complete", node=name, step=step, update=update, data=data)
        data = {"error": type(error).__qualname__, **_task(name, task)}
        return self.event("node_failed", node=name, step=step, data=data)

    def retry(self, name: str, step: int, attempt: int, error: BaseException, task: str) -> Emit:
        """A node will be tried again."""
        data = {"attempt": attempt, "error": type(error).__qualname__, **_task(name, task)}
        return self.event("retry", node=name, step=step, data=data)

    def moved(
        self, names: tuple[str, ...], looked: Iterable[Looked], step: int, values: Mapping[str, Any]
    ) -> Generator[Effect, Any, None]:
        """A step is over: the edges that were looked at, and the state that it left."""
        for source, target, holds in looked:
            data = {"target": target, "taken": holds}
            yield self.event("edge_evaluate", node=source, step=step, data=data)
            if holds:
                data = {"target": target}
                yield self.event("edge_transition", node=source, step=step, data=data)
        state = self._plan.graph.schema.present(dict(values))
        yield self.event("state", step=step, state=state, data={"nodes": names})

    def saved(self, batch: Batch) -> Emit:
        """An entry was committed."""
        entry = batch.entries[-1]
        data = {"id": entry.id, "source": entry.source}
        return self.event("checkpoint_save", step=entry.step, seq=entry.seq, data=data)

    def interrupted(
        self, waiting: Iterable[Interrupt], step: int, values: Mapping[str, Any]
    ) -> Generator[Effect, Any, None]:
        """The run waits at these places."""
        state = self._plan.graph.schema.present(dict(values))
        for found in waiting:
            data = {"id": found.id, "question": found.question, "show": found.show}
            yield self.event(
                "interrupt",
                node=found.node,
                step=step,
                state=state,
                data=data if found.asks else {"id": found.id},
            )

    def asleep(self, step: int, wake_at: int | None) -> Emit:
        """The run rests until a time."""
        return self.event("sleep", step=step, data={"wake_at": wake_at})

    def failed(self, error: BaseException, step: int, guard: Guard) -> Generator[Effect, Any, None]:
        """The run ended with an error; a revisit that was one too many is told as well."""
        node: str | None = getattr(error, "node", None)
        if isinstance(error, CycleDetected):
            yield self._revisited(error.node, step + 1, guard)
        data = {"error": type(error).__qualname__}
        yield self.event("graph_failed", node=node, step=step, data=data)

    def _revisited(self, name: str, step: int, guard: Guard) -> Emit:
        data = {"visits": guard.visit_count(name)}
        return self.event("cycle", node=name, step=step, data=data)


def _task(name: str, task: str | None) -> dict[str, Any]:
    """The task, where it is not just the node."""
    return {} if task is None or task == name else {"task": task}
