"""A loop that makes progress, and the two guards that stop one that does not.

A draft is polished until it is good enough. `max_steps` stops a loop that runs for too long;
cycle detection stops one that comes back to a node while nothing has changed.
"""

from __future__ import annotations

from typing import TypedDict

from milecastle import END, START, CycleDetected, ExecutionConfig, MaxStepsExceeded, StateGraph


class Draft(TypedDict):
    quality: int
    gain: int


graph = StateGraph(Draft)


@graph.node
def polish(state: Draft) -> dict[str, int]:
    return {"quality": state["quality"] + state["gain"]}


def what_next(state: Draft) -> str:
    return END if state["quality"] >= 100 else "polish"


graph.add_edge(START, "polish")
graph.add_conditional_edges("polish", what_next, ["polish", END])
graph.with_default_config(ExecutionConfig(max_steps=20, cycle_detection=True))
app = graph.compile(store="memory://")


def main() -> None:
    done = app.invoke({"quality": 0, "gain": 30}, thread="steady")
    print(f"good enough after {done.step} steps")
    try:
        app.invoke({"quality": 0, "gain": 1}, thread="slow")
    except MaxStepsExceeded as stopped:
        print(f"stopped by the limit of {stopped.max} steps")
    try:
        app.invoke({"quality": 0, "gain": 0}, thread="stuck")
    except CycleDetected as stopped:
        print(f"stopped at '{stopped.node}': it came back and nothing had changed")


if __name__ == "__main__":
    main()
