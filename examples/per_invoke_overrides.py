"""The graph has its defaults; one call may set its own, field by field."""

from __future__ import annotations

from typing import TypedDict

from milecastle import END, START, ExecutionConfig, ExecutionOptions, MaxStepsExceeded, StateGraph


class Countdown(TypedDict):
    left: int


graph = StateGraph(Countdown)


@graph.node
def tick(state: Countdown) -> dict[str, int]:
    return {"left": state["left"] - 1}


def again(state: Countdown) -> str:
    return "tick" if state["left"] else END


graph.add_edge(START, "tick")
graph.add_conditional_edges("tick", again, ["tick", END])
graph.with_default_config(ExecutionConfig(max_steps=10, cycle_window=5))
app = graph.compile(store="memory://")


def main() -> None:
    try:
        app.invoke({"left": 30}, thread="default")
    except MaxStepsExceeded as stopped:
        print(f"the default of {stopped.max} steps: {app.state('default').state['left']} left")
    done = app.invoke({"left": 30}, thread="patient", options=ExecutionOptions(max_steps=40))
    print(f"with 40 steps for this call: {done['left']} left after {done.step}")
    done = app.resume("default", options=ExecutionOptions(max_steps=20))
    print(f"the first thread, resumed with 20 more: {done['left']} left")


if __name__ == "__main__":
    main()
