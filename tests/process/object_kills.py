"""Processes that write large values and files, and sweep them, to be killed at any moment.

Several writers share a few values and files, so that what one has just deleted is what another one
writes. Files are stored by a node, have several chunks, and are named by their content, so that
each can be compared with its name.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from milecastle import END, START, App, Context, File, StateGraph
from milecastle.errors import InvalidRequest, MilecastleError, StoreError
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch
from milecastle.stores.offloading import OffloadingStore, SharedObjects, files, offload, sweeping
from milecastle.stores.offloading.folder import ObjectFolder
from milecastle.stores.offloading.payloads import named_files
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing.entries import an_entry, make_id

TENANT = "tenant"
PATIENCE = 1.0
GRACE = 4.0
WRITERS = 3
SLOW = 2
"""The writer whose nodes take so long that the sweep condemns, and removes, what they stored."""
THREADS = 3
CHUNK = 1000
VALUES = tuple(random.Random(number).randbytes(3000) for number in range(6))
CONTENTS = tuple(random.Random(number).randbytes(3 * CHUNK + 500) for number in range(4))


class Place(NamedTuple):
    """A store in a folder, the URL of its objects, and the environment that leads there."""

    folder: Path
    url: str
    environment: dict[str, str]


def in_folder(folder: Path) -> Place:
    return Place(folder, f"file://{folder}/objects", {})


def in_bucket(folder: Path, url: str) -> Place:
    found = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    return Place(folder, url, found)


def opened(place: Place) -> OffloadingStore:
    os.environ.update(place.environment)
    objects = SharedObjects(place.url, threshold=1000, patience=PATIENCE)
    return offload(SqliteStore(place.folder / "store.db", synchronous="normal"), objects)


def keys_of(writer: int, kind: str = "value") -> list[ThreadKey]:
    return [ThreadKey(TENANT, f"{kind} {writer}-{number}") for number in range(THREADS)]


def all_keys() -> list[ThreadKey]:
    return [
        key
        for writer in range(WRITERS)
        for kind in ("value", "file")
        for key in keys_of(writer, kind)
    ]


class Keeping(TypedDict, total=False):
    path: str
    pause: float
    kept: File


def keep(state: Keeping, ctx: Context) -> Keeping:
    stored = ctx.file(state.get("path", ""))
    time.sleep(state.get("pause", 0.0))
    return {"kept": stored}


def an_app(store: OffloadingStore) -> App[Keeping]:
    graph = StateGraph(Keeping)
    graph.add_node("keep", keep)
    graph.add_edges(START, "keep", END)
    return graph.compile(store=store, tenant=TENANT)


class Writer:
    """Writes values and files, forks and deletes, until it is killed.

    A ``hasty`` one puts what belongs to a file when the entry that names it is committed.
    """

    def __init__(self, place: Place, number: int, seed: int, hasty: bool) -> None:
        setattr(files, "CHUNK", CHUNK)  # noqa: B010 - a constant
        self.store = opened(place)
        self.app = an_app(self.store)
        self.number = number
        self.chosen = random.Random(seed)
        self.folder = place.folder
        self.late: list[tuple[str, bytes]] = []
        if hasty:
            _put_late(self.store.objects.folder, self.late)

    def write(self) -> None:
        if self.number != SLOW and self.chosen.random() < 0.5:
            self._write_value()
        else:
            self._write_file()
        while self.late:
            ObjectFolder.create(self.store.objects.folder, *self.late.pop())

    def _write_value(self) -> None:
        key = self.chosen.choice(keys_of(self.number))
        if self.chosen.random() < 0.2:
            self.store.delete(key)
            return
        head = self.store.head(key)
        seq = head.seq + 1 if head else 1
        value, entry_id = self.chosen.choice(VALUES), make_id(self.chosen.getrandbits(90))
        entry = an_entry(seq, payload=value, id=entry_id)
        self.store.commit(Batch(key=key, head=seq - 1, entries=(entry,)))

    def _write_file(self) -> None:
        thread, other = self.chosen.sample(keys_of(self.number, "file"), 2)
        kind = self.chosen.random()
        if kind < 0.7:
            self._run(thread)
            return
        self.app.delete(thread)
        if kind < 0.9:
            self.app.fork(other, None, as_thread=thread)

    def _run(self, thread: ThreadKey) -> None:
        """Let a node store a file: one that others store, too, or one that nobody else has."""
        slow = self.number == SLOW
        is_shared = not slow and self.chosen.random() < 0.7
        content = self.chosen.choice(CONTENTS) if is_shared else self.chosen.randbytes(5 * CHUNK)
        path = self.folder / f"{blake2b(content).hexdigest()[:64]}"
        if not path.exists():
            staged = path.with_suffix(f".{os.getpid()}")
            staged.write_bytes(content)
            staged.rename(path)
        pause = self.chosen.random() * 3 * GRACE if slow else 0.0
        self.app.invoke({"path": str(path), "pause": pause}, thread, again=True, discard=True)


def write(place: Place, number: int, seed: int, hasty: bool) -> None:
    """Append entries with large values and files, and delete threads, until killed."""
    writer = Writer(place, number, seed, hasty)
    begun(place, os.getpid()).touch()
    while True:
        with suppress(MilecastleError):  # what was condemned or removed meanwhile is refused
            writer.write()


def _put_late(folder: ObjectFolder, late: list[tuple[str, bytes]]) -> None:
    create = folder.create

    def noted(path: str, data: bytes) -> bool:
        if "/files/" not in path:
            return create(path, data)
        late.append((path, data))
        return True

    setattr(folder, "create", noted)  # noqa: B010 - a method


class Sweeping(NamedTuple):
    """How a sweep cheats: it does not wait, or does not read which files are named."""

    grace: float = GRACE
    is_blind: bool = False


HONEST = Sweeping()


def _no_files(payload: bytes) -> list[str]:
    """What a sweep would read that does not know files."""
    return []


def sweep_again(place: Place, how: Sweeping) -> None:
    """Sweep until killed."""
    if not how.grace:
        setattr(sweeping, "GRACE", 0)  # noqa: B010 - a constant
    if how.is_blind:
        setattr(sweeping, "named_files", _no_files)  # noqa: B010 - a function
    store = opened(place)
    begun(place, os.getpid()).touch()
    while True:
        with suppress(StoreError):
            sweeping.sweep(store, TENANT, grace=how.grace)


def started(target: Callable[..., None], *given: object) -> BaseProcess:
    """A process that was forked from one which has imported all this, and used none of it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=target, args=given, daemon=True)
    process.start()
    return process


