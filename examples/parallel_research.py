"""Three searches in parallel, and one node that waits for all of them.

Tasks of one step see the same state. Each result is saved as soon as it is there, so a crash
repeats only the searches that had not finished; the updates meet in the order of declaration.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, NotRequired, TypedDict

from milecastle import END, START, StateGraph, append


class Research(TypedDict):
    question: str
    findings: Annotated[list[str], append]
    summary: NotRequired[str]


graph = StateGraph(Research)


@graph.node
async def library(state: Research) -> dict[str, Any]:
    await asyncio.sleep(0.002)
    return {"findings": [f"two books on {state['question']}"]}


@graph.node
async def archive(state: Research) -> dict[str, Any]:
    await asyncio.sleep(0.001)
    return {"findings": [f"a letter about {state['question']}"]}


@graph.node
def expert(state: Research) -> dict[str, Any]:
    return {"findings": [f"an opinion on {state['question']}"]}


@graph.node
def summarise(state: Research) -> dict[str, Any]:
    return {"summary": "; ".join(state["findings"])}


for source in ("library", "archive", "expert"):
    graph.add_edges(START, source, "summarise")
graph.add_edge("summarise", END)
app = graph.compile(store="memory://")


def main() -> None:
    done = app.invoke({"question": "milecastles"}, thread="research")
    print(done.state.get("summary"))


if __name__ == "__main__":
    main()
