"""Random small graphs: wherever they crash, and however often, they end in the same state."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from hypothesis import given, settings
from hypothesis import strategies as st

from milecastle import END, START, App, CheckpointConfig, StateGraph, add, append, merge
from milecastle.stores.memory import MemoryStore
from milecastle.testing import Crashed, CrashPoint, Simulator, crash_everywhere


class Counters(TypedDict):
    rounds: int
    total: Annotated[int, add]
    notes: Annotated[list[str], append]
    seen: Annotated[dict[str, int], merge]


BEGIN: dict[str, Any] = {"rounds": 0}


class Shape(TypedDict):
    """A graph: layers of nodes, gone through a number of times, and where it stops on the way.

    A layer of several nodes is a fan-out. Before a layer in ``routed`` a router picks some of
    its nodes; nodes in ``asynchronous`` are async.
    """

    layers: list[int]
    rounds: int
    routed: set[int]
    asynchronous: set[str]
    before: set[str]
    after: set[str]
    interval: int


NAMES = [f"n{layer}{place}" for layer in range(4) for place in range(3)]

SHAPES: st.SearchStrategy[Shape] = st.fixed_dictionaries(
    {
        "layers": st.lists(st.integers(1, 3), min_size=1, max_size=4),
        "rounds": st.integers(1, 3),
        "routed": st.sets(st.integers(1, 3)),
        "asynchronous": st.sets(st.sampled_from(NAMES), max_size=3),
        "before": st.sets(st.sampled_from(NAMES), max_size=2),
        "after": st.sets(st.sampled_from(NAMES), max_size=2),
        "interval": st.sampled_from([1, 1, 1, 2, 3]),
    }
)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]


def note(state: Counters, name: str) -> dict[str, Any]:
    seen = state["seen"].get(name, 0) + 1
    return {"total": len(state["notes"]) + seen, "notes": [name], "seen": {name: seen}}


async def note_async(state: Counters, name: str) -> dict[str, Any]:
    return note(state, name)


def turn(state: Counters) -> dict[str, Any]:
    return {"rounds": state["rounds"] + 1}


def build(shape: Shape) -> App[Counters]:
    graph = StateGraph(Counters)
    layers = [[f"n{layer}{i}" for i in range(size)] for layer, size in enumerate(shape["layers"])]
    names = [name for layer in layers for name in layer]
    for name in names:
        graph.add_node(name, note_async if name in shape["asynchronous"] else note)
    graph.add_node("turn", turn)
    for number, (sources, targets) in enumerate(
        zip([[START], *layers], [*layers, ["turn"]], strict=True)
    ):
        for source in sources:
            connect(graph, source, targets, routed=number in shape["routed"])
    graph.add_edge("turn", layers[0][0], when=lambda state: state["rounds"] < shape["rounds"])
    graph.add_edge("turn", END)
    return graph.compile(
        checkpoint=CheckpointConfig(store=MemoryStore(), interval=shape["interval"]),
        interrupt_before=[name for name in names if name in shape["before"]],
        interrupt_after=[name for name in names if name in shape["after"]],
    )


def connect(graph: StateGraph[Counters], source: str, targets: list[str], *, routed: bool) -> None:
    def pick(state: Counters) -> list[str]:
        """One node at least; which ones follows from the state."""
        first = state.get("total", 0) % len(targets)
        return [targets[first], targets[-1]]

    if routed:
        graph.add_conditional_edges(source, pick, targets)
    else:
        for target in targets:
            graph.add_edge(source, target)


@settings(max_examples=settings().max_examples // 10)
@given(shape=SHAPES, seed=st.integers(0, 2**16))
def test_a_crash_anywhere_changes_nothing(shape: Shape, seed: int) -> None:
    report = crash_everywhere(build(shape), BEGIN, seed=seed)
    assert report.crashes == 2 * report.effects


POINTS = st.builds(CrashPoint, st.integers(1, 60), st.sampled_from(["before", "after"]))


@given(shape=SHAPES, seed=st.integers(0, 2**16), points=st.sets(POINTS, min_size=1, max_size=8))
def test_many_crashes_change_nothing(shape: Shape, seed: int, points: set[CrashPoint]) -> None:
    calm = go_to_the_end(Simulator(build(shape), seed=seed))
    assert go_to_the_end(Simulator(build(shape), seed=seed, crashes=points)) == calm


def go_to_the_end(simulator: Simulator[Counters]) -> Counters:
    """Call until the thread ended; its state."""
    while True:
        head = next(simulator.app.history("t", limit=1), None)
        if head is not None and not head.next:
            return simulator.app.state("t").state
        waits = head is not None and simulator.app.state("t").status == "interrupted"
        try:
            simulator.invoke(None if waits else BEGIN, "t")
        except Crashed:
            continue
