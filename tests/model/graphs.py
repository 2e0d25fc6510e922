"""The graphs that histories run: what an input does is written in the input.

An input names its operation and a list of acts; the graph does one act per step, then notes the
operation in the state's ``log``. The ``world`` is told what really happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from secrets import token_hex
from typing import Annotated, Any, Protocol, TypedDict

from milecastle import (
    END,
    START,
    App,
    Context,
    Retry,
    Send,
    StateGraph,
    append,
    inbox,
    interrupt,
)
from milecastle.model.policies import CheckpointConfig
from tests.model.buckets import BUCKET
from tests.model.hooks import add_hook
from tests.model.remembering import act_on_memory

__all__ = [
    "ACTS",
    "GRAPHS",
    "KIN_ACTS",
    "LARGE",
    "MAIL_ACTS",
    "NAP",
    "STAGE",
    "TOPICS",
    "Settings",
    "State",
    "World",
    "app_of",
    "input_of",
]

GRAPHS = ("one", "two")
ACTS = (
    *("plain", "once", "sleep", "ask", "fail1", "fail4"),
    *("once-fail1", "once-sleep", "once-ask"),
)
"""``fail1`` fails once, ``fail4`` until a person has retried it. Not in here: ``stop1`` fails with
``StopIteration``, ``linger`` takes as long as ``LINGER`` says, ``pay`` and ``large`` need
PostgreSQL."""

TOPICS = ("a", "b", "news")
MAIL_ACTS = (
    *("get", "get", "any", "try", "tell", "limit", "pair", "pair-fail1"),
    *("get-get", "get-once", "get-sleep", "get-ask", "get-fail1", "try-limit", "any-fail4"),
)
"""``get`` receives from one topic, ``any`` from two, ``try`` with a timeout; ``tell`` sends to the
own thread; ``limit`` asks with a deadline; ``pair`` is two tasks that receive and record. The third
topic has an inbox."""

KIN_ACTS = (
    *("spawn-join", "spawn.sleep-join", "spawn.fail1-join", "spawn.fail4-join", "spawn.ask-join"),
    *("leave.ask", "spawn-once-join", "spawn.ask-spawn-join", "spawn.sleep-fail1-join"),
    *("emit", "emit-ask", "emit-fail1", "emit-sleep-fail1"),
)
"""``spawn`` starts a child that does an act, ``leave`` one that outlives a cancellation; ``join``
waits for the last one. ``emit`` stores values. Only workers can start children."""

EMITTED = 34
"""Two more than a chunk holds."""

LARGE = 30_000
"""How many random bytes ``large`` writes when it first runs: a database may refuse them."""

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
    got: Annotated[list[str], append]
    mixed: Annotated[list[str], append]
    wrote: Annotated[list[str], append]
    bulk: str


class MailState(State):
    told: Annotated[list[str], append, inbox("news")]


@dataclass
class Settings:
    """The config of a run: the operation that brought it."""

    op: str


class World(Protocol):
    """What nodes really do. A place is an operation and the number of its act."""

    def note(self, what: str, place: str) -> None:
        """Something has happened."""
        ...

    def now(self) -> int:
        """The moment, as effects have it."""
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


def begin(state: State, ctx: Context) -> dict[str, Any]:
    if state["op"]:
        STAGE.world.note("began", state["op"])
        _note_config(state, ctx)
    return {"at": 0}


def _note_config(state: State, ctx: Context) -> None:
    found: Settings | None = ctx.config
    STAGE.world.note("config", f"{state['op']}={found.op if found else ''}")


def act(state: State, ctx: Context) -> dict[str, Any]:
    at = state["at"]
    place, heard, got = f"{state['op']}/{at}", list[str](), list[str]()
    wrote: list[str] = []
    child = bulk = ""
    _note_config(state, ctx)
    for number, part in enumerate(state["todo"][at].split("-")):
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
        elif part == "limit":
            said = interrupt("well?", answer=str, within=NAP, otherwise="")
            STAGE.world.note("decided", f"{place}.{number}={said}")
            heard += [said] if said else []
        elif part == "get":
            got += _receive(ctx, "a")
        elif part == "any":
            got += _receive(ctx, "a", "b")
        elif part == "try":
            said = ctx.receive("b", timeout=NAP, default="")
            got += [said] if said else []
        elif part == "tell" and ctx.thread is not None:
            ctx.send(ctx.thread.thread, place, "b")
            STAGE.world.note("told", place)
        elif part.startswith(("spawn", "leave")):
            child = _spawn(part, f"{place}.{number}", ctx)
        elif part == "join":
            STAGE.world.note("joined", f"{child}={ctx.join(child).status}")
        elif part == "emit":
            for value in range(EMITTED):
                ctx.emit([f"{place}.{number}", value], keep=True)
        elif part in ("count", "put", "keep", "drop", "recall"):
            wrote += act_on_memory(part, place, ctx.memory, STAGE.world)
        elif part in ("take", "spare", "over"):
            _take(part, f"{place}.{number}", ctx)
        elif part == "large" and STAGE.world.fails(place, 1):
            bulk = token_hex(LARGE)
        elif part.startswith("fail") and STAGE.world.fails(place, int(part[4:])):
            raise ValueError("on purpose")
        elif part.startswith("stop") and STAGE.world.fails(place, int(part[4:])):
            raise StopIteration
    more = {"bulk": bulk} if bulk else {}
    return {"at": at + 1, "heard": heard, "got": got, "wrote": wrote, **more}


def _receive(ctx: Context, *topics: str) -> list[str]:
    thread = ctx.thread.thread if ctx.thread else ""
    STAGE.world.note("waits", f"{thread} {' '.join(topics)}")
    found: str = ctx.receive(topics).value
    STAGE.world.note("got", f"{thread} {found}")
    return [found]


def _take(part: str, place: str, ctx: Context) -> None:
    STAGE.world.note("takes", place)
    ctx.take(BUCKET, 2 if part == "spare" else 1)
    if part != "take":
        ctx.settle(BUCKET, -1 if part == "spare" else 1)


def _spawn(part: str, place: str, ctx: Context) -> str:
    verb, _, todo = part.partition(".")
    given = input_of(place, [todo] if todo else [])
    child = ctx.spawn(GRAPHS[1], given, on_cancel="cancel" if verb == "spawn" else "leave")
    STAGE.world.note("spawned" if verb == "spawn" else "left", f"{place}={child}")
    return child


def part(state: State, ctx: Context) -> dict[str, Any]:
    """One of two tasks: its record is about the message that it received."""
    found = ctx.receive("a")
    known, place = ctx.once("about", str, found), f"{state['op']}/{state['at']}.{ctx.task}"
    if "fail1" in state["todo"][state["at"]] and STAGE.world.fails(place, 1):
        raise ValueError("on purpose")
    return {"got": [f"{found}*"], "mixed": [] if known == found else [f"{known} {found}"]}


def join(state: State) -> dict[str, Any]:
    return {"at": state["at"] + 1}


async def linger(state: State) -> dict[str, Any]:
    STAGE.world.note("lingers", f"{state['op']}/{state['at']}")
    await asyncio.sleep(LINGER)
    return {"at": state["at"] + 1}


def _mail(place: str) -> str:
    STAGE.world.note("mail", place)
    return place


def end(state: State) -> dict[str, Any]:
    """A run that a message started has no operation."""
    if not state["op"]:
        return {}
    STAGE.world.note("ended", state["op"])
    return {"log": [state["op"]], "op": "", "todo": []}


def app_of(
    name: str,
    store: Any = None,
    interval: int = 1,
    *,
    lingers: bool = False,
    period: timedelta | None = None,
    mails: bool = False,
    hooks: bool = False,
) -> App[State]:
    """A graph; only if it ``lingers`` it has a node that is async. ``period`` is of a schedule.

    If it ``mails``, the state has an inbox; with ``hooks`` its events are delivered.
    """
    shape: type[State] = MailState if mails else State
    graph: StateGraph[State] = StateGraph(shape, name=name, config=Settings)
    graph.add_node("begin", begin)
    graph.add_node("act", act)
    graph.add_node("linger", linger if lingers else act)
    graph.add_node("part", part)
    graph.add_node("join", join)
    graph.add_node("end", end)
    graph.add_edge(START, "begin")
    graph.add_edge("part", "join")
    for node in ("begin", "act", "linger", "join"):
        graph.add_conditional_edges(node, _what_next, ["act", "linger", "part", "end"])
    graph.add_edge("end", END)
    if hooks:
        add_hook(graph)
    if period is not None:
        graph.schedule(period, name="tick", input=_tick, overlap="queue", catch_up="all")
    return graph.compile(
        checkpoint=CheckpointConfig(store=store, interval=interval),
        retry_runs=Retry(attempts=ATTEMPTS, delay=0.5, factor=1.0, jitter=0.0),
    )


def _tick(moment: datetime) -> dict[str, Any]:
    return input_of(f"tick {round(moment.timestamp())}", [])


def _what_next(state: State) -> str | list[Send]:
    left = state["todo"][state["at"] :]
    if left and left[0].startswith("pair"):
        return [Send("part", {}), Send("part", {})]
    return "end" if not left else "linger" if left[0] == "linger" else "act"


def input_of(op: str, todo: Sequence[str]) -> dict[str, Any]:
    return {"op": op, "todo": list(todo)}
