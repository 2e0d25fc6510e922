"""A model with a budget and rate limits: a run that must wait sleeps, without a process.

The provider says how long to wait (`retry_after`); the run sleeps durably and calls again. The
budget counts tokens of the whole thread, and a person may grant more. Runs of one tenant can be
limited beside it, with `milecastle queue limit`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from milecastle.agents import Budget, Grant, agent
from milecastle.stores import MemoryStore
from milecastle.testing import ManualClock, with_store

Message = dict[str, Any]
REQUESTS: list[int] = []


class TooManyRequests(Exception):
    """What a provider's library raises."""

    status_code = 429
    retry_after = 60.0


def scripted(messages: list[Message], tools: list[Message]) -> Message:
    REQUESTS.append(len(messages))
    if len(REQUESTS) == 1:
        raise TooManyRequests
    return {"content": f"reply {len(REQUESTS)}", "usage": {"input": 900, "output": 100}}


writer = agent(scripted, [], budget=Budget(tokens=1_500, reserve=1_000, then="ask"))
app = writer.compile(store="memory://")


def main() -> None:
    clock = ManualClock(1_800_000_000_000_000)
    limited = with_store(app, MemoryStore(), clock=clock)
    asked = {"messages": [{"role": "user", "content": "Write."}]}
    print(limited.invoke(asked, "t").status)
    clock.advance(timedelta(minutes=2).total_seconds())
    result = limited.resume("t")
    print(result.status, result["messages"][-1]["content"])
    result = limited.invoke({"messages": [{"role": "user", "content": "More."}]}, "t")
    print(result.status, result.interrupts[0].question)
    result = limited.resume("t", Grant(tokens=2_000))
    print(result.status, result["messages"][-1]["content"], result["used"])


if __name__ == "__main__":
    main()
