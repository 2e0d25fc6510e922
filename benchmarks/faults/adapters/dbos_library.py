"""DBOS: a workflow of steps, the items as queued child workflows, `recv` for the approval.

As in https://docs.dbos.dev/python/tutorials/workflow-tutorial, /queue-tutorial and
/workflow-communication. Orders are enqueued by a client under their own id; `work` is an executor,
and `launch` recovers the workflows of its executor id and application version. Without Conductor,
its paid control plane, nobody else does.
"""

import json
import os
import sys
import time

from dbos import DBOS, DBOSClient, SetWorkflowID

from benchmarks.faults.outside import ITEMS, call

CODE, STORE = os.environ.get("FAULTS_CODE", ""), os.environ["FAULTS_STORE"]
CONFIG = {
    "name": "orders",
    "system_database_url": STORE,
    "log_level": "WARNING",
    "run_admin_server": False,
}
CONFIG |= {"executor_id": os.environ["FAULTS_EXECUTOR"]} if "FAULTS_EXECUTOR" in os.environ else {}
CONFIG |= (
    {"application_version": os.environ["FAULTS_VERSION"]} if "FAULTS_VERSION" in os.environ else {}
)
DBOS(config=CONFIG)


@DBOS.step()
def reserve(order: str) -> str:
    return call(order, "reserve")


@DBOS.step()
def charge(order: str) -> str:
    return call(order, "charge")


@DBOS.step()
def pack_item(order: str, item: str) -> str:
    return call(order, "pack", item)


@DBOS.workflow()
def pack(order: str, item: str) -> str:
    return pack_item(order, item)


@DBOS.step(name="dispatch" if CODE == "rename-ahead" else "ship")
def ship(order: str) -> str:
    return call(order, "ship")


@DBOS.step()
def notify(order: str) -> str:
    return call(order, "notify")


@DBOS.step()
def audit(order: str) -> str:
    return call(order, "audit")


@DBOS.workflow(name="order_flow")
def order_flow(order: str) -> dict:
    receipt = charge(order) if CODE == "reorder" else ""
    reserved = reserve(order)
    if CODE == "insert-before":
        audit(order)
    receipt = receipt or charge(order)
    handles = [DBOS.enqueue_workflow("items", pack, order, item) for item in ITEMS]
    packed = sorted(handle.get_result() for handle in handles)
    approved = DBOS.recv("approval", timeout_seconds=24 * 3600)
    if CODE == "insert-after":
        audit(order)
    parcel = None if CODE == "remove-ahead" else ship(order)
    told = notify(order)
    return {
        "reserved": reserved,
        "receipt": receipt,
        "packed": packed,
        "approved": approved,
        "parcel": parcel,
        "told": told,
    }


def status(client, order):
    found = client.list_workflows(workflow_ids=[order])
    if not found:
        return {"status": "none", "state": None}
    workflow = found[0]
    if workflow.status == "SUCCESS":
        return {"status": "done", "state": workflow.output}
    packed = [
        step for step in client.list_workflow_steps(order) if "getResult" in step["function_name"]
    ]
    is_waiting = workflow.status == "PENDING" and len(packed) == len(ITEMS)
    return {
        "status": "waiting" if is_waiting else workflow.status,
        "state": None,
        "why": str(workflow.error or "")[:200],
    }


def main(verb, *given):
    if verb in ("work", "run"):
        DBOS.launch()
        DBOS.register_queue("orders", worker_concurrency=20, polling_interval_sec=0.1)
        DBOS.register_queue("items", worker_concurrency=50, polling_interval_sec=0.1)
    if verb == "work":
        while True:
            time.sleep(3600)
    if verb == "run":  # the form of the README: launch, start under an id, wait
        with SetWorkflowID(given[0]):
            DBOS.start_workflow(order_flow, given[0]).get_result()
        os._exit(0)
    client = DBOSClient(system_database_url=STORE)
    if verb == "start":
        for order in given:
            client.enqueue(
                {"queue_name": "orders", "workflow_name": "order_flow", "workflow_id": order}, order
            )
    elif verb == "approve":
        client.send(given[0], given[1], "approval")
    elif verb == "status":
        print(json.dumps({order: status(client, order) for order in given}, default=str))
    client.destroy()


if __name__ == "__main__":
    main(*sys.argv[1:])
