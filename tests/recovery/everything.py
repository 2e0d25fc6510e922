"""One graph that uses everything together, and what it does to the world outside.

``plan`` records a step and leads to a fan-out by ``map`` (its tasks fail at first), and to two
branches that ask, one of which is longer than the other; ``gather`` is deferred until all of them
have ended, and sends two customers to a subgraph by ``Command``. The subgraph asks, and records.
Then the run sleeps, fans out by ``Send`` from a router, and ends.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Annotated, Any, TypedDict

from milecastle import (
    END,
    START,
    App,
    Command,
    Context,
    Retry,
    Send,
    StateGraph,
    add,
    append,
    interrupt,
    merge,
)
from milecastle.records import Interrupt

INPUT: dict[str, Any] = {"items": [1, 2], "notes": [], "total": 0, "seen": {}, "item": 0}


class Order(TypedDict):
    items: list[int]
    item: int
    notes: Annotated[list[str], append]
    total: Annotated[int, add]
    seen: Annotated[dict[str, int], merge]


class Customer(TypedDict):
    who: int
    words: Annotated[list[str], append]


class World:
    """Counts what was really done, by what the node says makes it one thing."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()

    def do(self, ctx: Context, name: str, value: Any) -> Any:
        """Something that must not be done again once it is recorded."""
        self.done[f"{ctx.idempotency_key}/{name}"] += 1
        return value


def answer(found: Interrupt) -> Any:
    """What the person at the desk says: it follows from the question."""
    return found.question["number"] * 10


def everything(
    *, delay: float = 2, is_async: bool = True, **settings: Any
) -> tuple[App[Order], World]:
    """The app and the world that it works on. ``delay`` is that of the first retry."""
    world = World()
    graph = StateGraph(Order)
    _add_work(graph, world, delay)
    graph.add_node("customer", _customer(world), give=_give, take=_take)
    _add_end(graph, world, is_async)
    graph.add_edge(START, "plan")
    graph.map("plan", "work", over="items", item="item")
    graph.add_edges("plan", "left", "polish", "gather")
    graph.add_edges("plan", "right", "gather")
    graph.add_edge("work", "gather")
    graph.add_edge("customer", "nap")
    graph.add_conditional_edges(
        "nap", lambda state: [Send("tail", {"item": n}) for n in state["items"]], ["tail"]
    )
    graph.add_edges("tail", END)
    return graph.compile(interrupt_before=["nap"], **settings), world


def _add_work(graph: StateGraph[Order], world: World, delay: float) -> None:
    def plan(state: Order, ctx: Context) -> dict[str, Any]:
        return {"total": ctx.once("plan", world.do, ctx, "plan", 100)}

    def work(state: Order, ctx: Context) -> dict[str, Any]:
        item = state["item"]
        done = ctx.once("work", world.do, ctx, "work", item)
        if ctx.attempt == 1:
            raise ConnectionError("it fails the first time")
        return {"notes": [f"work {done}"], "total": done}

    def ask(state: Order, ctx: Context, name: str) -> dict[str, Any]:
        ctx.once("look", world.do, ctx, "look", name)
        first = interrupt({"number": len(name)}, show=state["items"], answer=int)
        second = interrupt({"number": first}, answer=int) if name == "left" else 0
        return {"seen": {name: first + second}}

    def polish(state: Order) -> dict[str, Any]:
        return {"notes": [f"polished {state['seen']['left']}"]}

    def gather(state: Order) -> Command[Any]:
        sends = [Send("customer", {"item": n}) for n in state["items"]]
        return Command(update={"notes": [f"gathered {len(state['notes'])}"]}, goto=sends)

    graph.add_node("plan", plan)
    graph.add_node("work", work, retry=Retry(attempts=4, delay=delay), limit=1)
    graph.add_node("left", ask)
    graph.add_node("right", ask)
    graph.add_node("polish", polish)
    graph.add_node("gather", gather, defer=True, goto=["customer"])


def _add_end(graph: StateGraph[Order], world: World, is_async: bool) -> None:
    def nap(state: Order, ctx: Context) -> dict[str, Any]:
        ctx.once("lights out", world.do, ctx, "lights out", None)
        ctx.sleep(timedelta(hours=8))
        return {"notes": ["rested"]}

    async def tail(state: Order, ctx: Context) -> dict[str, Any]:
        told = await ctx.aonce("tell", world.do, ctx, "tell", state["item"])
        return {"total": told}

    def sync_tail(state: Order, ctx: Context) -> dict[str, Any]:
        return {"total": ctx.once("tell", world.do, ctx, "tell", state["item"])}

    graph.add_node("nap", nap)
    graph.add_node("tail", tail if is_async else sync_tail)


def _customer(world: World) -> App[Customer]:
    graph = StateGraph(Customer)

    def greet(state: Customer, ctx: Context) -> dict[str, Any]:
        ctx.once("greet", world.do, ctx, "greet", None)
        wish = interrupt({"number": state["who"]}, answer=int)
        return {"words": [f"wish {wish}"]}

    def leave(state: Customer) -> dict[str, Any]:
        return {"words": ["bye"]}

    graph.add_node("greet", greet)
    graph.add_node("leave", leave)
    graph.add_edges(START, "greet", "leave", END)
    return graph.compile()


def _give(state: Order) -> dict[str, Any]:
    return {"who": state["item"], "words": []}


def _take(state: Customer) -> dict[str, Any]:
    return {"notes": [f"{state['who']}: {', '.join(state['words'])}"]}
