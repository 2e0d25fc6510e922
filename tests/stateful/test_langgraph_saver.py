"""A random walk of three savers on one store, beside a model that stores every checkpoint whole.

The savers share nothing but the store, so that each of them is overtaken by the others all the
time. Most walks roll up after few entries. ``MILECASTLE_SAVER_WALKS`` sets the number.
"""

from __future__ import annotations

import os
import random
from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langgraph.checkpoint.base")

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import WRITES_IDX_MAP, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from milecastle.app.threads.pruning import prune_thread
from milecastle.codec.deltas import LogCodec
from milecastle.codec.values import UntypedCodec
from milecastle.integrations.langgraph import MilecastleSaver
from milecastle.integrations.langgraph.naming import key_of
from milecastle.ports.store import Store
from tests.every_store import POSTGRES, Stores
from tests.seeds import seeds

WALKS = int(os.environ.get("MILECASTLE_SAVER_WALKS", "4"))
CHANNELS = "abcd"
NAMESPACES = ("", "", "a:1")


def place(namespace: str, checkpoint: str | None = None) -> Any:
    given = {"thread_id": "t", "checkpoint_ns": namespace}
    return {"configurable": given | ({"checkpoint_id": checkpoint} if checkpoint else {})}


@dataclass
class TaskWrites:
    """What one call of ``put_writes`` gave."""

    path: str
    task: str
    writes: list[tuple[str, Any]]


@dataclass
class Known:
    """A checkpoint as it must be read."""

    id: str
    parent: str | None
    values: dict[str, Any]
    versions: dict[str, Any]
    run: str
    given: list[TaskWrites] = field(default_factory=list[TaskWrites])
    has_entry: bool = True

    @property
    def pending(self) -> list[tuple[str, str, Any]]:
        """The writes that count, by the rules of the base class."""
        found: dict[tuple[str, int], tuple[str, str, Any]] = {}
        for one in self.given:
            is_special = all(channel in WRITES_IDX_MAP for channel, _ in one.writes)
            for number, (channel, value) in enumerate(one.writes):
                at = one.task, WRITES_IDX_MAP.get(channel, number)
                if is_special or at not in found:
                    found[at] = one.path, channel, value
        ordered = sorted(found.items(), key=lambda item: (item[1][0], *item[0]))
        return [(task, channel, value) for (task, _), (_, channel, value) in ordered]


