"""The judge of a simulation: holds every thread against its log, its records and the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from milecastle.app.application import App
from milecastle.app.results import Result
from milecastle.app.runs.calls import Call
from milecastle.app.threads.children import children_of, is_child, root_of
from milecastle.model.checkpoint import CheckpointMetadata, Entry
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Store
from tests.simulation.graph_model import Model, Unanswered
from tests.simulation.ledger import Ledger
from tests.simulation.random_shapes import INPUT, Shape, Tally
from tests.simulation.shaky_store import ShakyStore

__all__ = ["Judged", "judge"]


class Judged(Protocol):
    """Who acted in a simulation: on which threads, and on which of them by going back."""

    store: ShakyStore
    ledger: Ledger
    threads: list[str]
    branched: set[str]


def judge(shape: Shape, app: App[Tally], people: Judged) -> Iterator[str]:
    """What is wrong, at the end of a simulation."""
    store = people.store
    store.writer = None
    for key, acknowledged in people.ledger.acknowledged.items():
        found = {entry.seq: entry.id for entry in store.history(key)}
        if any(found.get(seq) != id for seq, id in acknowledged.items()):
            yield "an acknowledged checkpoint is lost"
        if sorted(found) != list(range(1, len(found) + 1)):
            yield "the history has gaps"
    for thread in people.threads:
        head = next(app.history(thread, limit=1), None)
        if head is None or head.next:
            continue
        yield from _end(shape, app, people, thread, head.id)
        yield from _called_again(app, people, head)
        keys = [head.key, *(child.key for child in children_of(store, head.key))]
        for key in keys:
            yield from _leftovers(store, people, key)


def _end(shape: Shape, app: App[Tally], people: Judged, thread: str, head: str) -> Iterator[str]:
    answers: dict[str, int] = {}
    updates: dict[int, list[dict[str, Any]]] = {}
    for entry in _lineage(people, head):
        said = people.store.brought.get(entry.id)
        if entry.source == "answer":
            answers.update(said or {})
        elif entry.source == "update":
            updates.setdefault(entry.step, []).append(said or {})
    try:
        expected = Model(shape, answers, updates).end(INPUT)
    except Unanswered as missing:
        yield f"an answer was used that nobody gave on this branch ({missing})"
        return
    if app.state(thread).state != expected:
        yield f"thread {thread} ended in another state than the model"


def _called_again(app: App[Tally], people: Judged, head: CheckpointMetadata) -> Iterator[str]:
    """A thread that is called again with its input after its end returns that, and runs nothing."""
    record = people.store.run(head.key, head.run_id)
    if record is None or record.status != "completed":
        return  # it was forked at the end of another thread: no run completed here
    again = app.runner.begin(Call(input=INPUT, thread=head.key))
    if not isinstance(again, Result) or not again.reused:
        yield "a thread that ended was run again with the same input"
    elif head.source == "step" and again.state != app.state(head.key).state:
        yield "a thread that ended returned another state when it was called again"


def _lineage(people: Judged, head: str) -> list[Entry]:
    """The entries that led to a checkpoint, oldest first."""
    found: list[Entry] = []
    id: str | None = head
    while id is not None:
        found.append(people.store.entries_by_id[id])
        id = found[-1].parent_id
    return found[::-1]


def _leftovers(store: Store, people: Judged, key: ThreadKey) -> Iterator[str]:
    whose = " of a subgraph" if is_child(key) else ""
    chain = store.read(key)
    if chain is not None and not chain.entries[-1].next and chain.results:
        yield f"results of tasks{whose} were not removed"
    if root_of(key).thread in people.branched:
        return  # a run that a fork discarded stays as it was
    if is_child(key) and not people.ledger.saves_every_step(root_of(key)):
        return  # so does that of a subgraph whose step was discarded
    for run in store.runs(key):
        if run.status in ("running", "interrupted", "sleeping"):
            yield f"a run{whose} was left as '{run.status}'"
