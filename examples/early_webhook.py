"""A webhook that arrives too early: the payment is confirmed before any node waits for it.

`app.send` stores the message with the thread, whatever its run does. The bank calls twice, as banks
do: with the event's id as key, the second call changes nothing.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, TypedDict

from milecastle import END, START, Context, StateGraph, Worker, append


class Payment(TypedDict):
    id: str
    amount: int


class Order(TypedDict):
    item: str
    log: Annotated[list[str], append]


graph = StateGraph(Order, topics={"paid": Payment, "shipped": str})


@graph.node
def reserve(state: Order) -> dict[str, Any]:
    return {"log": [f"reserved {state['item']}"]}


@graph.node
def wait_for_payment(ctx: Context) -> dict[str, Any]:
    payment = ctx.receive("paid", Payment)
    return {"log": [f"paid {payment['amount']}"]}


@graph.node
def wait_for_parcel(ctx: Context) -> dict[str, Any]:
    return {"log": [f"shipped with {ctx.receive('shipped', str)}"]}


graph.add_edges(START, "reserve", "wait_for_payment", "wait_for_parcel", END)
app = graph.compile(store="memory://")


def webhook(event: Payment) -> None:
    sent = app.send("order-7", event, "paid", key=event["id"], by="bank")
    what = "was here before" if sent.reused else "is stored"
    print(f"event {event['id']} {what}; the order is {sent.status}")


def work() -> None:
    """Runs what is due, then stops; in production: `milecastle worker`."""
    asyncio.run(Worker([app]).run_until_idle())
    found = app.state("order-7")
    print(f"{found.status}: {', '.join(found.state['log'])}")


def main() -> None:
    app.submit({"item": "lamp"}, thread="order-7")  # no worker has started it yet
    webhook({"id": "e-1", "amount": 30})
    webhook({"id": "e-1", "amount": 30})
    work()
    webhook({"id": "e-1", "amount": 30})
    app.send("order-7", "parcel post", "shipped")
    work()


if __name__ == "__main__":
    main()
