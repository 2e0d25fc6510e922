"""The same order, on Milecastle. The services are unchanged.

python dbos_after.py run         # starts the order, or continues it after a crash
python dbos_after.py approve     # in another process
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from milecastle import END, START, Context, Retry, StateGraph, interrupt

ORDER, PRICES = "order-7", {"lamp": 40, "rope": 5}
REQUESTS = Path("requests.jsonl")  # what the services received


# -- the services --------------------------------------------------------------------------


def request(key: str, kind: str, **details: Any) -> str:
    """Send a request to a service. A service ignores a second request with the same key."""
    disturb(kind)
    with REQUESTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"key": key, "kind": kind, **details}) + "\n")
    return f"{kind} {key}"


def effects() -> list[dict[str, Any]]:
    """What the services did: one entry for each key, ordered by it."""
    lines = REQUESTS.read_text("utf-8").splitlines() if REQUESTS.exists() else []
    found = {entry["key"]: entry for entry in map(json.loads, lines)}
    return [found[key] for key in sorted(found)]


def disturb(kind: str) -> None:
    """For the test: kill this process once, and let a service be down once."""
    for wish, happens in (("KILL_AT", kill), ("DOWN_AT", be_down)):
        if os.environ.get(wish) == kind and not Path(wish).exists():
            Path(wish).touch()
            happens()


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def be_down() -> None:
    raise ConnectionError("the service is down")


# -- the graph -----------------------------------------------------------------------------


class Order(TypedDict):
    order: str
    items: list[str]
    reserved: NotRequired[list[str]]
    receipt: NotRequired[str]
    approved: NotRequired[bool]
    parcel: NotRequired[str | None]


graph = StateGraph(Order)


@graph.node
def reserve(state: Order, ctx: Context) -> dict[str, Any]:
    order = state["order"]
    return {
        "reserved": [
            ctx.once(item, request, f"{order}-{item}", "reserve", item=item)
            for item in state["items"]
        ]
    }


@graph.node(retry=Retry(attempts=3, delay=0.1))
def charge(state: Order) -> dict[str, Any]:
    amount = sum(PRICES[item] for item in state["items"])
    return {"receipt": request(f"{state['order']}-charge", "charge", amount=amount)}


@graph.node
def approve(state: Order) -> dict[str, Any]:
    return {"approved": interrupt("Ship?", show=state["items"], answer=bool)}


@graph.node
def ship(state: Order) -> dict[str, Any]:
    approved = state.get("approved")
    return {"parcel": request(f"{state['order']}-ship", "ship") if approved else None}


graph.add_edges(START, "reserve", "charge", "approve", "ship", END)
app = graph.compile(store="sqlite:///orders.db")


# -- the program ---------------------------------------------------------------------------


def main(verb: str) -> None:
    if verb == "run":
        order: Order = {"order": ORDER, "items": list(PRICES)}
        result = app.invoke(order, thread=ORDER)  # returns at the question: no process waits
    else:
        result = app.resume(ORDER, answer=True)
    if result.status == "completed":
        told = {key: result[key] for key in ("reserved", "receipt", "approved", "parcel")}
        print(json.dumps({**told, "effects": effects()}))


if __name__ == "__main__":
    main(sys.argv[1])
