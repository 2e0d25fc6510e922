"""An order, on DBOS: reserve each item, charge the card, ask a person, ship.

python dbos_before.py run        # starts the order, or continues it after a crash
python dbos_before.py approve    # in another process
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from dbos import DBOS, DBOSClient, SetWorkflowID

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


# -- the workflow --------------------------------------------------------------------------

DATABASE = "sqlite:///orders.sqlite"


@DBOS.step()
def reserve(order: str, item: str) -> str:
    return request(f"{order}-{item}", "reserve", item=item)


@DBOS.step(retries_allowed=True, max_attempts=3, interval_seconds=0.1)
def charge(order: str, amount: int) -> str:
    return request(f"{order}-charge", "charge", amount=amount)


@DBOS.step()
def ship(order: str) -> str:
    return request(f"{order}-ship", "ship")


@DBOS.workflow()
def checkout(order: str, items: list[str]) -> dict[str, Any]:
    reserved = [reserve(order, item) for item in items]
    receipt = charge(order, sum(PRICES[item] for item in items))
    approved = DBOS.recv("approval", timeout_seconds=24 * 3600)
    parcel = ship(order) if approved else None
    return {"reserved": reserved, "receipt": receipt, "approved": approved, "parcel": parcel}


# -- the program ---------------------------------------------------------------------------


def run() -> None:
    DBOS(config={"name": "orders", "system_database_url": DATABASE, "log_level": "ERROR"})
    DBOS.launch()  # also continues what was running when the last process died
    with SetWorkflowID(ORDER):
        handle = DBOS.start_workflow(checkout, ORDER, list(PRICES))
    result = handle.get_result()  # this process must stay: it waits for the approval
    print(json.dumps({**result, "effects": effects()}))
    DBOS.destroy()


def approve() -> None:
    DBOSClient(system_database_url=DATABASE).send(ORDER, True, "approval")


if __name__ == "__main__":
    {"run": run, "approve": approve}[sys.argv[1]]()
