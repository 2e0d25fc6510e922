"""Ctrl-C at every line of every store: the store can be used again, and reads what it holds.

What was interrupted happened or did not; both are right. Afterwards the store in this process must
read the same as one that is opened on the same place, and take the next commit, without hanging.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, partial
from linecache import getline
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any, NamedTuple

import pytest

import milecastle
from milecastle.errors import Unavailable
from milecastle.model.checkpoint import DELTA, ROLLUP, Entry
from milecastle.model.keys import ThreadKey
from milecastle.ports.claims import ClaimStore
from milecastle.ports.store import Batch, Chain, Store
from milecastle.stores.jsonl import JsonlStore
from milecastle.stores.jsonl.lines import frame
from milecastle.stores.jsonl.log import LogFile
from milecastle.stores.jsonl.shapes import CommitShape, encode
from milecastle.stores.memory import MemoryStore
from milecastle.stores.postgres import PostgresStore
from milecastle.stores.postgres.libpq import Lease
from milecastle.stores.postgres.pool import Pool
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing.contract_claims import LANE, names, queued
from milecastle.testing.contract_inputs import enqueue, inputs_of, waiting_run
from milecastle.testing.contract_mailbox import mailbox_of, unread, waiting
from milecastle.testing.entries import FINGERPRINT, Writer, a_failure, a_result, an_entry, make_id
from tests.every_store import EVERY_KIND, POSTGRES, Stores
from tests.postgres_cluster import new_schema, pool_of, the_cluster

STORES = str(Path(milecastle.__file__).parent / "stores")
HANGS = 10.0
PATIENCE = 9
"""How often a line is waited for that not every call visits."""

Place = tuple[str, int]
"""A file and a line of it, which is interrupted when it is visited for the first time."""


class Tracer:
    """Raises ``KeyboardInterrupt`` at one place; ``visited`` are all places that were reached.

    Not at a ``with`` or ``try``: the interpreter handles no signal between the end of the body and
    ``__exit__``, nor before the body of a ``try``, though tracing visits the line.
    """

    def __init__(self, target: Place | None = None) -> None:
        self._target = target
        self.visited: dict[Place, None] = {}

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        file, line = frame.f_code.co_filename, frame.f_lineno
        if not file.startswith(STORES):
            return None
        if event == "line" and not takes_no_signal(file, line):
            is_first = (file, line) not in self.visited
            self.visited[file, line] = None
            if is_first and (file, line) == self._target:
                raise KeyboardInterrupt
        return self

    def run(self, call: Callable[[], object]) -> None:
        """Call, under this tracer."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            call()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)


@cache
def takes_no_signal(file: str, line: int) -> bool:
    return getline(file, line).lstrip().startswith(("with ", "try:"))


def begin(store: Store, writer: Writer) -> None:
    entry = writer.plan(source="input")
    store.commit(writer.batch(entry, runs=(writer.run,), manifest=(FINGERPRINT, b"{}")))


def append(store: Store, writer: Writer) -> None:
    store.commit(writer.batch(writer.plan(), results=(a_result(8), a_result(8, "b"))))


def several(store: Store, writer: Writer) -> None:
    """A batch of two entries, with everything that a batch can hold."""
    first = writer.plan()
    scratch = Writer(writer.key)
    scratch.__dict__.update(writer.__dict__, entries=dict(writer.entries), states={**writer.states})
    scratch.keep(first)
    store.commit(
        writer.batch(
            first,
            scratch.plan(ROLLUP),
            results=(a_result(9),),
            runs=(writer.run,),
            failure=a_failure(writer.run.run_id),
            manifest=("other", b"{}"),
        )
    )


def keep_results(store: Store, writer: Writer) -> None:
    store.commit(writer.batch(results=(a_result(7, "c"), a_result(7, "d"))))


def prune(store: Store, writer: Writer) -> None:
    store.prune(writer.key, head=writer.head, cut=3, rewritten=writer.rewrite(3))


