"""Temporal: activities, a signal for the approval, a worker, and the development server.

As in https://docs.temporal.io/develop/python: core application, messages, failure detection.
The development server is not a server for production; its history is in a database file.
"""

import asyncio
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from benchmarks.faults.outside import ITEMS, call

CODE = os.environ.get("FAULTS_CODE", "")
SIGNAL = "approval" if CODE == "rename-wait" else "approve"
LIMITS = {
    "start_to_close_timeout": timedelta(seconds=float(os.environ.get("FAULTS_LEASE", "2"))),
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=0.1), backoff_coefficient=1.2),
}


@activity.defn
def reserve(order: str) -> str:
    return call(order, "reserve")


@activity.defn
def charge(order: str) -> str:
    return call(order, "charge")


@activity.defn
def pack(order: str, item: str) -> str:
    return call(order, "pack", item)


@activity.defn(name="dispatch" if CODE == "rename-ahead" else "ship")
def ship(order: str) -> str:
    return call(order, "ship")


@activity.defn
def notify(order: str) -> str:
    return call(order, "notify")


@activity.defn
def audit(order: str) -> str:
    return call(order, "audit")


@workflow.defn
class OrderFlow:
    def __init__(self) -> None:
        self.approved = None

    @workflow.signal(name=SIGNAL)
    def approve(self, by: str) -> None:
        self.approved = self.approved or by

    @workflow.run
    async def run(self, order: str) -> dict:
        do = workflow.execute_activity
        receipt = await do(charge, order, **LIMITS) if CODE == "reorder" else ""
        reserved = await do(reserve, order, **LIMITS)
        if CODE == "insert-before":
            await do(audit, order, **LIMITS)
        receipt = receipt or await do(charge, order, **LIMITS)
        packed = await asyncio.gather(*(do(pack, args=[order, item], **LIMITS) for item in ITEMS))
        await workflow.wait_condition(lambda: self.approved is not None)
        if CODE == "insert-after":
            await do(audit, order, **LIMITS)
        parcel = None if CODE == "remove-ahead" else await do(ship, order, **LIMITS)
        told = await do(notify, order, **LIMITS)
        return {
            "reserved": reserved,
            "receipt": receipt,
            "packed": sorted(packed),
            "approved": self.approved,
            "parcel": parcel,
            "told": told,
        }


async def status(client, order):
    handle = client.get_workflow_handle(order)
    try:
        found = await handle.describe()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return {"status": "none", "state": None}
    if found.status.name == "COMPLETED":
        return {"status": "done", "state": await handle.result()}
    events = (await handle.fetch_history()).events
    completed = sum(event.HasField("activity_task_completed_event_attributes") for event in events)
    is_waiting = completed == len(ITEMS) + 2 and not found.raw_description.pending_activities
    failed = sum(event.HasField("workflow_task_failed_event_attributes") for event in events)
    return {
        "status": "waiting" if is_waiting else found.status.name,
        "state": None,
        "failed tasks": failed,
    }


async def main(verb, *given):
    client = await Client.connect(os.environ["FAULTS_STORE"])
    if verb == "work":
        with ThreadPoolExecutor(50) as threads:
            activities = [reserve, charge, pack, ship, notify, audit]
            await Worker(
                client,
                task_queue="orders",
                workflows=[OrderFlow],
                activity_executor=threads,
                activities=activities,
            ).run()
    elif verb == "start":
        for order in given:
            same = {
                "id_conflict_policy": WorkflowIDConflictPolicy.USE_EXISTING,
                "id_reuse_policy": WorkflowIDReusePolicy.REJECT_DUPLICATE,
            }
            try:
                await client.start_workflow(
                    OrderFlow.run, order, id=order, task_queue="orders", **same
                )
            except WorkflowAlreadyStartedError:
                print("already started", file=sys.stderr)
    elif verb == "approve":
        await client.get_workflow_handle(given[0]).signal(SIGNAL, given[1])
    elif verb == "status":
        print(json.dumps({order: await status(client, order) for order in given}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
