"""The outside world of the order process: every call is two lines in an append-only file.

Nothing of a runtime is in here. A call begins, takes effect, and returns; a process that dies in
between has made a request whose outcome it does not know, as with any service.
"""

from __future__ import annotations

import json
import os
import time
from select import select

ITEMS = [f"item{number}" for number in range(8)]
STEPS = ("reserve", "audit", "charge", "pack", "ship", "notify")
KEYS = ("reserved", "receipt", "packed", "approved", "parcel", "told")


def note(event: str, order: str, kind: str, item: str = "") -> None:
    """Append a line: one write, which a killed process has made or not."""
    line: dict[str, object] = {"event": event, "order": order, "kind": kind, "item": item}
    line |= {"time": time.monotonic_ns(), "pid": os.getpid()}  # one clock for all processes
    file = os.open(os.environ["FAULTS_EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(file, (json.dumps(line) + "\n").encode())
    finally:
        os.close(file)


def call(order: str, kind: str, item: str = "") -> str:
    """Make a request: it travels, takes effect, and the answer travels back."""
    pause = float(os.environ.get("FAULTS_PAUSE", "0.04"))
    is_held = os.environ.get("FAULTS_HOLD_AT") == kind
    note("began", order, kind, item)
    wait(float(os.environ["FAULTS_HOLD"]) if is_held else pause)
    note("effect", order, kind, item)
    wait(pause)
    return answer(order, kind, item)


def wait(seconds: float) -> None:
    """Sleep, by a call that a preloaded clock leaves alone."""
    select([], [], [], seconds)


def answer(order: str, kind: str, item: str = "") -> str:
    """What the service returns: a function of the request."""
    return f"{kind}:{order}/{item}" if item else f"{kind}:{order}"


def final_state(order: str, approved: object) -> dict[str, object]:
    """The only right end of an order."""
    return {
        "reserved": answer(order, "reserve"),
        "receipt": answer(order, "charge"),
        "packed": sorted(answer(order, "pack", item) for item in ITEMS),
        "approved": approved,
        "parcel": answer(order, "ship"),
        "told": answer(order, "notify"),
    }
