"""The graphs that histories run: what an input does is written in the input.

An input names its operation and a list of acts; the graph does one act per step, then notes the
operation in the state's ``log``. The ``world`` is told what really happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Protocol, TypedDict

from milecastle import END, START, App, Context, Retry, StateGraph, append, interrupt
from milecastle.model.policies import CheckpointConfig

__all__ = ["ACTS", "GRAPHS", "NAP", "STAGE", "State", "World", "app_of", "input_of"]

GRAPHS = ("one", "two")
ACTS = (
    *("plain", "once", "sleep", "ask", "fail1", "fail4"),
    *("once-fail1", "once-sleep", "once-ask"),
)
"""``fail1`` fails once, ``fail4`` until a person has retried it. Not in here: ``stop1`` fails with
``StopIteration``, ``linger`` takes as long as ``LINGER`` says, ``pay`` needs PostgreSQL."""

NAP = 0.7
LINGER = 25.0
ATTEMPTS = 3
"""Workers retry a failed run by themselves so often, less one."""


class State(TypedDict):
    op: str
    todo: list[str]
    at: int
    log: Annotated[list[str], append]
    heard: Annotated[list[str], append]


class World(Protocol):
    """What nodes really do. A place is an operation and the number of its act."""

    def note(self, what: str, place: str) -> None:
        """Something has happened."""
        ...

    def fails(self, place: str, times: int) -> bool:
        """Whether the node is to fail: the first so many times."""
        ...

    def pay(self, connection: Any, place: str) -> None:
        """Write a payment in a transaction of the store."""
        ...


class _Stage:
    world: World


STAGE = _Stage()


def begin(state: State) -> dict[str, Any]:
    STAGE.world.note("began", state["op"])
    return {"at": 0}


def act(state: State, ctx: Context) -> dict[str, Any]:
    at = state["at"]
    place, heard = f"{state['op']}/{at}", list[str]()
    for part in state["todo"][at].split("-"):
        if part == "once":
            ctx.once("mail", _mail, place)
            STAGE.world.note("recorded", place)
        elif part == "pay":
            ctx.transaction("pay", STAGE.world.pay, place)
            STAGE.world.note("recorded", place)
        elif part == "sleep":
            ctx.sleep(NAP)
        elif part == "ask":
            heard.append(f"{interrupt('well?', answer=str)}")
        elif part.startswith("fail") and STAGE.world.fails(place, int(part[4:])):
            raise ValueError("on purpose")
        elif part.startswith("stop") and STAGE.world.fails(place, int(part[4:])):
            raise StopIteration
    return {"at": at + 1, "heard": heard}


async def linger(state: State) -> dict[str, Any]:
    STAGE.world.note("lingers", f"{state['op']}/{state['at']}")
    await asyncio.sleep(LINGER)
    return {"at": state["at"] + 1}


def _mail(place: str) -> str:
    STAGE.world.note("mail", place)
    return place


def end(state: State) -> dict[str, Any]:
    STAGE.world.note("ended", state["op"])
    return {"log": [state["op"]]}


def app_of(
    name: str,
    store: Any = None,
    interval: int = 1,
    *,
    lingers: bool = False,
    period: timedelta | None = None,
) -> App[State]:
    """A graph; only if it ``lingers`` it has a node that is async. ``period`` is of a schedule."""
    graph: StateGraph[State] = StateGraph(State, name=name)
    graph.add_node("begin", begin)
    graph.add_node("act", act)
    graph.add_node("linger", linger if lingers else act)
    graph.add_node("end", end)
    graph.add_edge(START, "begin")
    ways = {"more": "act", "lingers": "linger", "ends": "end"}
    for node in ("begin", "act", "linger"):
        graph.add_conditional_edges(node, _what_next, ways)
    graph.add_edge("end", END)
    if period is not None:
        graph.schedule(period, name="tick", input=_tick, overlap="queue", catch_up="all")
    return graph.compile(
        checkpoint=CheckpointConfig(store=store, interval=interval),
        retry_runs=Retry(attempts=ATTEMPTS, delay=0.5, factor=1.0, jitter=0.0),
    )


def _tick(moment: datetime) -> dict[str, Any]:
    return input_of(f"tick {round(moment.timestamp())}", [])


def _what_next(state: State) -> str:
    left = state["todo"][state["at"] :]
    return "ends" if not left else "lingers" if left[0] == "linger" else "more"


def input_of(op: str, todo: Sequence[str]) -> dict[str, Any]:
    return {"op": op, "todo": list(todo)}
