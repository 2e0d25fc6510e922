"""A nightly pipeline over files: a schedule, a backfill of missed nights, a retry of failed items.

Each file is an item of a fan-out: it is committed when it is done, and a retry repeats only those
that failed. Needs `pip install 'milecastle[fleet]'`, for the cron expression.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any, NotRequired, TypedDict

from milecastle import END, START, Schedules, Send, StateGraph, Worker, append

BROKEN = {"2026-11-15/b.csv"}
"""Files that cannot be read yet."""
READ: list[str] = []


class Night(TypedDict):
    files: list[str]
    file: NotRequired[str]
    rows: Annotated[list[str], append]


graph = StateGraph(Night, name="nightly")


@graph.node
def find(state: Night) -> dict[str, Any]:
    return {}


@graph.node
def load(state: Night) -> dict[str, Any]:
    file = state.get("file", "")
    if file in BROKEN:
        raise OSError("it is not complete")
    READ.append(file)
    return {"rows": [file]}


def each(state: Night) -> list[Send]:
    return [Send("load", {"file": file}) for file in state["files"]]


graph.add_edge(START, "find")
graph.add_conditional_edges("find", each, ["load"])
graph.add_edge("load", END)


@graph.schedule("0 2 * * *")
def night(tick: datetime) -> dict[str, Any]:
    return {"files": [f"{tick:%Y-%m-%d}/{name}.csv" for name in "abc"]}


app = graph.compile(store="memory://")


def work() -> None:
    """Runs what is due, then stops; in production: `milecastle worker`."""
    asyncio.run(Worker([app]).run_until_idle())


def main() -> None:
    first, last = datetime(2026, 11, 14, tzinfo=UTC), datetime(2026, 11, 16, tzinfo=UTC)
    nights = [one.thread.thread for one in Schedules(app).backfill("nightly", first, last)]
    work()
    print([app.state(name).status for name in nights], len(READ), "files")
    BROKEN.clear()
    for failed in app.threads(status="failed"):
        app.retry(failed.key.thread)
    work()
    print([app.state(name).status for name in nights], len(READ), "files")


if __name__ == "__main__":
    main()
