"""Processes that write, archive, restore, prune, erase and sweep, to be killed at any moment.

A thread's name says what may happen to it. Every thread is archived and restored; ``kept`` ones
lose nothing, ``pruned`` ones may lose all but the last ``KEEP`` checkpoints, ``gone`` ones are
encrypted, deleted or erased, and begun again. What was acknowledged is in a file beside the store.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Annotated, Any, TypedDict

from milecastle import END, START, App, CheckpointStore, Keyring, Retention, StateGraph, append
from milecastle.app.threads.children import every_thread
from milecastle.errors import (
    Corrupted,
    InvalidRequest,
    KeyNotFound,
    MilecastleError,
    StoreError,
)
from milecastle.model.checkpoint import Entry
from milecastle.model.keys import ThreadKey
from milecastle.stores.offloading import OffloadingStore, sweeping
from milecastle.stores.offloading.archive import ObjectArchive
from milecastle.stores.offloading.segments import SegmentSpan, write_segment
from milecastle.stores.offloading.writing import PayloadWriter
from milecastle.stores.sqlite import SqliteStore
from tests.process.object_kills import GRACE, TENANT, Place, begun, opened

KEEP = 12
LENGTH = 60
"""A thread with more checkpoints is left, and another one begun."""
KINDS = ("kept", "pruned", "gone")
ALL = timedelta(0)


class Count(TypedDict, total=False):
    to: int
    n: int
    seen: Annotated[list[str], append]
    large: bytes


def note(number: int) -> str:
    return f"note {number} " + "x" * 40


def value(number: int) -> bytes:
    """One of a few large values, which threads share."""
    return random.Random(number % 6).randbytes(2000)


def count(state: Count) -> Count:
    number = state.get("n", 0)
    update: Count = {"n": number + 1, "seen": [note(number)]}
    if number % 5 == 0:
        update["large"] = value(number)
    return update


class Threads:
    """The apps and the maintenance of one process."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.store = opened(place)
        keys = SqliteStore(place.folder / "keys.db", synchronous="normal")
        self.ring = Keyring({"main": b"k" * 32}, store=keys)
        self.apps = {kind: self._app(None if kind != "gone" else self.ring) for kind in KINDS}
        plain, sealed = (
            CheckpointStore(self.store),
            CheckpointStore(self.store, encryption=self.ring),
        )
        self.checkpoints = {"kept": plain, "pruned": plain, "gone": sealed}

    def _app(self, ring: Keyring | None) -> App[Count]:
        graph = StateGraph(Count)
        graph.add_node("count", count)
        graph.add_edge(START, "count")
        graph.add_conditional_edges(
            "count",
            lambda state: "count" if state.get("n", 0) < state.get("to", 0) else END,
            ["count", END],
        )
        return graph.compile(store=self.store, tenant=TENANT, encryption=ring)

    def app(self, name: str) -> App[Count]:
        return self.apps[name.partition(" ")[0]]

    def maintenance(self, name: str) -> CheckpointStore:
        return self.checkpoints[name.partition(" ")[0]]

    def names(self, *kinds: str) -> list[str]:
        found = every_thread(self.store, TENANT, page=1000)
        return [one.key.thread for one in found if one.key.thread.partition(" ")[0] in kinds]

    def acknowledged(self) -> dict[str, int]:
        """The highest seq of each thread that its writer knows to be stored."""
        found: dict[str, int] = {}
        for path in self.place.folder.glob("acknowledged *"):
            for line in path.read_text().splitlines():
                name, _, seq = line.rpartition(" ")
                found[name] = max(found.get(name, 0), int(seq))
        return found


def again(place: Place, work: Callable[[], None]) -> None:
    """Do it until killed; what others changed meanwhile is refused."""
    begun(place, os.getpid()).touch()
    while True:
        with suppress(MilecastleError):  # erased threads cannot be read
            work()


