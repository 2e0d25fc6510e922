"""Human in the loop: one process asks and ends, another one answers and resumes.

Record, ask, act. The node that asks runs again from its beginning once there is an answer; what was
recorded with `ctx.once` before the question is not done again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NotRequired, TypedDict

from milecastle import END, START, Context, StateGraph, interrupt


class Refund(TypedDict):
    customer: str
    amount: int
    approved: NotRequired[bool]
    paid: NotRequired[int]


graph = StateGraph(Refund)


@graph.node
def decide(state: Refund, ctx: Context) -> dict[str, Any]:
    ctx.once("mail", print, f"mail: {state['customer']} wants a refund")
    return {"approved": interrupt("Refund?", show={"amount": state["amount"]}, answer=bool)}


@graph.node
def pay(state: Refund) -> dict[str, Any]:
    return {"paid": state["amount"]}


graph.add_edge(START, "decide")
graph.add_edge("decide", "pay", when=lambda state: bool(state.get("approved")))
graph.add_edge("decide", END)
graph.add_edge("pay", END)


def ask() -> None:
    app = graph.compile(store="sqlite:///refunds.db")
    for customer in ("Ann", "Bob"):
        waiting = app.invoke({"customer": customer, "amount": 30}, thread=customer)
        (asked,) = waiting.interrupts
        print(f"{waiting.status}: {asked.question} {asked.show}")


def answer() -> None:
    app = graph.compile(store="sqlite:///refunds.db")
    for customer, approved in (("Ann", True), ("Bob", False)):
        done = app.resume(customer, answer=approved)
        print(f"{done.status}: {customer} gets {done.state.get('paid', 0)}")


def main() -> None:
    with TemporaryDirectory() as folder:
        for verb in ("ask", "answer"):
            command = [sys.executable, str(Path(__file__).resolve()), verb]
            subprocess.run(command, cwd=folder, check=True)  # noqa: S603 - it is this very file


if __name__ == "__main__":
    {"ask": ask, "answer": answer}.get(sys.argv[-1], main)()
