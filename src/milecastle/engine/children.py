"""Children: subgraph runs inside a step.

A child is a run like any other, with its own log; its effects pass through its parent to the same
driver. Its waits are combined with its parent's, so several children and other tasks
run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from copy import copy
from typing import Any

import msgspec

from milecastle.engine.effects import AwaitTasks, Begin, CancelTasks, Effect, StartTasks, Stopped
from milecastle.engine.plan import Ending, RunPlan
from milecastle.engine.run_state import RunState
from milecastle.engine.tasks import Task
from milecastle.errors import StoreError
from milecastle.graph.structure import Subgraph
from milecastle.model.task import Finished, RunTask

BeginChild = Callable[[RunPlan], Generator[Effect, Any, Ending]]
"""Starts a run: its effects."""


class Child(msgspec.Struct, eq=False):
    """One subgraph's run. ``ready`` has finished tasks it has not received yet."""

    task: Task
    subgraph: Subgraph
    state: Any
    attempt: int
    effects: Generator[Effect, Any, Ending] | None = None
    waits_for_one: bool = False
    until: int | None = None
    ready: list[Finished] = []
    ending: Ending | None = None
    error: BaseException | None = None
    started: int = 0

    @property
    def is_over(self) -> bool:
        return self.ending is not None or self.error is not None


class Children:
    def __init__(self, run: RunState, begin: BeginChild) -> None:
        self._run = run
        self._begin = begin
        self._children: list[Child] = []
        self._owners: dict[int, tuple[RunTask, Child]] = {}

    def __len__(self) -> int:
        return len(self._children)

    def begin(
        self, task: Task, subgraph: Subgraph, state: Any, attempt: int
    ) -> Generator[Effect, Any, Child]:
        child = Child(task, subgraph, state, attempt)
        self._children.append(child)
        run = self._run
        try:
            plan: RunPlan = yield Begin(
                subgraph,
                run.plan,
                f"{run.task_port.settled_id}.{run.progress.step + 1}",
                task.id,
                task.node.name,
                subgraph.input(state),
                run.task_port.answers_within(task.id),
                run.task_port.timed_out_within(task.id),
            )
        except Exception as error:
            child.error = error
            if isinstance(error, StoreError):
                raise  # a store that fails stops the whole run: no policy of the node applies
            return child
        if plan.ended is not None:
            child.ending = plan.ended
            return child
        child.effects = self._begin(plan)
        yield from self._advance(child, None)
        return child

    def drop(self, child: Child) -> None:
        self._children.remove(child)

    def due(self) -> int | None:
        return min((c.until for c in self._children if c.until is not None), default=None)

    def hand_over(self, item: Finished) -> None:
        owned = self._owners.pop(id(item.task), None)
        if owned is not None:
            owned[1].ready.append(item)

    def go_on(self) -> Generator[Effect, Any, list[Child]]:
        now = self._run.plan.clock.monotonic()
        for child in self._children:
            if child.waits_for_one and child.ready:
                item = child.ready.pop()
                child.waits_for_one = False
                yield from self._advance(child, item.update, item.error)
            elif not child.waits_for_one and (
                child.ready or (child.until is not None and child.until <= now)
            ):
                ready, child.ready = child.ready, []
                yield from self._advance(child, ready)
        return [child for child in self._children if child.is_over]

    def _advance(
        self, child: Child, outcome: Any, error: BaseException | None = None
    ) -> Generator[Effect, Any, None]:
        effects = child.effects
        if effects is None:
            raise AssertionError("the child has not begun")
        child.until = None
        while True:
            try:
                effect = effects.send(outcome) if error is None else effects.throw(error)
            except StopIteration as stop:
                child.ending = stop.value
                return
            except Exception as raised:
                child.error = raised
                if isinstance(raised, StoreError):
                    raise  # as above
                return
            outcome = error = None
            if isinstance(effect, RunTask):
                child.waits_for_one = True
                self._owners[id(effect)] = (effect, child)
                yield StartTasks((effect,))
                return
            if isinstance(effect, AwaitTasks):
                child.until = effect.until
                return
            if isinstance(effect, StartTasks):
                self._owners.update((id(task), (task, child)) for task in effect.tasks)
            try:
                outcome = yield effect
            except Exception as raised:
                error = raised

    def cancel(self, reason: BaseException) -> Generator[Effect, Any, None]:
        over = [child for child in self._children if child.is_over]
        yield from self.stop(reason)
        self._children = over
        tasks = tuple(task for task, _ in self._owners.values())
        if tasks:
            yield CancelTasks(tasks)

    def stop(self, reason: BaseException) -> Generator[Effect, Any, None]:
        for child in self._children:
            effects = child.effects
            if effects is None or child.is_over:
                continue
            # A separate reason: each run adds its position to it.
            error: BaseException | None = reason
            if isinstance(reason, Stopped):
                error = Stopped(copy(reason.reason))
            try:
                while True:
                    effect = effects.throw(error) if error is not None else effects.send(None)
                    error = None
                    try:
                        yield effect
                    except Exception as raised:
                        error = raised
            except StopIteration as stop:
                child.ending = stop.value
            except GeneratorExit:
                raise
            except BaseException as raised:
                child.error = raised
