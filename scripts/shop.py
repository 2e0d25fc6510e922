"""A shop, for pictures of the web view: graphs whose threads end in every way a thread can.

``orders`` prices with retries, reserves with a fan-out, sleeps, asks, ships by a subgraph, and
fails if an order says so; ``imports`` reads many rows at once; ``support`` is an agent that asks
before it pays; ``payments`` waits for a message; ``parcels`` starts children.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from milecastle import (
    END,
    START,
    Context,
    ExecutionConfig,
    Retry,
    StateGraph,
    append,
    interrupt,
    merge,
)
from milecastle.agents import agent, tool

Message = dict[str, Any]


class Item(TypedDict):
    """A line of an order."""

    sku: str
    pieces: int


class Order(TypedDict):
    """An order. ``trouble`` says what goes wrong with it."""

    customer: str
    items: list[Item]
    log: Annotated[list[str], append]
    trouble: NotRequired[str]
    price: NotRequired[dict[str, float]]
    risk: NotRequired[float]
    reserved: NotRequired[Annotated[dict[str, bool], merge]]
    approved: NotRequired[bool]
    parcel: NotRequired[str]


class OneItem(TypedDict):
    """The input of a task that reserves."""

    item: Item


orders: StateGraph[Order] = StateGraph(Order, name="orders")
_tries: dict[str, int] = {}


@orders.node
def validate(state: Order) -> dict[str, Any]:
    """Check the address."""
    time.sleep(0.12)
    return {"log": ["validated"]}


@orders.node(retry=Retry(attempts=3, delay=0.6, factor=2))
def price(state: Order) -> dict[str, Any]:
    """Ask the price list, which is away now and then."""
    time.sleep(0.5)
    if state.get("trouble") == "price":
        raise LookupError("the price list has no SKU TBL-OAK-180")
    tries = _tries[state["customer"]] = _tries.get(state["customer"], 0) + 1
    if state.get("trouble") == "retries" and tries % 3:
        raise ConnectionError("the price list does not answer")
    net = 209.0 * sum(item["pieces"] for item in state["items"])
    return {"price": {"net": net, "vat": net * 0.2, "total": net * 1.2}, "log": ["priced"]}


@orders.node
def risk(state: Order) -> dict[str, Any]:
    """Look the customer up."""
    time.sleep(0.7)
    return {"risk": 0.71 if sum(item["pieces"] for item in state["items"]) > 20 else 0.08}


@orders.node
def plan(state: Order) -> dict[str, Any]:
    """Choose a warehouse, when the price and the risk are there."""
    return {"log": ["planned"]}


@orders.node(limit=4)
def reserve(state: OneItem, ctx: Context) -> dict[str, Any]:
    """Reserve one line."""
    item = state["item"]
    time.sleep(0.15 + 0.05 * (len(item["sku"]) % 5))
    return {"reserved": {item["sku"]: True}}


@orders.node
def hold(state: Order, ctx: Context) -> dict[str, Any]:
    """Wait for the supplier."""
    if state.get("trouble") == "late":
        ctx.sleep(timedelta(hours=2))
    elif state.get("trouble") != "none":
        ctx.sleep(1.5)
    return {"log": ["held"]}


@orders.node
def approve(state: Order) -> dict[str, Any]:
    """Ask if it is large."""
    pieces, price = sum(item["pieces"] for item in state["items"]), state.get("price", {})
    if pieces <= 20:
        return {"approved": True}
    total = f"\u00a3{price.get('total', 0):,.2f}"
    shown = {"customer": state["customer"], "total": total, "risk": state.get("risk")}
    said = interrupt(f"Ship {pieces} tables to a new address?", answer=bool, show=shown)
    return {"approved": said, "log": ["approved" if said else "refused"]}


class Parcel(TypedDict):
    """The state of the subgraph; it shares its keys with an order."""

    customer: str
    log: Annotated[list[str], append]
    trouble: NotRequired[str]
    parcel: NotRequired[str]


shipping: StateGraph[Parcel] = StateGraph(Parcel, name="shipping")


@shipping.node
def pack(state: Parcel) -> dict[str, Any]:
    """Pack it."""
    time.sleep(0.2)
    return {"log": ["packed"]}


@shipping.node
def label(state: Parcel) -> dict[str, Any]:
    """Print a label, if the printer has ink."""
    if state.get("trouble") == "label":
        raise TimeoutError("the printer of hall 2 does not answer")
    return {"parcel": f"parcel for {state['customer']}"}


shipping.add_edges(START, "pack", "label", END)
orders.add_node("ship", shipping.compile())


@orders.node
def notify(state: Order) -> dict[str, Any]:
    """Write to the customer."""
    time.sleep(0.1)
    return {"log": ["told the customer"]}


def _after_approval(state: Order) -> str:
    return "yes" if state.get("approved") else "no"


orders.add_edge(START, "validate").add_edge("validate", "price").add_edge("validate", "risk")
orders.add_edge("price", "plan").add_edge("risk", "plan")
orders.map("plan", "reserve", over="items", item="item")
orders.add_edges("reserve", "hold", "approve")
orders.add_conditional_edges("approve", _after_approval, {"yes": "ship", "no": END})
orders.add_edges("ship", "notify", END)


class Import(TypedDict):
    """Rows to import; ``pause`` is how long each takes, and ``bad`` which fail."""

    rows: list[int]
    pause: float
    bad: list[int]
    done: Annotated[list[int], append]
    round: NotRequired[int]
    rounds: NotRequired[int]


class Row(TypedDict):
    """The input of a task that reads a row."""

    row: int
    pause: float
    bad: list[int]


imports: StateGraph[Import] = StateGraph(Import, name="imports")


@imports.node(limit=8)
def read_row(state: Row) -> dict[str, Any]:
    """Read one row."""
    time.sleep(state["pause"] * (1 + state["row"] % 7))
    if state["row"] in state["bad"]:
        raise ValueError(f"row {state['row']} has no date")
    return {"done": [state["row"]]}


@imports.node
def total(state: Import) -> dict[str, Any]:
    """Count them."""
    return {"round": state.get("round", 0) + 1}


def _again(state: Import) -> str:
    return "again" if state.get("round", 0) < state.get("rounds", 1) else "ends"


imports.with_default_config(ExecutionConfig(max_steps=None, cycle_detection=False))
imports.map(START, "read_row", over="rows", item="row")
imports.add_edge("read_row", "total")
imports.add_conditional_edges("total", _again, {"again": "total", "ends": END})


@imports.schedule("0 3 * * *", name="nightly-import")
def nightly(tick: datetime) -> dict[str, Any]:
    """Import what came in a day."""
    return {"rows": [tick.day], "pause": 0.0, "bad": [], "done": []}


imports.schedule(
    timedelta(hours=2), input={"rows": [1], "pause": 0.0, "bad": [], "done": []}, name="stock"
)


def find_order(order: str) -> dict[str, Any]:
    """Look up an order."""
    time.sleep(0.2)
    return {"order": order, "chairs": 2, "price": 298.0, "arrived": "3 days ago"}


def policy(topic: str) -> dict[str, Any]:
    """Look up what the shop promises."""
    return {"refund": "full, within 30 days", "needs_photo": False, "limit": 250.0}


def refund_order(order: str, amount: float, *, call: Message) -> str:
    """Pay money back."""
    return f"paid {amount} for order {order}"


def scripted(messages: list[Message], tools: list[Message]) -> Message:
    """A model that always says the same, in three turns."""
    time.sleep(0.6)
    results = [one for one in messages if one["role"] == "tool"]
    asked = [one for one in messages if one["role"] == "user"]
    calls: list[tuple[str, Message]]
    used = {"input": 100 + 20 * len(messages), "output": 15}
    if not results:
        calls = [("find_order", {"order": "20377"}), ("policy", {"topic": "damaged on arrival"})]
    elif len(asked) == 1:
        text = (
            "I am sorry about that. The chairs were delivered three days ago, so both choices are "
            "open to you:\n\n- a refund of \u00a3298.00 for the two chairs, or\n- two new chairs, "
            "with you by Thursday.\n\nWhich do you prefer?"
        )
        return {"content": text, "usage": used}
    elif len(results) == 2:
        calls = [("refund_order", {"order": "20377", "amount": 298.0})]
    else:
        return {"content": f"Done: {results[-1]['content']}.", "usage": used}
    text = "I will refund \u00a3298.00 to the card that you paid with." if results else ""
    named = [{"name": name, "args": args} for name, args in calls]
    return {"content": text, "tool_calls": named, "usage": used}


support = agent(
    scripted,
    [find_order, policy, tool(refund_order, approve=lambda args: args["amount"] > 250)],
    system="You are a support agent.",
    name="support",
)


class Payment(TypedDict):
    """A payment that is waited for."""

    order: str
    log: Annotated[list[str], append]


payments: StateGraph[Payment] = StateGraph(Payment, name="payments")


@payments.node
def wait_for_money(state: Payment, ctx: Context) -> dict[str, Any]:
    """Wait for a message."""
    paid: Any = ctx.receive("paid")
    return {"log": [f"paid {paid['amount']}"]}


payments.add_edges(START, "wait_for_money", END)


class Parcels(TypedDict):
    """An order whose parcels are runs of their own."""

    customer: str
    halls: list[str]
    sent: Annotated[list[str], append]


parcels: StateGraph[Parcels] = StateGraph(Parcels, name="parcels")


@parcels.node
def send(state: Parcels, ctx: Context) -> dict[str, Any]:
    """Start a child for each hall, and wait for all."""
    given: list[dict[str, Any]] = [
        {"order": f"{state['customer']} {hall}", "log": []} for hall in state["halls"]
    ]
    children = [ctx.spawn("payments", one) for one in given]
    ended = [ctx.join(child) for child in children]
    return {"sent": [one.status for one in ended]}


parcels.add_edges(START, "send", END)

Trouble = Literal["", "none", "price", "retries", "late", "label"]


def order(customer: str, lines: int, pieces: int, trouble: Trouble = "none") -> dict[str, Any]:
    """The input of a run of ``orders``."""
    kinds = ("TBL-OAK-180", "LMP-BRS-11", "CHR-OAK-02", "SHF-ASH-90", "RUG-WOL-240")
    items = [{"sku": f"{kinds[at % 5]}-{at:02}", "pieces": pieces} for at in range(lines)]
    return {"customer": customer, "items": items, "log": [], "trouble": trouble}
