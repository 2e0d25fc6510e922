"""The delivery graph: one run for each notice and hook, in its own thread.

Callers submit these runs, before they replace an index row with a notice, and workers do. Both
compile the graph here; only a worker's can send (``fleet/deliveries.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypedDict

from milecastle.engine.context import Context
from milecastle.graph.builder import GraphBuilder
from milecastle.graph.compiling import compile_graph
from milecastle.graph.hooks import Webhook
from milecastle.graph.structure import CompiledGraph
from milecastle.model.children import bounded
from milecastle.model.keys import ThreadKey, own_key, own_name
from milecastle.model.manifest import END, START
from milecastle.model.notices import HookEvent, Notice
from milecastle.model.policies import ExecutionConfig

DELAYS: Final = (5.0, 30.0, 300.0, 3_600.0, 21_600.0)
"""Seconds between the attempts of a delivery; after the last it has failed."""


class DeliveryState(TypedDict):
    """An event's names; each attempt makes its body from the thread.

    ``question`` is the question's id. ``attempt`` counts failed attempts, ``answer`` says what the
    last one was answered, and ``outcome`` why there is no other: ``delivered``, ``gone`` (410) or
    ``closed`` (the question was answered, or the thread deleted, before it was sent).
    """

    event: HookEvent
    thread: str
    run_id: str
    seq: int
    question: str
    attempt: int
    answer: str
    outcome: str


Deliver = Callable[[DeliveryState, Context], Any]


class _DeliveryGraph(GraphBuilder[DeliveryState]):
    def compiled(self, deliver: Deliver) -> CompiledGraph:
        for name, function in (("deliver", deliver), ("pause", _pause)):
            self._add_node(
                name, function, version="", retry=None, timeout=None, goto=(), on_error=None
            )
        self.add_edge(START, "deliver")
        self.add_conditional_edges("deliver", _what_next, {"again": "pause", "ends": END})
        self.add_edge("pause", "deliver")
        self.with_default_config(ExecutionConfig(max_steps=None, cycle_detection=False))
        return compile_graph(self._declared)


def delivery_graph(hook: Webhook, deliver: Deliver | None = None) -> CompiledGraph:
    """The graph for a hook's deliveries; without ``deliver`` for runs that are only submitted."""
    return _delivery_graph(hook.id, deliver) if deliver else _graph_to_submit(hook.id)


@lru_cache(maxsize=64)
def _graph_to_submit(hook: str) -> CompiledGraph:
    return _delivery_graph(hook, _deliver_nothing)


def _delivery_graph(hook: str, deliver: Deliver) -> CompiledGraph:
    return _DeliveryGraph(DeliveryState, name=own_name("delivery", hook)).compiled(deliver)


def delivery_key(tenant: str, hook: Webhook, notice: Notice, question: str) -> ThreadKey:
    """The delivery's thread, whose name is its ``webhook-id``."""
    from hashlib import blake2b  # slow to import

    asked = f"-{blake2b(question.encode(), digest_size=12).hexdigest()}" if question else ""
    return own_key(tenant, "delivery", f"{hook.id}@{notice.run_id}{asked}")


def delivery_tag(thread: str) -> str:
    return bounded("deliveries:", thread)


def fresh_delivery(thread: str, notice: Notice, question: str) -> DeliveryState:
    return DeliveryState(
        event=notice.event,
        thread=thread,
        run_id=notice.run_id,
        seq=notice.seq,
        question=question,
        attempt=0,
        answer="",
        outcome="",
    )


def _deliver_nothing(state: DeliveryState, ctx: Context) -> dict[str, Any]:
    raise AssertionError("only a worker delivers")


def _pause(state: DeliveryState, ctx: Context) -> dict[str, Any]:
    ctx.sleep(DELAYS[state["attempt"] - 1])
    return {}


def _what_next(state: DeliveryState) -> str:
    return "ends" if state["outcome"] else "again"
