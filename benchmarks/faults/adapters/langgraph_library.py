"""LangGraph, the library: a node for each effect, `Send` for the items, `interrupt` to ask.

As in https://docs.langchain.com/oss/python/langgraph/durable-execution, interrupts, persistence.
The library has no workers: the program keeps a list of its orders and drives each of them: a new
thread with its input, an unfinished one with `None`, a waiting one with `Command(resume=...)`.
LangGraph's own server is another product and is not measured.
"""

import json
import operator
import os
import sqlite3
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Annotated, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from benchmarks.faults.outside import ITEMS, KEYS, call

CODE, STORE = os.environ.get("FAULTS_CODE", ""), os.environ["FAULTS_STORE"]
INBOX = Path(os.environ["FAULTS_EFFECTS"]).parent / "inbox"  # the application's own table of orders
OPTIONS = (
    {"durability": os.environ["FAULTS_DURABILITY"]} if "FAULTS_DURABILITY" in os.environ else {}
)


class Order(TypedDict, total=False):
    order: str
    reserved: str
    receipt: str
    packed: Annotated[list[str], operator.add]
    approved: str
    parcel: str
    told: str


FUNCTIONS = {
    "reserve": lambda state: {"reserved": call(state["order"], "reserve")},
    "charge": lambda state: {"receipt": call(state["order"], "charge")},
    "pack": lambda state: {"packed": [call(state["order"], "pack", state["item"])]},
    "approve": lambda state: {"approved": interrupt("Ship?")},
    "audit": lambda state: call(state["order"], "audit") and {},
    "ship": lambda state: {"parcel": call(state["order"], "ship")},
    "notify": lambda state: {"told": call(state["order"], "notify")},
}
names = {"rename-wait": {"approve": "approval"}, "rename-ahead": {"ship": "dispatch"}}.get(CODE, {})
before = {"insert-before": ["reserve", "audit", "charge"], "reorder": ["charge", "reserve"]}.get(
    CODE, ["reserve", "charge"]
)
after = {"insert-after": ["approve", "audit", "ship"], "remove-ahead": ["approve"]}.get(
    CODE, ["approve", "ship"]
)
graph = StateGraph(Order)
for name in [*before, "pack", *after, "notify"]:
    graph.add_node(names.get(name, name), FUNCTIONS[name])
for chain in ([START, *before], ["pack", *after, "notify", END]):
    for first, second in pairwise(chain):
        graph.add_edge(names.get(first, first), names.get(second, second))
graph.add_conditional_edges(
    before[-1],
    lambda state: [Send("pack", {"order": state["order"], "item": item}) for item in ITEMS],
    ["pack"],
)


def saver():
    if STORE.startswith("postgresql"):
        from langgraph.checkpoint.postgres import PostgresSaver
        from psycopg.rows import dict_row
        from psycopg_pool import ConnectionPool

        settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        made = PostgresSaver(ConnectionPool(STORE, min_size=1, max_size=12, kwargs=settings))
    else:
        from langgraph.checkpoint.sqlite import SqliteSaver

        made = SqliteSaver(sqlite3.connect(STORE, check_same_thread=False, timeout=30))
    made.setup()
    return made


app = graph.compile(checkpointer=saver())


def at(order):
    return {"configurable": {"thread_id": order}}


def status(order):
    found = app.get_state(at(order))
    if not found.created_at:
        has_started = (INBOX / f"{order}.order").exists()
        return {"status": "new" if has_started else "none", "state": None}
    state = {key: found.values.get(key) for key in KEYS} | {
        "packed": sorted(found.values.get("packed", []))
    }
    if not found.tasks:  # an empty `next` does not mean this after a crash
        return {"status": "done", "state": state}
    return {
        "status": "waiting" if any(task.interrupts for task in found.tasks) else "unfinished",
        "state": state,
    }


def drive(order):
    now, answer = status(order)["status"], INBOX / f"{order}.approval"
    if now in ("new", "none"):
        app.invoke({"order": order, "packed": []}, at(order), **OPTIONS)
    elif now == "unfinished":
        app.invoke(None, at(order), **OPTIONS)
    elif now == "waiting" and answer.exists():
        app.invoke(Command(resume=answer.read_text()), at(order), **OPTIONS)


def work():
    busy = {}
    with ThreadPoolExecutor(8) as pool:
        while True:
            for file in INBOX.glob("*.order"):
                if file.stem not in busy or busy[file.stem].done():
                    busy[file.stem] = pool.submit(drive, file.stem)
            time.sleep(0.05)


def main(verb, *given):
    INBOX.mkdir(exist_ok=True)
    if verb == "work":
        work()
    elif verb == "start":
        for order in given:
            (INBOX / f"{order}.order").touch()
    elif verb == "approve":
        (INBOX / ".new").write_text(given[1])
        (INBOX / ".new").rename(INBOX / f"{given[0]}.approval")
    elif verb == "run":
        new = status(given[0])["status"] in ("new", "none")
        app.invoke({"order": given[0], "packed": []} if new else None, at(given[0]), **OPTIONS)
    elif verb == "resume":
        app.invoke(Command(resume=given[1]), at(given[0]), **OPTIONS)
    elif verb == "status":
        print(json.dumps({order: status(order) for order in given}))


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)
