"""A token limit of a provider that 50 runs share: each takes its turn, and sleeps until then.

A run takes an estimate from the bucket before it calls, and settles what the call has used. One
that waits for a second or more holds no slot of a worker, and no process. Workers on other machines
share the bucket, because the store has it: `milecastle queue bucket gpt --rate 200 --burst 20`.
"""

from __future__ import annotations

import asyncio
import time
from typing import NotRequired, TypedDict

from milecastle import END, START, Context, StateGraph, Worker, WorkerOptions
from milecastle.stores import Bucket, MemoryStore

RUNS, ESTIMATE = 50, 10
CALLS: list[float] = []


class Talk(TypedDict):
    question: str
    reply: NotRequired[str]


def call_the_model(question: str) -> tuple[str, int]:
    """A provider: the reply, and how many tokens it took."""
    CALLS.append(time.monotonic())
    return question.upper(), 9


graph = StateGraph(Talk, name="talks")


@graph.node
def answer(state: Talk, ctx: Context) -> dict[str, str]:
    ctx.take("gpt", ESTIMATE)
    reply, used = ctx.once("call", call_the_model, state["question"])
    ctx.settle("gpt", used - ESTIMATE)
    return {"reply": reply}


graph.add_edges(START, "answer", END)
store = MemoryStore()
app = graph.compile(store=store)


async def main() -> None:
    store.buckets.put(Bucket(name="gpt", rate=200, burst=20))
    worker = Worker([app], WorkerOptions(concurrency=4))
    working = asyncio.create_task(worker.run())
    handles = [await app.asubmit({"question": f"why {n}?"}, thread=f"t{n}") for n in range(RUNS)]
    replies = [(await handle.aresult())["reply"] for handle in handles]
    worker.stop()
    await working
    print(replies[-1], len(CALLS), "calls; all at once:", CALLS[-1] - CALLS[0] < 1)


if __name__ == "__main__":
    asyncio.run(main())
