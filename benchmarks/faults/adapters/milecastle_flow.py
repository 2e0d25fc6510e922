"""Milecastle, a durable function: the same order as a flow, as in docs/how-to/write-flows.md."""

from __future__ import annotations

import asyncio
import os
import sys

from benchmarks.faults.adapters.milecastle_status import LEASE, say, statuses
from benchmarks.faults.outside import ITEMS, call
from milecastle import Retry, Worker, WorkerOptions, flow, gather, interrupt, step

CODE = os.environ.get("FAULTS_CODE", "")


@step
def reserve(order: str) -> str:
    return call(order, "reserve")


@step
def charge(order: str) -> str:
    return call(order, "charge")


@step
def pack(order: str, item: str) -> str:
    return call(order, "pack", item)


@step(name="dispatch" if CODE == "rename-ahead" else "ship")
def ship(order: str) -> str:
    return call(order, "ship")


@step
def notify(order: str) -> str:
    return call(order, "notify")


@step
def audit(order: str) -> str:
    return call(order, "audit")


@flow
def orders(order: str) -> dict[str, object]:
    receipt = charge(order) if CODE == "reorder" else ""
    reserved = reserve(order)
    if CODE == "insert-before":
        audit(order)
    receipt = receipt or charge(order)
    packed = gather(*(lambda item=item: pack(order, item) for item in ITEMS))
    approved = interrupt("Send?" if CODE == "rename-wait" else "Ship?", answer=str)
    if CODE == "insert-after":
        audit(order)
    parcel = None if CODE == "remove-ahead" else ship(order)
    told = notify(order)
    return {
        "reserved": reserved,
        "receipt": receipt,
        "packed": sorted(packed),
        "approved": approved,
        "parcel": parcel,
        "told": told,
    }


app = orders.compile(store=os.environ["FAULTS_STORE"], retry_runs=Retry(attempts=20, delay=0.5))


def main(verb: str, *given: str) -> None:
    """Do one verb of the fault harness."""
    if verb == "work":
        options = WorkerOptions(heartbeat=LEASE / 3, silent_after=LEASE)
        asyncio.run(Worker([app], options).run_until_signalled())
    elif verb == "start":
        for order in given:
            app.submit(orders.input(order), thread=order)
    elif verb == "run":
        app.invoke(orders.input(given[0]), thread=given[0])
    elif verb == "approve":
        app.answer(given[0], given[1])
    elif verb == "resume":
        app.resume(given[0], answer=given[1])
    elif verb == "status":
        say(statuses(app, given, channel="result"))


if __name__ == "__main__":
    main(*sys.argv[1:])
