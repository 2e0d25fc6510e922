from __future__ import annotations

from typing import Any

from milecastle.engine.applying import ReducerFailed
from milecastle.engine.plan import Progress, RunPlan
from milecastle.engine.received import Received
from milecastle.engine.records import Records
from milecastle.engine.run_events import RunEvents
from milecastle.engine.saving import Saver
from milecastle.engine.task_port import RunTaskPort
from milecastle.errors import ExecutionError
from milecastle.support.printable import quoted


class RunState:
    """A run as its steps see it: the plan, its position, and its writers and reporters.

    ``saver`` is ``None`` without a store, ``run_events`` without observers or a reader. A run
    queued for workers has no ``task_port``.
    """

    task_port: RunTaskPort

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.graph = plan.graph
        self.schema = plan.graph.schema
        self.journal = plan.journal
        self.progress = Progress(plan)
        self.received = Received(plan.look)
        self.saver = (
            Saver(plan, plan.journal, self.progress, self.received) if plan.journal else None
        )
        self.run_events = RunEvents(plan, self.saver, self.progress) if plan.has_readers else None
        self.records = Records(plan, self.progress)

    def node_error(self, name: str, values: dict[str, Any], cause: BaseException) -> ExecutionError:
        state, step = self.schema.view(values), self.progress.step + 1
        error = self.error(f"node '{name}' failed", name, step, state, cause)
        key: object = cause.args[0] if isinstance(cause, KeyError) and cause.args else None
        if isinstance(key, str) and key in self.schema.channels and key not in values:
            error.hint = (
                f"nothing has written {quoted(key)} yet, neither the input nor a node: give it in "
                f"the input, or read it with state.get({key!r})"
            )
        return error

    def reducer_error(self, failed: ReducerFailed) -> ExecutionError:
        progress = self.progress
        state, step = self.schema.view(progress.values), progress.step + 1
        return self.error(str(failed), failed.node, step, state, failed.cause, failed.channel)

    def error(
        self,
        what: str,
        name: str,
        step: int,
        state: Any,
        cause: BaseException,
        channel: str | None = None,
    ) -> ExecutionError:
        error = ExecutionError(
            f"{what} at step {step} with {type(cause).__name__}",
            node=name,
            step=step,
            path=self.progress.guard.path,
            state=state,
            cause=cause,
            channel=channel,
            thread=self.journal.key.thread if self.journal else None,
            run_id=self.plan.run_id if self.journal else None,
        )
        error.__cause__ = cause
        return error
