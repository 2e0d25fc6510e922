"""What both agents use: a bank that pays once for each key, and the script of a model."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

PAYMENTS = Path("payments")


def pay(order: str, amount: int, key: str) -> str:
    """Pay, once for each key. With ``KILL_AT`` the process is killed while it pays that order."""
    print(f"paying {order}\n", end="", flush=True)  # one write: others pay at the same time
    with PAYMENTS.open("a", encoding="utf-8") as file:
        file.write(f"{key} {order} {amount}\n")
    if os.environ.get("KILL_AT") == order:
        time.sleep(2)
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{amount} paid for {order}"


def calls_of_turn(turn: int) -> tuple[list[dict[str, Any]], str]:
    """What the model asks for in a turn, and what it says. Some models repeat their ids."""
    script: list[list[tuple[str, dict[str, Any]]]] = [
        [("find_order", {"order": "lamp"}), ("find_order", {"order": "chair"})],
        [("refund", {"order": "lamp", "amount": 40}), ("refund", {"order": "chair", "amount": 25})],
    ]
    if turn >= len(script):
        return [], "Both are paid back."
    calls = [
        {"id": f"call_{turn}_{number}", "name": name, "args": args}
        for number, (name, args) in enumerate(script[turn])
    ]
    return calls, ""
