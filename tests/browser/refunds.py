"""A graph whose question is a form, served as ``tests.browser.refunds:graph``."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from milecastle import END, START, StateGraph, interrupt


class Verdict(TypedDict):
    decision: Literal["approve", "reject"]
    amount: int


class Refund(TypedDict):
    customer: str
    verdict: NotRequired[Any]


def decide(state: Refund) -> dict[str, Any]:
    return {"verdict": interrupt(f"Refund {state['customer']}?", answer=Verdict)}


graph: StateGraph[Refund] = StateGraph(Refund, name="refunds")
graph.add_node("decide", decide)
graph.add_edges(START, "decide", END)
