"""A process that does one thing with a traced thread: ``python -m tests.process.traced``.

Its arguments are the URL of the store, what to do, and the file that gets its spans, as they end.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TypedDict

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from milecastle import END, START, App, StateGraph, Worker, interrupt
from milecastle.integrations.opentelemetry import OpenTelemetryObserver

tracer = trace.get_tracer("traced")


class Order(TypedDict):
    n: int
    ok: bool


def pack(state: Order) -> dict[str, int]:
    with tracer.start_as_current_span("own work"):
        return {"n": state["n"] + 1}


def approve(state: Order) -> dict[str, bool]:
    return {"ok": interrupt("send it?", answer=bool)}


def send(state: Order) -> None:
    if "MILECASTLE_DIES" in os.environ:
        os._exit(9)


def build(url: str) -> App[Order]:
    graph: StateGraph[Order] = StateGraph(Order, name="order")
    for node in (pack, approve, send):
        graph.add_node(node)
    graph.add_edges(START, "pack", "approve", "send", END)
    return graph.compile(store=url, observers=[OpenTelemetryObserver()])


def do(app: App[Order], what: str) -> None:
    match what:
        case "submit":
            with tracer.start_as_current_span("request"):
                app.submit({"n": 0, "ok": False}, thread="t")
        case "work":
            asyncio.run(Worker([app]).run_until_idle())
        case "resume":
            app.resume("t", answer=True)
        case "again":
            app.resume("t")
        case _:
            raise ValueError(what)


def main(url: str, what: str, path: str) -> None:
    with Path(path).open("a", encoding="utf-8") as file:
        provider = TracerProvider(resource=Resource({"service.name": what}))
        exporter = ConsoleSpanExporter(
            out=file, formatter=lambda span: span.to_json(indent=None) + "\n"
        )
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
        app = build(url)
        do(app, what)
        app.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
