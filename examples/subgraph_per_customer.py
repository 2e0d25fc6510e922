"""A subgraph for each customer: one graph, many instances in parallel, each with its own log.

The order of a customer is a separate graph. It asks a person when a customer owes too much;
the questions of all customers come up at the top, and are answered there by their ids.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

from milecastle import END, START, StateGraph, append, interrupt


class Customer(TypedDict):
    customer: str
    owes: NotRequired[int]
    line: NotRequired[str]


class Month(TypedDict):
    customers: list[str]
    letters: Annotated[list[str], append]


LEDGER = {"Ann": 20, "Bob": 900, "Cid": 700}

billing = StateGraph(Customer, name="billing")


@billing.node
def look_up(state: Customer) -> dict[str, Any]:
    return {"owes": LEDGER[state["customer"]]}


@billing.node
def decide(state: Customer) -> dict[str, Any]:
    customer, owes = state["customer"], state.get("owes", 0)
    patient = owes < 500 or interrupt(f"Wait for {customer}?", show={"owes": owes}, answer=bool)
    return {"line": f"{customer}: {'thank you' if patient else 'pay now'}"}


billing.add_edges(START, "look_up", "decide", END)

month = StateGraph(Month)
month.add_node(
    "bill",
    billing.compile(),
    give=lambda state: {"customer": state["customer"]},
    take=lambda last: {"letters": [last["line"]]},
)
month.map(START, "bill", over="customers", item="customer")
month.add_edge("bill", END)
app = month.compile(store="memory://")


def main() -> None:
    waiting = app.invoke({"customers": list(LEDGER)}, thread="november")
    for asked in waiting.interrupts:
        print(f"{asked.question} {asked.show}")
    patience = {asked.id: "Cid" in asked.question for asked in waiting.interrupts}
    done = app.resume("november", answers=patience)
    print(", ".join(done.state["letters"]))


if __name__ == "__main__":
    main()
