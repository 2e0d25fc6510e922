"""Pydantic AI: an agent's model and tool calls are recorded. Needs the extra ``pydantic-ai``.

Rules:

- Inside a node, a call whose result is recorded for the task is not made again; the record ends
  with the step. Outside nodes the agent works as without this.
- A record is named by the agent's run, the operation, for a tool the call's id, and a count. None
  depends on the order in which parallel calls end. A tool's own calls (another agent) are counted
  below that tool.
- Records are plain data: Pydantic AI's JSON, validated when it is read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic

from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationBackend,
    DurableOperationId,
    JournalCallableOperationBackend,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    ToolsetValidateToolArgumentsId,
    conversation_id_from_run_id,
)
from pydantic_ai.tools import AgentDepsT, RunContext

from milecastle.engine.context import current, running_task
from milecastle.integrations.recording import enclosing_call, recorded

__all__ = ["MilecastleDurability"]


class MilecastleDurability(BaseDurabilityCapability[AgentDepsT], Generic[AgentDepsT]):
    """Records model and tool calls for an agent running in a node.

    ``Agent(..., name="guide", capabilities=[MilecastleDurability()])``. A node running again,
    after a crash, a retry or an answer, gets recorded results instead of making the calls again.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="Milecastle",
        durable_unit_noun="record",
        durable_container_noun="node",
        codec=JSON_CODEC,
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        toolset_lifecycles={
            "function": "enter-always",
            "mcp": "enter-in-durable-unit",
            "dynamic": "enter-never",
        },
    )

    @property
    def in_durable_context(self) -> bool:
        """True inside a node."""
        return running_task() is not None

    def get_default_run_id(self) -> str | None:
        """An id for the agent's run: the same in every attempt."""
        if not self.in_durable_context:
            return None
        ctx = current()
        place = f"{ctx.idempotency_key}:{enclosing_call.get()}"
        return f"{place}:{ctx.count(place)}"

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """An id for the conversation, derived from the run's."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    def get_durable_operation_backend(self) -> DurableOperationBackend[None]:
        """Return the recorder for a call."""
        return _Records(
            agent_name=self.name,
            default_model_id=self.default_model_id,
            config=RoleBasedOperationConfig(model=None, event=None, capability=None, tool=None),
        )


class _Records(JournalCallableOperationBackend[None]):
    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: None,
    ) -> object:
        return await recorded(_call(operation_id, name, cache_key), body)


def _call(operation_id: DurableOperationId, name: str, cache_key: tuple[object, ...]) -> str:
    runs: list[RunContext[Any]] = [part for part in cache_key if isinstance(part, RunContext)]
    run_id = runs[0].run_id if runs else None
    call = f"{run_id or enclosing_call.get()}/{name}"
    if runs and isinstance(operation_id, ToolsetCallToolId | ToolsetValidateToolArgumentsId):
        call = f"{call}/{runs[0].tool_call_id}"
    return call
