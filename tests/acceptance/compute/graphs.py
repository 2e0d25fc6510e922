"""Graphs with nodes that run in other processes, which import this module to find them."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Required, TypedDict

from milecastle import (
    END,
    START,
    Command,
    Context,
    File,
    Retry,
    Send,
    StateGraph,
    Timeout,
    append,
    current,
    interrupt,
)


@dataclass
class Part:
    """A type that the state declares."""

    number: int
    pid: int


class Work(TypedDict, total=False):
    numbers: list[int]
    number: int
    texts: list[str]
    text: str
    folder: str
    parts: Annotated[list[Part], append]
    said: Annotated[list[str], append]


class Storing(TypedDict, total=False):
    """The state of a node that stores a file and reads another one."""

    folder: Required[str]
    given: Required[File]
    made: File
    said: Annotated[list[str], append]


class Unlucky(Exception):
    """An error with its own attributes."""

    def __init__(self, number: int) -> None:
        super().__init__(f"number {number}")
        self.number = number


def note(state: Work, what: str) -> int:
    """Write a line that outlasts the process; how many lines of it there are."""
    path = Path(state.get("folder", "."), what.replace("/", "-"))
    with path.open("a") as file:
        file.write(f"{os.getpid()}\n")
    return len(path.read_text().splitlines())


def split(state: Work) -> None:
    return None


def mapped(
    node: Any, over: str = "numbers", item: str = "number", **options: Any
) -> StateGraph[Work]:
    """A map, whose items run in processes."""
    made = StateGraph(Work)
    made.add_node("split", split)
    made.add_node("item", node, run_on="process", **options)
    made.add_edge(START, "split")
    made.map("split", "item", over=over, item=item)
    made.add_edge("item", END)
    return made


def single(node: Any, **options: Any) -> StateGraph[Work]:
    """One node that runs in a process."""
    made = StateGraph(Work)
    made.add_node("item", node, run_on="process", **options)
    made.add_edges(START, "item", END)
    return made


# -- nodes ------------------------------------------------------------------------------------


def stores_a_file(state: Storing, ctx: Context) -> dict[str, Any]:
    """Reads a file that the driver stored, and stores one of its own."""
    with ctx.open_file(state["given"]) as opened:
        content = opened.read()
    path = Path(state["folder"], "made.txt")
    path.write_bytes(content.upper())
    return {"made": ctx.file(path), "said": [str(os.getpid())]}


def square(state: Work) -> Work:
    return {"parts": [Part(state.get("number", 0) ** 2, os.getpid())]}


async def asquare(state: Work, ctx: Context) -> Work:
    await ctx.aemit(state.get("number", 0))
    found = await ctx.aonce("pid", os.getpid)
    return {"parts": [Part(state.get("number", 0) ** 2, found)]}


def dies_on_three(state: Work) -> Work:
    """Number 3 kills its process the first time."""
    if note(state, f"ran {state.get('number')}") == 1 and state.get("number") == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
    return square(state)


def always_dies(state: Work) -> Work:
    note(state, "ran")
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def talks(state: Work, ctx: Context) -> Work:
    """Records, emits and then dies, once."""
    found = ctx.once("mail", note, state, "mail")
    ctx.emit({"found": found, "attempt": ctx.attempt})
    ctx.heartbeat()
    if note(state, "ran") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"said": [f"{found} {ctx.attempt} {current().idempotency_key == ctx.idempotency_key}"]}


def asks(state: Work) -> Work:
    given = interrupt("How many?", show=state.get("numbers"), answer=int)
    return {"said": [f"{given} {current().node}"]}


def sleeps(state: Work, ctx: Context) -> Work:
    ctx.sleep(timedelta(milliseconds=1))
    return {"said": ["slept"]}


def raises(state: Work) -> Work:
    note(state, "ran")
    raise Unlucky(7)


def exits(state: Work) -> Work:
    raise SystemExit(3)


def returns_nonsense(state: Work) -> Any:
    return {"said": [object()]}


def returns_a_number(state: Work) -> Any:
    return 7


def goes(state: Work) -> Command[Literal["last"]]:
    return Command(update={"said": ["went"]}, goto=[Send("last", {"number": 5})])


def last(state: Work) -> Work:
    return {"said": [f"last {state.get('number')}"]}


def transacts(state: Work, ctx: Context) -> Work:
    ctx.transaction("x", print)
    return {}


def stalls(state: Work) -> Work:
    note(state, "ran")
    time.sleep(600)
    return {}


def stops_itself(state: Work) -> Work:
    """Stops its process the first time."""
    if note(state, "stopped") == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return {"said": ["went on"]}


def measures(state: Work) -> Work:
    note(state, "measured")
    return {"said": [f"{len(state.get('text', ''))}"]}


def echoes(state: Work) -> Work:
    return {"said": [state.get("text", "")]}


async def astalls(state: Work) -> Work:
    import asyncio

    note(state, "ran")
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        note(state, "cancelled")
        raise
    return {}


def changes_the_config(state: Work, config: Any) -> Work:
    return {"said": [f"{config['tone']}"]}


def misses_the_shared(state: Work) -> Work:
    """What an item sees besides its own values."""
    return {"said": [f"{state.get('number')} of {len(state.get('numbers', []))}"]}


# -- graphs -----------------------------------------------------------------------------------

squares = mapped(square)
asquares = mapped(asquare)
unlucky_three = mapped(dies_on_three)
shared = mapped(misses_the_shared)
doomed = single(always_dies)
doomed_with_retry = single(always_dies, retry=Retry(attempts=2, delay=0.0, on=ZeroDivisionError))
talking = single(talks)
asking = single(asks)
sleeping = single(sleeps)
raising = single(raises)
retrying = single(raises, retry=Retry(attempts=2, delay=0.0, on=Unlucky))
exiting = single(exits)
nonsense = single(returns_nonsense)
number = single(returns_a_number, retry=3)
transacting = single(transacts)
timed = single(stalls, timeout=Timeout(run=1.5))
idle = single(stalls, timeout=Timeout(idle=1.5))
stalled = mapped(stalls)
astalled = mapped(astalls)
stopping = single(stops_itself)
configured = single(changes_the_config)

measuring = mapped(measures, over="texts", item="text")
echoing = mapped(echoes, over="texts", item="text")

going = StateGraph(Work)
going.add_node("item", goes, run_on="process")
going.add_node("last", last, run_on="process")
going.add_edge(START, "item")
going.add_edge("last", END)

_inner = single(square).compile()
outer = StateGraph(Work)
outer.add_node("inner", _inner)
outer.add_edges(START, "inner", END)

mixed = StateGraph(Work)
mixed.add_node("here", last)
mixed.add_node("there", square, run_on="process")
mixed.add_edge(START, "here")
mixed.add_edge(START, "there")
mixed.add_edge("here", END)
mixed.add_edge("there", END)

storing = StateGraph(Storing)
storing.add_node("store", stores_a_file, run_on="process")
storing.add_edges(START, "store", END)