class Walk:
    """Savers, and what they must say."""

    def __init__(self, seed: int, stores: list[Store]) -> None:
        self.random = random.Random(seed)
        self.stores = stores
        self.savers = [MilecastleSaver(store) for store in stores]
        if self.random.random() < 0.8:
            for saver in self.savers:
                setattr(saver, "_rollup_after", self.random.choice([2, 3, 5]))  # noqa: B010
        self.model: dict[str, list[Known]] = {}
        self.numbers = count(1)
        self.done: list[str] = []

    def step(self) -> None:
        """Do one thing with one of the savers, and look with one of them or with a new one."""
        namespace = self.random.choice(NAMESPACES)
        saver = self.random.choice(self.savers)
        known = self.model.setdefault(namespace, [])
        actions: list[tuple[Any, int]] = [(self.put, 45)]
        if known:
            actions += [(self.write, 25), (self.shorten, 2), (self.prune, 2)]
            actions += [(self.delete_run, 4), (self.delete, 1), (None, 21)]
        (action,) = self.random.choices([one for one, _ in actions], [odds for _, odds in actions])
        if action is not None:
            self.done.append(f"{action.__name__} '{namespace}'")
            action(saver, namespace)
        reader = self.random.choice(
            [*self.savers, MilecastleSaver(self.random.choice(self.stores))]
        )
        self.look(reader, namespace)

    def put(self, saver: MilecastleSaver, namespace: str) -> None:
        """A checkpoint after the newest one, or a fork; now and then its writes come first."""
        known = self.model[namespace]
        parent = None
        if known:
            parent = known[-1] if self.random.random() < 0.93 else self.random.choice(known)
        made = Known(
            id=str(uuid6(clock_seq=next(self.numbers))),
            parent=parent.id if parent else None,
            values=dict(parent.values) if parent else {},
            versions=dict(parent.versions) if parent else {},
            run=f"run {self.random.randrange(3)}",
        )
        new: dict[str, Any] = {}
        for name in self.random.sample(CHANNELS, self.random.randrange(4)):
            new[name] = made.versions[name] = next(self.numbers)
            if name in made.values and self.random.random() < 0.12:
                del made.values[name]
            else:
                made.values[name] = self.value(made.values.get(name))
        if self.random.random() < 0.1:
            self.give(saver, namespace, made, TaskWrites("~e", "early", [("a", 1)]))
        checkpoint: Any = {
            **empty_checkpoint(),
            "id": made.id,
            "channel_values": dict(made.values),
            "channel_versions": dict(made.versions),
        }
        metadata: Any = {"source": "loop", "step": len(known), "run_id": made.run}
        saver.put(place(namespace, made.parent), checkpoint, metadata, new)
        self.keep(namespace, [*(one for one in known if one.has_entry), made])

    def value(self, old: Any) -> Any:
        """A value that grew, shrank, or is of another kind."""
        items: list[Any] = [*old] if type(old) is list else []
        message = HumanMessage("said", id=str(next(self.numbers)))
        grown: list[Any] = [[*items, next(self.numbers)], [*items, message]]
        others: list[Any] = [
            [],
            items[:-1],
            [AIMessage("x", id="1")],
            [[1], *items],
            {"a": [1, {"b": b"x"}]},
            {1: 2},
            "x",
            b"x",
            None,
            {1, 2},
        ]
        return self.random.choice(grown if self.random.random() < 0.6 else others)

    def write(self, saver: MilecastleSaver, namespace: str) -> None:
        """Writes of the newest checkpoint, or late ones of another."""
        known = self.model[namespace]
        at = known[-1] if self.random.random() < 0.6 else self.random.choice(known)
        writes: list[tuple[str, Any]] = [(self.random.choice(list(WRITES_IDX_MAP)), 1)]
        if self.random.random() < 0.7:
            values = [next(self.numbers), [HumanMessage("w", id="1")]]
            writes = [(name, self.random.choice(values)) for name in self.random.sample("ab", 2)]
        path, task = f"~{self.random.randrange(2)}", f"task {self.random.randrange(3)}"
        self.give(saver, namespace, at, TaskWrites(path, task, writes))

    def give(self, saver: MilecastleSaver, namespace: str, at: Known, given: TaskWrites) -> None:
        saver.put_writes(place(namespace, at.id), given.writes, given.task, given.path)
        at.given.append(given)

    def shorten(self, saver: MilecastleSaver, namespace: str) -> None:
        """As ``milecastle gc --keep-last`` does; the newest checkpoint stays until the next one."""
        store, key = self.random.choice(self.stores), key_of("default", "t", namespace)
        keep = self.random.randrange(1, 20)
        prune_thread(store, LogCodec(UntypedCodec()), key, keep_last=keep)
        left = {entry.id for entry in store.history(key)}
        known = self.model[namespace]
        known[-1].has_entry = known[-1].id in left
        self.keep(namespace, [one for one in known if one.id in left or one is known[-1]])

    def prune(self, saver: MilecastleSaver, namespace: str) -> None:
        saver.prune(["t"])
        for name, known in self.model.items():
            self.keep(name, known[-1:])

    def delete_run(self, saver: MilecastleSaver, namespace: str) -> None:
        gone = f"run {self.random.randrange(3)}"
        saver.delete_for_runs([gone])
        for name, known in self.model.items():
            self.keep(name, [one for one in known if one.run != gone])

    def delete(self, saver: MilecastleSaver, namespace: str) -> None:
        saver.delete_thread("t")
        for name in self.model:
            self.keep(name, [])

    def keep(self, namespace: str, known: list[Known]) -> None:
        self.model[namespace] = known

    def look(self, saver: MilecastleSaver, namespace: str) -> None:
        """The newest checkpoint, one by its id, and now and then all of them."""
        known = self.model[namespace]
        newest = saver.get_tuple(place(namespace))
        if not known:
            assert newest is None
            return
        self.check(newest, known[-1])
        one = self.random.choice(known)
        self.check(saver.get_tuple(place(namespace, one.id)), one)
        if self.random.random() < 0.3:
            self.check_all(list(saver.list(place(namespace))), known)
            before = saver.list(place(namespace), before=place(namespace, one.id))
            self.check_all(list(before), known[: known.index(one)])

    def check_all(self, found: list[Any], known: list[Known]) -> None:
        assert len(found) == len(known)
        for each, one in zip(found, reversed(known), strict=True):
            self.check(each, one)

    def check(self, found: Any, known: Known) -> None:
        assert found is not None
        values = found.checkpoint["channel_values"]
        assert values == known.values
        assert {name: type(one) for name, one in values.items()} == {
            name: type(one) for name, one in known.values.items()
        }
        assert found.pending_writes == known.pending
        assert found.config["configurable"]["checkpoint_id"] == known.id
        parent = found.parent_config and found.parent_config["configurable"]["checkpoint_id"]
        assert parent == known.parent


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=POSTGRES)])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[list[Store]]:
    """One store, opened once for each saver where it can be shared."""
    made, kind = Stores(tmp_path), request.param
    first = made.open(kind)
    others = [first, first] if kind == "memory" else [made.reopen(kind) for _ in range(2)]
    yield [first, *others]
    for store in others:
        store.close()
    made.close()


@pytest.mark.parametrize("seed", seeds(WALKS))
def test_savers_say_what_was_stored(seed: int, stores: list[Store]) -> None:
    """Of any checkpoint, whatever was stored, deleted or pruned meanwhile, and by whomever.

    Seen to fail, among others, when what is remembered is not compared with the head, when a list
    is continued at a rollup with the state before it, when a rollup repeats late writes, when
    channels that were removed are not named, and when the rollup after a deleted checkpoint is not
    stored whole.
    """
    walk = Walk(seed, stores)
    for _ in range(walk.random.randrange(20, 120)):
        try:
            walk.step()
        except Exception as error:
            error.add_note("\n".join(walk.done[-12:]))
            raise
