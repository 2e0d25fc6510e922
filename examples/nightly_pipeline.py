"""A pipeline that sleeps until two at night, and takes no process while it does.

`ctx.sleep` ends the call with the status `sleeping` and a time. A scheduler (cron, a worker)
resumes the thread then. Here the clock is set by hand, so that a night takes no time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypedDict

from milecastle import END, START, Context, ResumeRefused, StateGraph, append
from milecastle.stores import MemoryStore
from milecastle.testing import ManualClock, with_store


class Report(TypedDict):
    day: datetime
    log: Annotated[list[str], append]


graph = StateGraph(Report)


@graph.node
def collect(state: Report) -> dict[str, Any]:
    return {"log": [f"collected {state['day']:%d %B}"]}


@graph.node
def wait_for_night(state: Report, ctx: Context) -> dict[str, Any]:
    ctx.sleep(state["day"].replace(hour=2) + timedelta(days=1))
    return {"log": ["woke up"]}


@graph.node
def publish() -> dict[str, Any]:
    return {"log": ["published"]}


graph.add_edges(START, "collect", "wait_for_night", "publish", END)
app = graph.compile(store="memory://")


def main() -> None:
    noon = datetime(2026, 11, 15, 12, tzinfo=UTC)
    clock = ManualClock(int(noon.timestamp()) * 1_000_000)
    nightly = with_store(app, MemoryStore(), clock=clock)
    resting = nightly.invoke({"day": noon}, thread="nightly")
    print(f"{resting.status} until {resting.wake_at:%d %B %H:%M}")
    try:
        nightly.resume("nightly")
    except ResumeRefused as refused:
        print(f"too early: {refused.reasons[0]}")
    clock.advance(timedelta(hours=14).total_seconds())
    print(", ".join(nightly.resume("nightly").state["log"]))


if __name__ == "__main__":
    main()