def delete(store: Store, writer: Writer) -> None:
    store.delete(writer.key)


Call = Callable[[Store, Writer], None]

SLOW = pytest.mark.slow
COMMITS = [
    pytest.param(several, id="several"),
    *(pytest.param(call, id=call.__name__, marks=SLOW) for call in (begin, append, keep_results)),
]
REMOVALS = [
    pytest.param("memory", prune, id="memory-prune"),
    pytest.param("memory", delete, id="memory-delete"),
    pytest.param("jsonl", prune, id="jsonl-prune", marks=SLOW),
    pytest.param("jsonl", delete, id="jsonl-delete", marks=SLOW),
    pytest.param("sqlite", prune, id="sqlite-prune", marks=SLOW),
    pytest.param("sqlite", delete, id="sqlite-delete"),
    pytest.param("postgres", prune, id="postgres-prune", marks=[POSTGRES, SLOW]),
    pytest.param("postgres", delete, id="postgres-delete", marks=POSTGRES),
]
KINDS = (DELTA, ROLLUP)


class Seen(NamedTuple):
    """Everything that a store says of a thread."""

    chain: Chain | None
    chains: list[Chain | None]
    history: list[Entry]
    entries: list[Entry]
    runs: object
    failure: object
    manifests: object
    listed: bool


def seen(store: Store, writer: Writer) -> Seen:
    key = writer.key
    entries = list(store.entries(key))
    return Seen(
        chain=store.read(key),
        chains=[store.read(key, entry.seq) for entry in entries],
        history=list(store.history(key)),
        entries=entries,
        runs=list(store.runs(key)),
        failure=store.failure(key, writer.run.run_id),
        manifests=[store.manifest(key, name) for name in (FINGERPRINT, "other")]
        if store.blocking
        else None,  # the memory store shares them, and may know one that nobody committed
        listed=key.thread in [info.key.thread for info in store.threads(key.tenant)],
    )


class Bench:
    """Interrupts a call at one place after the other, each time on another thread."""

    def __init__(self, store: Store, reopen: Callable[[], Store], call: Call) -> None:
        self._store = store
        self._reopen = reopen
        self._call = call
        self.at: Place | None = None
        self.count = 0

    def run(self) -> None:
        """Interrupt at every place; compare with a store that is opened then; commit again."""
        whole = self._writer()
        before = shape(seen(self._store, whole))
        places = dict.fromkeys(self._visited(whole), PATIENCE)
        outcomes = (before, shape(seen(self._store, whole)))
        tried: list[tuple[Place, Writer, Seen]] = []
        while places:
            self.at = next(iter(places))
            left = places.pop(self.at)
            writer = self._writer()
            tracer = Tracer(self.at)
            tracer.run(partial(self._call, self._store, writer))
            found = seen(self._store, writer)
            assert shape(found) in outcomes, f"half done after an interrupt at {self.at}"
            done = {place for place, *_ in tried}
            places |= {each: PATIENCE for each in tracer.visited if each not in {*done, *places}}
            if self.at in tracer.visited:
                places.pop(self.at, None)
                tried.append((self.at, writer, found))
            elif left > 1:
                places[self.at] = left - 1
        self._compare_reopened(tried)
        for self.at, writer, found in tried:
            self._continue(writer, found)
        self.count = len(tried)

    def _visited(self, writer: Writer) -> Iterable[Place]:
        tracer = Tracer()
        tracer.run(partial(self._call, self._store, writer))
        return tracer.visited

    def _writer(self) -> Writer:
        self.count += 1
        writer = Writer(ThreadKey(f"tenant {self.count}", "t"))  # whose list is short
        if self._call is not begin:
            writer.begin(self._store).write(self._store, KINDS)
            self._store.commit(writer.batch(results=(a_result(7),), manifest=(FINGERPRINT, b"{}")))
        return writer

    def _compare_reopened(self, tried: Iterable[tuple[Place, Writer, Seen]]) -> None:
        again = self._reopen()
        for self.at, writer, found in tried:
            assert seen(again, writer) == found, f"read differently after {self.at}"
            if isinstance(again, JsonlStore):
                again.verify_thread(writer.key)
        if again is not self._store:
            again.close()

    def _continue(self, writer: Writer, found: Seen) -> None:
        """Commit on the head that was read."""
        head = found.entries[-1] if found.entries else None
        seq, head_id = (head.seq, head.id) if head else (0, None)
        entry = an_entry(seq + 1, id=make_id(99), parent_id=head_id)
        batch = Batch(key=writer.key, head=seq, head_id=head_id, entries=(entry,))
        self._store.commit(batch)
        chain = self._store.read(writer.key)
        assert chain is not None
        assert chain.entries == (entry,)