def begun(place: Place, pid: int | None) -> Path:
    return place.folder / f"begun {pid}"


def wait_for(place: Place, process: BaseProcess) -> None:
    """Return when a process has begun: on a slow machine it would only be killed before that."""
    end = time.monotonic() + 120
    while not begun(place, process.pid).exists():
        assert process.is_alive(), "it ended"
        assert time.monotonic() < end, "it did not begin"
        time.sleep(0.01)


def check(app: App[Keeping], store: OffloadingStore) -> Counter[str]:
    """Read everything that writers have written; ``Corrupted`` if something is missing."""
    found: Counter[str] = Counter()
    named: set[str] = set()
    for key in all_keys():
        for entry in store.entries(key):
            found["entries"] += 1
            named.update(named_files(entry.payload))
    for digest in named:
        store.verify_file(TENANT, digest, "a file that an entry names")
        found["files"] += 1
    for writer in range(WRITERS):
        for key in keys_of(writer, "file"):
            found["read"] += _read_back(app, key)
    return found


def _read_back(app: App[Keeping], key: ThreadKey) -> int:
    """Compare the file of a thread with its name; 1 if it has one."""
    try:
        state: Any = app.state(key)
    except InvalidRequest:  # the thread was deleted
        return 0
    kept = state.get("kept")
    if kept is None:
        return 0
    with app.files.open(kept) as content:
        assert blake2b(content.read()).hexdigest()[:64] == kept.name
    return 1
