"""Names for spans, attributes and metrics; changing one changes the public interface.

``gen_ai.*`` come from the GenAI conventions, which are in development: they are set only if asked
for, and may change with the conventions.
"""

from __future__ import annotations

from typing import Final

SCOPE: Final = "milecastle"

RUN_ID: Final = "milecastle.run.id"
RUN_STATUS: Final = "milecastle.run.status"
THREAD: Final = "milecastle.thread.id"
TENANT: Final = "milecastle.tenant.id"
GRAPH: Final = "milecastle.graph.name"
STEP: Final = "milecastle.step.number"
NODE: Final = "milecastle.node.name"
TASK: Final = "milecastle.task.id"
ATTEMPT: Final = "milecastle.task.attempt"
SEQ: Final = "milecastle.checkpoint.seq"
SOURCE: Final = "milecastle.checkpoint.source"
UPDATE: Final = "milecastle.update"
LINK: Final = "milecastle.link"
QUEUE_STATE: Final = "milecastle.queue.state"
ERROR: Final = "error.type"

GENAI_OPERATION: Final = "gen_ai.operation.name"
GENAI_WORKFLOW: Final = "gen_ai.workflow.name"
GENAI_CONVERSATION: Final = "gen_ai.conversation.id"
INVOKE_WORKFLOW: Final = "invoke_workflow"

GENAI_FACTS: Final = {
    "operation": GENAI_OPERATION,
    "agent": "gen_ai.agent.name",
    "model": "gen_ai.request.model",
    "tool": "gen_ai.tool.name",
    "call": "gen_ai.tool.call.id",
    "error": ERROR,
}
GENAI_USAGE: Final = {
    "input": "gen_ai.usage.input_tokens",
    "output": "gen_ai.usage.output_tokens",
    "cache_read": "gen_ai.usage.cache_read.input_tokens",
    "cache_write": "gen_ai.usage.cache_creation.input_tokens",
    "reasoning": "gen_ai.usage.reasoning.output_tokens",
}
"""Attributes by the names that agents give to facts, and to what a model call used."""