def write(place: Place, number: int, seed: int) -> None:
    threads, chosen = Threads(place), random.Random(seed)
    log = os.open(place.folder / f"acknowledged {number}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    lives = dict.fromkeys(KINDS, 0)

    def run() -> None:
        kind = chosen.choice(KINDS)
        name = f"{kind} {number}-{lives[kind]}"
        key = ThreadKey(TENANT, name)
        head = threads.store.head(key)
        if head is not None and head.seq > LENGTH and kind != "gone":
            lives[kind] += 1
            return
        before: Any = threads.app(name).state(name).state if head else {}
        steps = chosen.randrange(1, 12)
        input: Count = {"to": before.get("n", 0) + steps}
        with suppress(MilecastleError):
            threads.app(name).invoke(input, name, again=True, discard=True)
            now = threads.store.head(key)
            if now is not None and kind != "gone":
                os.write(log, f"{name} {now.seq}\n".encode())

    again(place, run)


def archive(place: Place, is_hasty: bool) -> None:
    threads = Threads(place)
    late: list[tuple[str, bytes]] = []
    if is_hasty:
        _write_late(late)

    def run() -> None:
        for name in threads.names(*KINDS):
            rule = Retention(archive_after=ALL, threads=(name,))
            with suppress(StoreError):
                threads.maintenance(name).apply_retention(TENANT, rule)
            while late:
                threads.store.objects.folder.create(*late.pop())

    again(place, run)


def _write_late(late: list[tuple[str, bytes]]) -> None:
    """Let archivers store a segment after they removed its rows, without looking at it."""

    class Late:
        """The folder of objects, which only notes what is to be stored."""

        def __init__(self) -> None:
            self.folder = self

        def create(self, path: str, data: bytes) -> bool:
            late.append((path, data))
            return True

    def unseen(self: ObjectArchive, key: ThreadKey, entries: Sequence[Entry]) -> SegmentSpan:
        writer: PayloadWriter = getattr(self, "_writer")  # noqa: B009 - as the original has it
        writer.begin(key)
        objects: Any = Late()
        return write_segment(objects, key, entries)[0]

    setattr(ObjectArchive, "_write", unseen)  # noqa: B010 - a method


def restore(place: Place, seed: int) -> None:
    threads, chosen = Threads(place), random.Random(seed)

    def run() -> None:
        for name in threads.names(*KINDS):
            if chosen.random() < 0.3:
                with suppress(StoreError):
                    threads.maintenance(name).restore_thread(ThreadKey(TENANT, name))

    again(place, run)


def prune(place: Place, seed: int) -> None:
    threads, chosen = Threads(place), random.Random(seed)

    def run() -> None:
        for name in threads.names("pruned"):
            keep = KEEP + chosen.randrange(30)
            rule = Retention(keep_last=keep, threads=(name,))
            with suppress(StoreError):
                threads.maintenance(name).apply_retention(TENANT, rule)

    again(place, run)


def erase(place: Place, seed: int) -> None:
    threads, chosen = Threads(place), random.Random(seed)

    def run() -> None:
        for name in threads.names("gone"):
            time.sleep(chosen.random())
            if chosen.random() < 0.5:
                threads.maintenance(name).erase(TENANT, [name])
            else:
                threads.app(name).delete(name)

    again(place, run)


def sweep(place: Place) -> None:
    threads = Threads(place)
    again(place, lambda: _sweep(threads.store))


def _sweep(store: OffloadingStore) -> None:
    sweeping.sweep(store, TENANT, grace=GRACE)


class Reader:
    """Reads what was written, and remembers it: a checkpoint is never another one later."""

    def __init__(self, place: Place) -> None:
        self.threads = Threads(place)
        self.store = self.threads.store
        self.read = Counter[str]()
        self._seen: dict[tuple[str, int], tuple[str, int]] = {}
        self._oldest: dict[str, int] = {}

    def check(self, chosen: random.Random, most: int = 1_000_000) -> None:
        """Compare threads, at most so many, with what was acknowledged and read before."""
        heads = self.threads.acknowledged()
        names = [*heads, *self.threads.names("gone")]
        for name in chosen.sample(names, min(most, len(names))):
            self.read["threads"] += 1
            if name in heads:
                self._check_history(name, heads[name])
                self._check_states(name, chosen, most)
            else:
                self._check_gone(name, chosen, most)

    def check_kept(self) -> None:
        """Compare all that is left of threads that nobody prunes."""
        for name, head in self.threads.acknowledged().items():
            if name.startswith("kept"):
                self._check_history(name, head)
                self._check_states(name, random.Random(head), 1_000_000)

    def _check_history(self, name: str, head: int) -> None:
        """Nothing acknowledged is missing, and nothing that was pruned comes back."""
        shown = [entry.seq for entry in self.store.history(ThreadKey(TENANT, name))]
        assert shown, f"{name}: all are gone"
        assert shown[0] >= head, f"{name}: {head} was acknowledged, the head is {shown[0]}"
        assert shown == list(range(shown[0], shown[-1] - 1, -1)), f"{name}: a gap in {shown}"
        if name.startswith("kept"):
            assert shown[-1] == 1, f"{name}: all below {shown[-1]} are gone"
        assert len(shown) >= min(KEEP, shown[0]), f"{name}: only {shown} are left"
        assert shown[-1] >= self._oldest.get(name, 1), f"{name}: {shown[-1]} came back"
        self._oldest[name] = shown[-1]
        self.read["entries"] += len(shown)
        self.read["archived"] += shown[0] - shown[-1] + 1 - self._rows(name)

    def _rows(self, name: str) -> int:
        return len(self.store.inner.entries(ThreadKey(TENANT, name)))

    def _check_gone(self, name: str, chosen: random.Random, most: int) -> None:
        """Read a thread that is deleted at any moment: an error counts if it was not."""
        head = self.store.head(ThreadKey(TENANT, name))
        try:
            self._check_states(name, chosen, most)
        except KeyNotFound:  # erased, and then killed
            return
        except Corrupted:
            if self.store.head(ThreadKey(TENANT, name)) == head:
                raise

    def _check_states(self, name: str, chosen: random.Random, most: int) -> None:
        shown = [entry.seq for entry in self.store.history(ThreadKey(TENANT, name))]
        entries = self.store.entries(ThreadKey(TENANT, name))
        self.read["payloads"] += len(entries)
        for seq in chosen.sample(shown, min(2 * most, len(shown))):
            self._check_state(name, seq)

    def _check_state(self, name: str, seq: int) -> None:
        """Read one state; that of a thread that others delete or prune may be gone."""
        try:
            found = self.threads.app(name).state(name, at=seq)
        except InvalidRequest:
            if name.startswith("kept") or self._stays(name, seq):
                raise
            return
        state: Any = found.state
        number = state.get("n", 0)
        assert state.get("seen", []) == [note(one) for one in range(number)], (name, seq)
        if number:
            assert state["large"] == value((number - 1) // 5 * 5), (name, seq)
        self.read["states"] += 1
        if not name.startswith("gone"):
            seen = (found.id, number)
            assert self._seen.setdefault((name, seq), seen) == seen, f"{name}: {seq} changed"

    def _stays(self, name: str, seq: int) -> bool:
        """True if a thread that may be pruned has a checkpoint now."""
        if name.startswith("gone"):
            return False
        return any(entry.seq == seq for entry in self.store.history(ThreadKey(TENANT, name)))
