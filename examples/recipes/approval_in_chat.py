"""An approval in a chat tool: a question becomes a message with buttons, a click its answer.

The chat tool calls back with a signature of the time and the body, as Slack and others do. The
click's id is the answer's key: a callback that comes twice answers once. In a service,
`called_back` is a route.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from hashlib import sha256
from typing import Any, TypedDict

from milecastle import END, START, Actor, StateGraph, Worker, interrupt
from milecastle.errors import InvalidRequest

SECRET, LATEST = b"shared with the chat tool", 300.0


class Refund(TypedDict):
    amount: int
    approved: bool


graph = StateGraph(Refund, name="refunds")


@graph.node
def approve(state: Refund) -> dict[str, Any]:
    return {"approved": interrupt(f"Refund {state['amount']}?", answer=bool)}


graph.add_edges(START, "approve", END)
app = graph.compile(store="memory://")


def signature(sent_at: str, body: bytes) -> str:
    return hmac.new(SECRET, sent_at.encode() + b":" + body, sha256).hexdigest()


def called_back(sent_at: str, signed: str, body: bytes) -> str:
    """Answer a question; the arguments are two headers and the body of a request."""
    if not hmac.compare_digest(signature(sent_at, body), signed):
        return "401: not signed by the chat tool"
    if abs(time.time() - float(sent_at)) > LATEST:
        return "401: too old"
    click = json.loads(body)
    by, answers = Actor(click["user"], "authenticated"), {click["question"]: click["yes"]}
    try:
        handle = app.answer(click["thread"], answers=answers, key=click["id"], by=by)
    except InvalidRequest as error:
        return f"409: {error.code}"
    return "200: was answered" if handle.reused else "200: thank you"


def work() -> None:
    """Runs what is due, then stops; in production: `milecastle worker`."""
    asyncio.run(Worker([app]).run_until_idle())


def main() -> None:
    app.submit({"amount": 40, "approved": False}, thread="r-7")
    work()
    (asked,) = app.state("r-7").interrupts
    print(f"posted: {asked.question}")
    click = {"id": "c-1", "user": "ann", "thread": "r-7", "question": asked.id, "yes": True}
    body, now = json.dumps(click).encode(), str(time.time())
    print(called_back(now, "forged", body))
    for _ in range(2):
        print(called_back(now, signature(now, body), body))
    work()
    print(app.state("r-7").state["approved"], app.answers("r-7")[0].by)


if __name__ == "__main__":
    main()
