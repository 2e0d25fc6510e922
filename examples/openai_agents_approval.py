"""An agent of the OpenAI Agents SDK in a node: a session, an approval, and recorded calls.

The model is scripted, so that this runs anywhere. Kill the process at any call and run it again:
calls that are recorded are not made again, and the session has each item once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from tempfile import TemporaryDirectory
from typing import Any, TypedDict

from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage

from milecastle import END, START, StateGraph, interrupt, open_store
from milecastle.integrations.openai_agents import RecordedModel, ThreadSession, record_tool

set_tracing_disabled(True)
TEXT = {"type": "output_text", "text": "You get 30 back.", "annotations": []}
CALL = {"type": "function_call", "call_id": "1", "name": "refund", "arguments": '{"amount": 30}'}
REPLY = {"type": "message", "id": "2", "role": "assistant", "status": "completed"}


async def called(what: str) -> None:
    print("calling", what)


class Scripted(Model):
    async def get_response(self, _: Any, input: Any, *args: Any, **named: Any) -> ModelResponse:
        said = sum(item.get("type") == "function_call_output" for item in input)
        await called(f"model {said}")
        if said:
            reply = ResponseOutputMessage.model_validate({**REPLY, "content": [TEXT]})
            return ModelResponse([reply], Usage(), response_id=None)
        call = ResponseFunctionToolCall.model_validate(CALL)
        return ModelResponse([call], Usage(), response_id=None)

    def stream_response(self, *args: Any, **named: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


@record_tool
@function_tool(needs_approval=True)
async def refund(amount: int) -> str:
    await called("refund")
    return f"paid {amount}"


clerk = Agent[None](name="clerk", model=RecordedModel(Scripted()), tools=[refund])


class Case(TypedDict):
    message: str
    answer: str


def run(url: str, thread: str) -> str:
    session = ThreadSession(thread, open_store(url))
    graph = StateGraph(Case)

    @graph.node
    async def assist(state: Case) -> dict[str, str]:
        result = await Runner.run(clerk, state["message"], session=session)
        while result.interruptions:
            waiting = result.to_state()
            for item in result.interruptions:
                approved = interrupt(f"{item.name}?", show=item.arguments, answer=bool)
                (waiting.approve if approved else waiting.reject)(item)
            result = await Runner.run(clerk, waiting, session=session)
        return {"answer": result.final_output}

    graph.add_edges(START, "assist", END)
    app = graph.compile(store=url)
    done = app.invoke({"message": "The lamp is broken."}, thread=thread)
    if done.status == "interrupted":
        done = app.resume(thread, answer=True)
    items: list[Any] = asyncio.run(session.get_items())
    return " ".join([done["answer"], *(item.get("type") or item["role"] for item in items)])


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        print(run(f"sqlite:///{folder}/runs.db", "lamp"))
