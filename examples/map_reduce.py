"""Map and reduce: each document is read by its own task, in parallel, then all are joined.

Each finished task is saved before it counts: a crash in the middle repeats only what was under
way. The results are joined in the order of the documents, whichever was read first.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated, Any, NotRequired, TypedDict

from milecastle import END, START, StateGraph, append

LIBRARY = {
    "walls.txt": "the wall is long and the road is old",
    "forts.txt": "a fort stands at each mile of the wall",
    "roads.txt": "the road runs behind the wall",
}


class Shelf(TypedDict):
    names: list[str]
    counts: Annotated[list[dict[str, int]], append]
    common: NotRequired[list[str]]


class OneDocument(TypedDict):
    name: str


graph = StateGraph(Shelf)


@graph.node
def look() -> dict[str, Any]:
    return {"names": sorted(LIBRARY)}


@graph.node(limit=8)
def count(state: OneDocument) -> dict[str, Any]:
    return {"counts": [dict(Counter(re.findall(r"\w{4,}", LIBRARY[state["name"]])))]}


@graph.node
def join(state: Shelf) -> dict[str, Any]:
    total = sum(map(Counter, state["counts"]), Counter[str]())
    return {"common": [f"{word} {times}" for word, times in total.most_common(2)]}


graph.add_edge(START, "look")
graph.map("look", "count", over="names", item="name")
graph.add_edges("count", "join", END)
app = graph.compile(store="memory://")


def main() -> None:
    done = app.invoke({"names": []}, thread="shelf")
    print(f"{len(done.state['counts'])} documents: {', '.join(done.state.get('common', []))}")


if __name__ == "__main__":
    main()
