"""What the parts of a run have at hand together."""

from __future__ import annotations

from typing import Any

from milecastle.engine.desk import Desk
from milecastle.engine.plan import RunPlan
from milecastle.engine.progress import Progress
from milecastle.engine.saving import Saver
from milecastle.engine.telling import Teller
from milecastle.errors import ExecutionError

__all__ = ["Parts"]


class Parts:
    """The parts of one run. ``saver`` is ``None`` without a store, ``teller`` if nobody listens."""

    __slots__ = ("desk", "graph", "journal", "plan", "progress", "saver", "schema", "teller")

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.graph = plan.graph
        self.schema = plan.graph.schema
        self.journal = plan.journal
        self.progress = Progress(plan)
        self.saver = Saver(plan, plan.journal, self.progress) if plan.journal else None
        self.teller = Teller(plan) if plan.telling else None
        self.desk = Desk(plan, self.progress, self.saver)

    def node_error(self, name: str, state: Any, cause: BaseException) -> ExecutionError:
        """What is raised when a node failed for good."""
        return self.error(f"node '{name}' failed", name, self.progress.step + 1, state, cause)

    def error(
        self, what: str, name: str, step: int, state: Any, cause: BaseException
    ) -> ExecutionError:
        """What is raised when the user's code failed: ``what`` says where."""
        where = f" (thread '{self.journal.key.thread}')" if self.journal else ""
        error = ExecutionError(
            f"{what} at step {step} with {type(cause).__name__}{where}",
            node=name,
            step=step,
            path=self.progress.guard.path,
            state=state,
            cause=cause,
        )
        error.__cause__ = cause
        return error
