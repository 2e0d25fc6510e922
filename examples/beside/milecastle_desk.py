"""A support agent with Milecastle: it looks up an order, and asks before it pays.

python milecastle_desk.py            # start, or continue after a crash
python milecastle_desk.py approve    # answer its questions
"""

from __future__ import annotations

import sys
from typing import Any

from bank import calls_of_turn, pay

from milecastle.agents import agent, tool


def model(messages: list[dict[str, Any]], tools: object) -> dict[str, Any]:
    turn = sum(message["role"] == "assistant" for message in messages)
    calls, text = calls_of_turn(turn)
    return {"content": text, "tool_calls": calls}


def find_order(order: str) -> dict[str, Any]:
    """Look up an order."""
    print(f"looking up {order}")
    return {"order": order, "price": 40}


def refund(order: str, amount: int, *, call: dict[str, Any]) -> str:
    """Pay money back."""
    return pay(order, amount, key=call["key"])


def main() -> None:
    desk = agent(model, [find_order, tool(refund, approve=lambda args: args["amount"] > 20)])
    app = desk.compile(store="sqlite:///desk.db")
    asked = {"messages": [{"role": "user", "content": "My lamp and my chair arrived broken."}]}
    result = app.invoke(asked, thread="t-17")
    if result.interrupts and "approve" in sys.argv:
        result = app.resume(
            "t-17", answers={one.id: {"approve": True} for one in result.interrupts}
        )
    print(result.status, result["messages"][-1].get("content"))


if __name__ == "__main__":
    main()
