"""A Pydantic AI agent in a node: each model and tool call is recorded.

The model is scripted, so that this runs anywhere. Kill the process at any call and invoke the
thread again: calls that are recorded are not made again, also of tools that run in parallel.
"""

from __future__ import annotations

from typing import TypedDict

from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from milecastle import END, START, StateGraph
from milecastle.integrations.pydantic_ai import MilecastleDurability


async def called(what: str) -> None:
    print("calling", what)


SCRIPT: list[list[ToolCallPart | TextPart]] = [
    [ToolCallPart("weather", {"place": "Hexham"}), ToolCallPart("trains", {"place": "Hexham"})],
    [ToolCallPart("book", {"train": "9:14"})],
    [TextPart("Rain until noon. You are on the 9:14.")],
]


async def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    said = sum(isinstance(message, ModelResponse) for message in messages)
    await called(f"model {said}")
    return ModelResponse(parts=SCRIPT[said])


guide = Agent(FunctionModel(scripted), name="guide", capabilities=[MilecastleDurability[object]()])


@guide.tool_plain
async def weather(place: str) -> str:
    await called("weather")
    return f"rain in {place} until noon"


@guide.tool_plain
async def trains(place: str) -> list[str]:
    await called("trains")
    return ["9:14", "10:14"]


@guide.tool_plain
async def book(train: str) -> str:
    await called("book")
    return f"booked the {train}"


class Trip(TypedDict):
    question: str
    answer: str


graph = StateGraph(Trip)


@graph.node
async def ask(state: Trip) -> dict[str, str]:
    done = await guide.run(state["question"])
    return {"answer": done.output}


graph.add_edges(START, "ask", END)


def run(store: str, thread: str) -> str:
    app = graph.compile(store=store)
    return app.invoke({"question": "Can I walk the wall?"}, thread=thread).state["answer"]


if __name__ == "__main__":
    print(run("memory://", "walk"))
