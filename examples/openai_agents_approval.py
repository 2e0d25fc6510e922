"""An agent of the OpenAI Agents SDK in a node: a session, an approval, and recorded calls.

Killed at any call and run again, no recorded call is repeated; the session has each item once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypedDict

from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage

from milecastle import END, START, CheckpointStore, StateGraph, interrupt
from milecastle.integrations.openai_agents import RecordedModel, ThreadSession, record_tool

set_tracing_disabled(True)
TEXT: dict[str, Any] = {"type": "output_text", "text": "You get 30 back.", "annotations": []}
SCRIPT: list[dict[str, Any]] = [
    {"type": "function_call", "call_id": "1", "name": "refund", "arguments": '{"amount": 30}'},
    {"type": "message", "id": "2", "role": "assistant", "status": "completed", "content": [TEXT]},
]


async def called(what: str) -> None:
    print("calling", what)


class Scripted(Model):
    async def get_response(self, *args: Any, **named: Any) -> ModelResponse:
        said = sum(item.get("type") == "function_call_output" for item in named["input"])
        await called(f"model {said}")
        kind = ResponseOutputMessage if said else ResponseFunctionToolCall
        return ModelResponse([kind.model_validate(SCRIPT[said])], Usage(), response_id=None)

    def stream_response(self, *args: Any, **named: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


@record_tool
@function_tool(needs_approval=True)
async def refund(amount: int) -> str:
    await called("refund")
    return f"paid {amount}"


clerk = Agent[None](name="clerk", model=RecordedModel(Scripted()), tools=[refund])


class Case(TypedDict):
    answer: str


def run(url: str, thread: str) -> str:
    graph = StateGraph(Case)

    @graph.node
    async def assist(state: Case) -> dict[str, str]:
        result = await Runner.run(clerk, "The lamp is broken.", session=session)
        while result.interruptions:
            waiting = result.to_state()
            for item in result.interruptions:
                approved = interrupt(f"{item.name}?", show=item.arguments, answer=bool)
                (waiting.approve if approved else waiting.reject)(item)
            result = await Runner.run(clerk, waiting, session=session)
        return {"answer": result.final_output}

    graph.add_edges(START, "assist", END)
    app = graph.compile(store=url)
    session = ThreadSession(thread, CheckpointStore(app.store))
    done = app.invoke({"answer": ""}, thread=thread)
    done = app.resume(thread, answer=True) if done.status == "interrupted" else done
    items: list[Any] = asyncio.run(session.get_items())
    return " ".join([done["answer"], *(item.get("type") or item["role"] for item in items)])


if __name__ == "__main__":
    print(run("memory://", "lamp"))
