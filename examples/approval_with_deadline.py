"""An approval with a deadline: the lead has two days, then the director has one, then it is no.

`within=` limits how long a question waits. A timeout is committed before the code continues, so
the lead's answer counts or the timeout does, never both. Here the clock is set by hand.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NotRequired, TypedDict

from milecastle import END, START, Actor, Context, StateGraph, TimedOut, interrupt
from milecastle.errors import AlreadyAnswered
from milecastle.stores import MemoryStore
from milecastle.testing import ManualClock, with_store


class Expense(TypedDict):
    amount: int
    approved: NotRequired[bool]


graph = StateGraph(Expense)


@graph.node
def approve(state: Expense, ctx: Context) -> dict[str, Any]:
    show = {"amount": state["amount"]}
    ctx.once("mail", print, "mail to the lead")
    try:
        approved = interrupt("Lead: pay?", show=show, answer=bool, within=timedelta(days=2))
    except TimedOut:
        ctx.once("escalate", print, "mail to the director")
        day = timedelta(days=1)
        approved = interrupt("Director: pay?", show=show, answer=bool, within=day, otherwise=False)
    return {"approved": approved}


graph.add_edges(START, "approve", END)
app = graph.compile(store="memory://")


def main() -> None:
    clock = ManualClock()
    expenses = with_store(app, MemoryStore(), clock=clock)
    (lead,) = expenses.invoke({"amount": 30}, thread="taxi").interrupts
    clock.advance(timedelta(days=2).total_seconds())
    (director,) = expenses.resume("taxi").interrupts  # a worker does this at the deadline
    try:
        expenses.resume("taxi", True, question=lead.id)
    except AlreadyAnswered:
        print("too late for the lead")
    who = Actor("dora", reason="late, but fine", shown=director.digest)
    done = expenses.resume("taxi", True, by=who)
    print(f"approved: {done.state.get('approved')}")
    for record in expenses.answers("taxi"):
        end = f"{record.by.id}, {record.by.reason}" if record.by else "timed out"
        print(f"{record.question}: {end}")


if __name__ == "__main__":
    main()
