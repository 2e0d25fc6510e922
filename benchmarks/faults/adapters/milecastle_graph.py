"""Milecastle, a graph: `submit` and `answer` commit, `work` is a worker, `run` is `invoke` here.

As in docs/how-to/run-a-fleet.md and docs/how-to/human-approval.md; `charge` is recorded with
`ctx.once`, as docs/how-to/record-side-effects.md recommends for a payment.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated, Any, NotRequired, TypedDict

from benchmarks.faults.adapters.milecastle_status import LEASE, say, statuses
from benchmarks.faults.outside import ITEMS, call
from milecastle import (
    END,
    START,
    Context,
    Retry,
    StateGraph,
    Worker,
    WorkerOptions,
    append,
    interrupt,
)

CODE = os.environ.get("FAULTS_CODE", "")


class Order(TypedDict):
    order: str
    items: list[str]
    reserved: NotRequired[str]
    receipt: NotRequired[str]
    packed: Annotated[list[str], append]
    approved: NotRequired[str]
    parcel: NotRequired[str]
    told: NotRequired[str]


class OneItem(TypedDict):
    order: str
    item: str


def reserve(state: Order) -> dict[str, Any]:
    return {"reserved": call(state["order"], "reserve")}


def charge(state: Order, ctx: Context) -> dict[str, Any]:
    return {"receipt": ctx.once("charge", call, state["order"], "charge")}


def pack(state: OneItem) -> dict[str, Any]:
    return {"packed": [call(state["order"], "pack", state["item"])]}


def approve(state: Order) -> dict[str, Any]:
    return {"approved": interrupt("Ship?", answer=str)}


def ship(state: Order) -> dict[str, Any]:
    return {"parcel": call(state["order"], "ship")}


def notify(state: Order) -> dict[str, Any]:
    return {"told": call(state["order"], "notify")}


def audit(state: Order) -> dict[str, Any]:
    call(state["order"], "audit")
    return {}


asks = "approval" if CODE == "rename-wait" else "approve"
sends = "dispatch" if CODE == "rename-ahead" else "ship"
before = ["charge", "reserve"] if CODE == "reorder" else ["reserve", "charge"]
before = ["reserve", "audit", "charge"] if CODE == "insert-before" else before
after = [asks, "audit", sends] if CODE == "insert-after" else [asks, sends]
after = [asks] if CODE == "remove-ahead" else after

graph = StateGraph(Order, name="orders")
for name, function in (("reserve", reserve), ("charge", charge), ("pack", pack), (asks, approve)):
    graph.add_node(name, function)
if CODE != "remove-ahead":
    graph.add_node(sends, ship)
if CODE.startswith("insert"):
    graph.add_node("audit", audit)
graph.add_node("notify", notify)
graph.add_edges(START, *before)
graph.map(before[-1], "pack", over="items", item="item")
graph.add_edges("pack", *after, "notify", END)
app = graph.compile(store=os.environ["FAULTS_STORE"], retry_runs=Retry(attempts=20, delay=0.5))


def new(order: str) -> Order:
    return {"order": order, "items": ITEMS, "packed": []}


def main(verb: str, *given: str) -> None:
    """Do one verb of the fault harness."""
    if verb == "work":
        options = WorkerOptions(heartbeat=LEASE / 3, silent_after=LEASE)
        asyncio.run(Worker([app], options).run_until_signalled())
    elif verb == "start":
        for order in given:
            app.submit(new(order), thread=order)
    elif verb == "run":
        app.invoke(new(given[0]), thread=given[0])
    elif verb == "approve":
        app.answer(given[0], given[1])
    elif verb == "resume":
        app.resume(given[0], answer=given[1])
    elif verb == "status":
        say(statuses(app, given))


if __name__ == "__main__":
    main(*sys.argv[1:])
