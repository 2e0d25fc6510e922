"""Modes and plans of graphs whose threads are in a store.

``incremental`` goes on with what is there. ``resume-only`` does that or is refused. ``clean`` asks
for a thread to which nothing happened yet: a history is never thrown away for a new start.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec.structs

from milecastle.app.application import App
from milecastle.app.launching import Wish
from milecastle.cli.documents import PlanDocument, PlanLine
from milecastle.cli.exits import OK, REFUSED
from milecastle.cli.printing import print_document, print_lines
from milecastle.cli.session import Session
from milecastle.errors import InvalidRequest
from milecastle.model.checkpoint import Entry
from milecastle.model.keys import ThreadKey
from milecastle.model.manifest import START
from milecastle.model.run import Mode

__all__ = ["in_mode", "print_thread_plan"]


def in_mode(app: App[Any], wish: Wish, mode: Mode) -> Wish:
    """The wish as a mode means it."""
    if mode == "resume-only":
        return msgspec.structs.replace(wish, input=None)
    if mode == "clean" and _head(app, wish.thread) is not None:
        raise InvalidRequest(_not_clean(wish.thread))
    return wish


def _not_clean(key: ThreadKey) -> str:
    return (
        f"thread '{key.thread}' has a history, and a clean run starts without one: "
        "give another --thread, or leave --mode out to go on with it"
    )


def _head(app: App[Any], key: ThreadKey | None) -> Entry | None:
    if app.store is None or key is None:
        return None
    return next(iter(app.store.history(key, limit=1)), None)


def print_thread_plan(session: Session, app: App[Any], key: ThreadKey | None, mode: Mode) -> int:
    """Print what a run would do, and why; the exit code."""
    head = _head(app, key)
    refused = _refusals(app, key, head, mode)
    nodes, why = _next(app, head)
    action: Literal["execute"] = "execute"
    document = PlanDocument(
        thread=key.thread if key else "",
        mode=mode,
        refused=refused,
        previous_run_id=head.run_id if head else None,
        nodes=tuple(
            PlanLine(node=name, action=action, reasons=(why,), restore=()) for name in nodes
        ),
    )
    if session.as_json:
        print_document(document)
    else:
        print_lines([f"{mode}: thread {document.thread or '(not saved)'}"])
        print_lines(f"  refused: {reason}" for reason in refused)
        print_lines(f"  {line.action}  {line.node}: {why}" for line in document.nodes)
    return REFUSED if refused else OK


def _next(app: App[Any], head: Entry | None) -> tuple[tuple[str, ...], str]:
    """The nodes that would run first, and why these."""
    if head is not None and (head.next or head.route):
        return head.next or head.route, f"next at checkpoint {head.seq}"
    edges = app.graph.manifest.edges
    first = tuple(dict.fromkeys(edge.target for edge in edges if edge.source == START))
    return first, "the input comes first" if head is None else "the thread ended: a new input"


def _refusals(
    app: App[Any], key: ThreadKey | None, head: Entry | None, mode: Mode
) -> tuple[str, ...]:
    if head is None or key is None or app.store is None:
        return ("nothing is saved that could be resumed",) if mode == "resume-only" else ()
    if mode == "clean":
        return (_not_clean(key),)
    if mode == "resume-only" and not (head.next or head.route):
        return ("it already ended",)
    return app.fit(key).reasons