def shape(found: Seen) -> object:
    """What is the same for two threads to which the same was done."""
    return (
        [(entry.seq, entry.kind, entry.payload) for entry in found.entries],
        [entry.seq for entry in found.history],
        [[entry.seq for entry in chain.entries] if chain else None for chain in found.chains],
        sorted(result.task for result in found.chain.results) if found.chain else None,
        found.failure is None,
        found.listed,
    )


def interrupt_everywhere(store: Store, reopen: Callable[[], Store], call: Call) -> int:
    """Interrupt a call everywhere; at how many places. A store that hangs is reported."""
    bench = Bench(store, reopen, call)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            bench.run()
        except BaseException as error:
            errors.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    progress: list[object] = []
    while thread.is_alive() and (now := (bench.at, bench.count)) not in progress[-1:]:
        progress.append(now)
        thread.join(HANGS)
    assert not thread.is_alive(), f"the store hangs after an interrupt at {bench.at}"
    if errors:
        raise errors[0]
    return bench.count


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    opened = Stores(tmp_path)
    yield opened
    opened.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a __del__
@pytest.mark.parametrize("call", COMMITS)
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_store_interrupted_at_any_line_can_be_used_again(
    stores: Stores, kind: str, call: Call
) -> None:
    """Seen to fail: a commit changes what is in memory in several steps, or leaves a lock taken."""
    check(stores, kind, call)


def check(stores: Stores, kind: str, call: Call) -> None:
    store = stores.open(kind)
    reopen = (lambda: store) if kind == "memory" else partial(stores.reopen, kind)
    assert interrupt_everywhere(store, reopen, call) > 5


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a __del__
@pytest.mark.parametrize(("kind", "call"), REMOVALS)
def test_interrupted_removal_is_done_or_not(stores: Stores, kind: str, call: Call) -> None:
    """Not seen to fail: it passes also if a log forgets its index after it closed its file."""
    check(stores, kind, call)


CONNECTIONS = 2


def usable(pool: Pool) -> int:
    """How many connections can be borrowed at once, up to the limit of the pool."""
    leases: list[Lease] = []
    with suppress(Unavailable):
        while len(leases) < CONNECTIONS:
            leases.append(pool.take())
    for lease in leases:
        assert lease.connection.execute("SELECT 1").fetchone() == (1,)
        pool.give_back(lease)
    return len(leases)


def check_pool(url: str, *, drain: bool) -> None:
    """Interrupt a commit at every line, with an idle connection or, with ``drain``, without."""
    store = PostgresStore(f"{url}&max_size={CONNECTIONS}&min_size=1&timeout=5")
    pool = pool_of(store)
    number = 0

    def attempt(target: Place | None) -> Tracer:
        nonlocal number
        number += 1
        writer = Writer(ThreadKey("tenant", f"t{number}")).begin(store)
        if drain:  # the next call needs a new connection
            for lease in (leases := [pool.take() for _ in range(CONNECTIONS)]):
                lease.uses = 10**6
            for lease in leases:
                pool.give_back(lease)
            leases.clear()
        tracer = Tracer(target)
        tracer.run(partial(keep_results, store, writer))
        return tracer

    attempt(None)  # which prepares statements
    for place in attempt(None).visited:
        attempt(place)
        gc.collect()
        assert usable(pool) == CONNECTIONS, f"a connection is lost after {place}"
    store.close()


