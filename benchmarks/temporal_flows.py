"""Activities of Temporal: prints the seconds of one workflow, and of many at once.

python -m benchmarks.temporal_flows ADDRESS WORKFLOWS STEPS

A first workflow is not in the figures.
"""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from time import perf_counter

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

QUEUE = "bench"


@activity.defn
def add(number: int) -> int:
    return number + 1


@workflow.defn
class Count:
    """Calls the activity as often as it is told."""

    @workflow.run
    async def run(self, most: int) -> int:
        found = 0
        while found < most:
            limit = timedelta(seconds=60)
            found = await workflow.execute_activity(add, found, start_to_close_timeout=limit)
        return found


async def main(address: str, workflows: int, steps: int) -> None:
    """Run workflows of as many steps, one and then many beside each other."""
    client = await Client.connect(address)

    async def run(id: str, most: int) -> int:
        return await client.execute_workflow(Count.run, most, id=id, task_queue=QUEUE)

    with ThreadPoolExecutor(100) as pool:
        async with Worker(
            client,
            task_queue=QUEUE,
            workflows=[Count],
            activities=[add],
            activity_executor=pool,
        ):
            await run("warm", 10)
            began = perf_counter()
            await run("one", steps)
            between = perf_counter()
            found = await asyncio.gather(*(run(f"{n}", steps) for n in range(workflows)))
            if {*found} != {steps}:
                raise AssertionError("steps were lost")
            print(between - began, perf_counter() - between)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
