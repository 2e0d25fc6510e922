"""Random graphs: a shape made into an app, and the world that its nodes work on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from milecastle.app.application import App
from milecastle.app.state_graph import StateGraph
from milecastle.engine.context import Context, interrupt
from milecastle.graph.sending import Command, Send
from milecastle.model.manifest import END, START
from milecastle.model.policies import CheckpointConfig, Retry
from milecastle.ports.store import Store
from tests.simulation.random_shapes import NAP, Member, Shape, Tally, items_of, outcome

__all__ = ["World", "build"]

ATTEMPTS = 3


class World:
    """What nodes really did. ``on_doing`` is called for each thing that must not be done again.

    ``nap`` is for how many seconds nodes sleep. ``waits`` says that async nodes really wait, as
    they must on the loop of a store that may block.
    """

    def __init__(self, *, nap: float = NAP, waits: bool = False) -> None:
        self.nap = nap
        self.waits = waits
        self.done: Counter[str] = Counter()
        self.on_doing: Callable[[Context, str], None] = lambda ctx, name: None

    def do(self, ctx: Context, name: str) -> str:
        """Do something that is to be recorded."""
        self.done[f"{ctx.idempotency_key}/{name}"] += 1
        self.on_doing(ctx, name)
        return name


def build(
    shape: Shape, world: World, store: Store | None = None, folder: Path | None = None
) -> App[Tally]:
    """The graph of a shape; ``folder`` is for portable files."""
    graph = StateGraph(Tally, name="random" if shape.child else "child")
    child = build(shape.child, world) if shape.child else None
    for member in shape.members:
        _add(graph, member, world, child)
        _connect(graph, shape, member)
    graph.add_edge(START, "h0")
    return graph.compile(
        checkpoint=CheckpointConfig(store=store, interval=shape.interval),
        interrupt_before=shape.before,
        interrupt_after=shape.after,
        checkpoint_dir=folder,
    )


def _add(graph: StateGraph[Tally], member: Member, world: World, child: App[Tally] | None) -> None:
    if member.kind == "child" and child is not None:
        graph.add_node(member.name, child, give=_give, take=_taking(member))
        return
    retry = {
        "flaky": Retry(attempts=ATTEMPTS, delay=2, jitter=0),
        "broken": Retry(attempts=2, delay=2, jitter=0),
    }
    graph.add_node(
        member.name,
        _function(member, world),
        retry=retry.get(member.kind),
        on_error=member.fallback,
        defer=member.defer,
        goto=member.exit.targets if member.kind == "goto" else (),
    )


def _function(member: Member, world: World) -> Callable[..., Any]:
    def work(state: Tally) -> Any:
        return outcome(member, state, ())

    def choose(state: Tally) -> Any:
        target = member.exit.targets[state["n"] % len(member.exit.targets)]
        return Command[Any](update=outcome(member, state, ()), goto=target)

    def act(state: Tally, ctx: Context) -> Any:
        return outcome(member, state, _act(member, ctx, world))

    async def act_async(state: Tally, ctx: Context) -> Any:
        if world.waits:
            await asyncio.sleep(1.0)
            if member.kind != "plain":
                await ctx.aonce("look", world.do, ctx, "look")
        return act(state, ctx)

    if member.is_async:
        return act_async
    if member.kind == "goto":
        return choose
    return work if member.kind in ("plain", "turn") else act


def _act(member: Member, ctx: Context, world: World) -> list[Any]:
    """What the node does besides its update; the answers that it was given."""
    kind = member.kind
    if kind == "broken":
        raise ConnectionError("it always fails")
    if kind != "plain":
        ctx.once("look", world.do, ctx, "look")
    if kind == "flaky" and ctx.attempt == 1:
        raise ConnectionError("it fails the first time")
    if kind == "nap":
        ctx.sleep(world.nap)
    if kind == "ask":
        return [interrupt(member.name, answer=int)]
    if kind == "twice":
        first = interrupt("first", answer=int)
        ctx.once("act", world.do, ctx, "act")
        return [first, interrupt("second", answer=int)]
    return []


def _connect(graph: StateGraph[Tally], shape: Shape, member: Member) -> None:
    name, way, targets = member.name, member.exit.way, member.exit.targets
    if way == "fixed":
        for target in targets:
            graph.add_edge(name, target)
    elif way == "map":
        graph.map(name, targets[0], over=items_of, item="item")
    elif way == "send":

        def send(state: Tally) -> list[Send | str]:
            sends = [Send(targets[i % len(targets)], {"item": i}) for i in items_of(state)]
            return [*sends] or [targets[0]]

        graph.add_conditional_edges(name, send, targets)
    elif way == "loop":
        graph.add_edge(name, targets[0], when=lambda state: state["round"] < shape.rounds)
        graph.add_edge(name, END)


def _give(state: Mapping[str, Any]) -> dict[str, Any]:
    return {"round": 0, "item": state["item"], "n": state["n"], "notes": []}


def _taking(member: Member) -> Callable[[Tally], dict[str, Any]]:
    def take(state: Tally) -> dict[str, Any]:
        return {"notes": [f"{member.name}({' '.join(state['notes'])})"], "n": len(state["notes"])}

    return take