@POSTGRES
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a __del__
@pytest.mark.parametrize("drain", [pytest.param(True, marks=SLOW), False])
def test_interrupted_pool_loses_no_connection(drain: bool) -> None:
    """Seen to fail: interrupted before a borrowed connection was returned, it was never replaced,
    and after as many interrupts as the pool has connections every call timed out."""
    check_pool(the_cluster().url_of(new_schema()), drain=drain)


class ForgetfulStore(MemoryStore):
    """A control: forgets the batch that an interrupted call was writing."""

    def _check_open(self) -> None:
        self._pending = None
        super()._check_open()


def test_memory_store_that_does_not_complete_a_batch_is_caught() -> None:
    store = ForgetfulStore()
    with pytest.raises(AssertionError, match="half done"):
        interrupt_everywhere(store, lambda: store, several)


def interrupt_messages(store: ClaimStore) -> int:
    """Interrupt a send, then the batch that consumes it, at every place; at how many."""
    mailbox, count = mailbox_of(store), 0

    def attempt(target: Place | None, *, consumes: bool) -> Tracer:
        nonlocal count
        count += 1
        tracer, writer = Tracer(target), waiting(store, f"{count}", count)
        sending = partial(mailbox.send, writer.key, "go", "mark", b"x")
        if consumes:
            sending()
            tracer.run(lambda: store.commit(writer.batch(writer.plan(), consumes=(1,))))
            head = store.head(writer.key)
            was_written = head is not None and head.seq == writer.head + 1
            assert unread(store, writer.key) == ([] if was_written else [1]), target
        else:
            tracer.run(sending)
            numbers = unread(store, writer.key)
            assert sending().reused == bool(numbers), target
            assert len(unread(store, writer.key)) == 1, target
        assert names(store.claim("two", [LANE], limit=9)) == [f"{count}"], target
        return tracer

    for consumes in (False, True):
        for place in attempt(None, consumes=consumes).visited:
            attempt(place, consumes=consumes)
    return count


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_interrupted_message_is_stored_once_and_wakes_its_thread(tmp_path: Path, kind: str) -> None:
    """Seen to fail: the memory store had stored a message, and was interrupted before it made the
    thread due; the repeated call found the mark."""
    store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "store.db")
    assert interrupt_messages(store) > 40
    store.close()


def test_interrupted_input_has_a_run_and_makes_its_thread_due() -> None:
    """Seen to fail: the record was there and its input not; the key named a run that never ran."""
    store, count = MemoryStore(), 0

    def attempt(target: Place | None) -> Tracer:
        nonlocal count
        count += 1
        tracer = Tracer(target)
        writer = queued(store, f"{count}", count, status="completed", due_at=None)
        record = waiting_run(writer, 1000 + count, input_digest="key")
        tracer.run(lambda: enqueue(store, record, unless="key"))
        is_there = bool(inputs_of(store, writer.key))
        assert is_there is (store.find_run(writer.key, "key") is not None), target
        assert enqueue(store, record, unless="key").reused is is_there, target
        assert inputs_of(store, writer.key) == [record.run_id], target
        assert names(store.claim("two", [LANE], limit=9)) == [f"{count}"], target
        return tracer

    for place in attempt(None).visited:
        attempt(place)
    assert count > 20


class HastyLog(LogFile):
    """A control: changes the index before the file."""

    def append(self, commit: CommitShape) -> None:
        if self.index.header is None:
            super().append(commit)
        else:
            data, check = frame(encode(commit), self.index.check)
            self.index.absorb(commit, len(data), check)
            self._write(data)


def test_jsonl_store_that_changes_its_index_before_its_file_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reopen = partial(JsonlStore, tmp_path)
    monkeypatch.setattr("milecastle.stores.jsonl.pool.LogFile", HastyLog)
    with pytest.raises(AssertionError, match=r"half done|read differently"):
        interrupt_everywhere(reopen(), reopen, several)
