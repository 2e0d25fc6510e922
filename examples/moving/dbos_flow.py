"""The same order as a flow: the function stays. The services are unchanged.

python dbos_flow.py run         # starts the order, or continues it after a crash
python dbos_flow.py approve     # in another process
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from milecastle import Retry, flow, interrupt, step

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


# -- the flow ------------------------------------------------------------------------------


@step
def reserve(order: str, item: str) -> str:
    return request(f"{order}-{item}", "reserve", item=item)


@step(retry=Retry(attempts=3, delay=0.1))
def charge(order: str, amount: int) -> str:
    return request(f"{order}-charge", "charge", amount=amount)


@step
def ship(order: str) -> str:
    return request(f"{order}-ship", "ship")


@flow
def checkout(order: str, items: list[str]) -> dict[str, Any]:
    reserved = [reserve(order, item) for item in items]
    receipt = charge(order, sum(PRICES[item] for item in items))
    approved = interrupt("Ship?", show=items, answer=bool, within=24 * 3600, otherwise=None)
    parcel = ship(order) if approved else None
    return {"reserved": reserved, "receipt": receipt, "approved": approved, "parcel": parcel}


app = checkout.compile(store="sqlite:///orders.db")


# -- the program ---------------------------------------------------------------------------


def main(verb: str) -> None:
    if verb == "run":
        given = checkout.input(ORDER, list(PRICES))
        result = app.invoke(given, thread=ORDER)  # returns at the question: no process waits
    else:
        result = app.resume(ORDER, answer=True)
    if result.status == "completed":
        print(json.dumps({**result["result"], "effects": effects()}))


if __name__ == "__main__":
    main(sys.argv[1])
