"""A store of many PostgreSQL databases: each thread is in the database that has its shard.

Rules:

- A call for a thread goes to one database. A list of a tenant asks all of them, each for one page
  at most, and merges these in the order of the list.
- A database that is down makes its own shards unavailable and no others. A list fails, and names
  it; claims and heartbeats go on with the others.
- Databases have no common counter. Lists by recency are in the order of the times at which lines
  and runs were committed, each by the clock of its database: those of one database are in the
  order of their commits, as long as its clock does not go back.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import chain, islice
from operator import itemgetter, methodcaller
from threading import Thread
from typing import Any, TypeVar

import msgspec
import msgspec.structs

from milecastle.errors import Conflict, InvalidRequest, ShardMoved, StoreError, Unavailable
from milecastle.model.checkpoint import Entry, TaskResult
from milecastle.model.keys import ThreadKey, checks_keys, require_key
from milecastle.model.run import Failure, RunRecord, RunStatus, ThreadInfo
from milecastle.ports.claims import (
    LaneDepth,
    WaitingInput,
    WorkerInfo,
    require_worker,
)
from milecastle.ports.feed import Feed
from milecastle.ports.limits import Limit
from milecastle.ports.maintenance import (
    Inspected,
    Maintenance,
    Repaired,
)
from milecastle.ports.notifying import Listen
from milecastle.ports.pages import Page
from milecastle.ports.store import (
    Batch,
    Capabilities,
    Chain,
    CommitMany,
    Opened,
    ReadMany,
    Transact,
)
from milecastle.stores.postgres.address import parse
from milecastle.stores.postgres.notify import Listener
from milecastle.stores.postgres.shard_member import ShardMember
from milecastle.stores.postgres.store import Located
from milecastle.stores.sharded.claiming import ShardedClaims
from milecastle.stores.sharded.databases import Database, Databases
from milecastle.stores.sharded.joining import MapServers
from milecastle.stores.sharded.map import read_map
from milecastle.stores.wrapping import ForwardingStore

__all__ = ["ShardedStore"]

K = TypeVar("K")
T = TypeVar("T")


_ByName = Callable[[Callable[[ShardMember], Sequence[ThreadInfo]], int | None], list[ThreadInfo]]
_Tagged = Mapping[str, tuple[str, ...]]
_Gathered = Callable[
    [Iterable[ThreadKey], Callable[[ShardMember, Sequence[ThreadKey]], _Tagged]], _Tagged
]


@checks_keys
class ShardedStore(MapServers, Capabilities):
    """Stores logs in the databases of a map, ``shards.toml``."""

    blocking = True
    rollup_after = ShardMember.rollup_after

    def __init__(self, path: str | os.PathLike[str]) -> None:
        shards = read_map(path)
        super().__init__(shards)
        self._databases = Databases(shards)
        self._claims = ShardedClaims(self._databases)
        self._parts = {database: _Part(self, database) for database in self._databases}
        self._closed = False
        self._feed = _ShardedFeed(self._databases)
        try:
            self._databases.open()
        except BaseException:
            self.close()
            raise

    @property
    def writers(self) -> int:
        """How many commits run in parallel."""
        return sum(part.writers for part in self._parts.values())

    def _database(self, key: ThreadKey) -> Database:
        return self._databases.of(key.shard)

    def _call(self, key: ThreadKey, work: Callable[[ShardMember], T]) -> T:
        return self._databases.routed(key.shard, lambda database: database.call(work))

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the store was closed")

    # ---- writing

    @property
    def part_of(self) -> Callable[[ThreadKey], _Part]:
        """What writes groups of commits to the database of a thread."""
        return self._part_of

    def _part_of(self, key: ThreadKey) -> _Part:
        require_key(key)
        return self._parts[self._database(key)]

    def commit(self, batch: Batch) -> None:
        """Append the batch, or raise ``Conflict`` and change nothing."""
        require_key(batch.key)
        try:
            self._database(batch.key).call(lambda store: store.commit(batch))
        except Unavailable as error:
            found = self.settled(batch, error)
            if found is not None:
                raise found from error

    @property
    def commit_many(self) -> CommitMany:
        """Append the batches, those of each database in one transaction; the outcome of each."""
        return self._commit_many

    def _commit_many(self, batches: Sequence[Batch]) -> Sequence[StoreError | None]:
        self._check_open()
        parts: dict[Database, list[int]] = {}
        for place, batch in enumerate(batches):
            require_key(batch.key)
            parts.setdefault(self._database(batch.key), []).append(place)
        outcomes: list[StoreError | None] = [None] * len(batches)
        raised: list[BaseException] = []

        def write(database: Database, places: Sequence[int]) -> None:
            own = [batches[place] for place in places]
            try:
                found = database.call(lambda store: store.commit_many(own))
            except StoreError as error:
                found = [error] * len(own)
            except BaseException as error:
                raised.append(error)
                return
            for place, outcome in zip(places, found, strict=True):
                outcomes[place] = self.settled(batches[place], outcome)

        threads = [Thread(target=write, args=part, daemon=True) for part in parts.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if raised:
            raise raised[0]
        return outcomes

    def settled(self, batch: Batch, found: StoreError | None) -> StoreError | None:
        """The outcome of a batch, which is sent again if its shard is in another database.

        Without an answer it may have moved with its shard.
        """
        shard = batch.key.shard
        if not isinstance(found, ShardMoved) and not (
            isinstance(found, Unavailable) and self._databases.is_elsewhere(shard)
        ):
            return found

        def write(store: ShardMember) -> None:
            try:
                store.commit(batch)
            except Conflict:
                if not store.is_written(batch):
                    raise

        try:
            self._call(batch.key, write)
        except StoreError as error:
            return error
        return None

    @property
    def transact(self) -> Transact:
        """Let ``work`` write in the transaction that commits the results that it returns.

        It is not called again if its transaction was committed, and has moved with its shard.
        """
        return self._transact

    def _transact(self, key: ThreadKey, work: Callable[[Any], Batch]) -> bool:
        require_key(key)
        made: list[Batch] = []

        def remembered(connection: Any) -> Batch:
            made[:] = [work(connection)]
            return made[0]

        def write(store: ShardMember) -> bool:
            is_written = bool(made) and store.has_results(made[0])
            return is_written or store.transact(key, remembered)

        return self._call(key, write)

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        """Remove the thread; what is unreachable then, wherever its shard is."""
        found = self._call(key, lambda store: store.bury(key, head, head_id))
        self._call(key, lambda store: store.sweep(key))
        return found

    def prune(self, key: ThreadKey, *, head: int, cut: int, rewritten: Sequence[Entry]) -> int:
        """Replace some entries by snapshots and drop what is below ``cut``."""
        return self._call(
            key, lambda store: store.prune(key, head=head, cut=cut, rewritten=rewritten)
        )

    # ---- reading one thread

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """The chain of a checkpoint, or ``None``."""
        return self._call(key, lambda store: store.read(key, seq))

    @property
    def read_many(self) -> ReadMany:
        """The chains of several threads, each with the record of the run that wrote its head."""
        return lambda keys: self._gathered(keys, lambda store, own: store.read_many(own))

    def open(self, key: ThreadKey) -> Opened | None:
        """The chain of the head and the record of its run, or ``None``."""
        return self._call(key, lambda store: store.open(key))

    def _gathered(
        self,
        keys: Iterable[ThreadKey],
        ask: Callable[[ShardMember, Sequence[ThreadKey]], Mapping[K, T]],
    ) -> dict[K, T]:
        """What databases say of threads; where a shard was moved, of one after the other."""
        self._check_open()
        found: dict[K, T] = {}

        def asked(keys: Sequence[ThreadKey]) -> Callable[[ShardMember], Mapping[K, T]]:
            return lambda store: ask(store, keys)

        for database, own in self._grouped(keys).items():
            try:
                found |= database.call(asked(own))
            except Unavailable:
                for key in own:
                    found |= self._call(key, asked([key]))
        return found

    def _grouped(self, keys: Iterable[ThreadKey]) -> dict[Database, list[ThreadKey]]:
        grouped: dict[Database, list[ThreadKey]] = {}
        for key in keys:
            require_key(key)
            grouped.setdefault(self._database(key), []).append(key)
        return grouped

    def head(self, key: ThreadKey) -> Entry | None:
        """The newest entry without its payload, or ``None``."""
        return self._call(key, lambda store: store.head(key))

    def results(self, key: ThreadKey) -> Sequence[TaskResult]:
        """The results that go with the head."""
        return self._call(key, lambda store: store.results(key))

    def read_state(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """The chain of a checkpoint without results, or ``None``."""
        return self._call(key, lambda store: store.read_state(key, seq))

    def count_results(self, key: ThreadKey, task: str) -> int:
        """How many results that go with the head are of a task or its items."""
        return self._call(key, lambda store: store.count_results(key, task))

    def locate(self, key: ThreadKey, checkpoint_id: str) -> int | None:
        """The seq of a checkpoint, or ``None``."""
        return self._call(key, lambda store: store.locate(key, checkpoint_id))

    def history(
        self, key: ThreadKey, *, limit: int | None = None, before: int | None = None
    ) -> Iterator[Entry]:
        """Entries newest first, without payloads. Nothing is held between two pages."""
        self._check_open()
        return self._history(key, limit, before)

    def _history(self, key: ThreadKey, limit: int | None, before: int | None) -> Iterator[Entry]:
        """Read on where the shard is, if it was moved."""
        while True:
            database = self._database(key)
            read: Callable[[ShardMember], Iterator[Entry]]
            read = methodcaller("history", key, limit=limit, before=before)
            try:
                for entry in _naming(database, database.call(read)):
                    yield entry
                    before = entry.seq
                    limit = None if limit is None else limit - 1
            except ShardMoved:
                self.head(key)  # which finds it
            else:
                return

    def entries(
        self, key: ThreadKey, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Entry]:
        """Entries oldest first, with payloads."""
        return self._call(key, lambda store: store.entries(key, after=after, limit=limit))

    def runs(self, key: ThreadKey, *, limit: int | None = None) -> Sequence[RunRecord]:
        """The thread's runs, newest first."""
        return self._call(key, lambda store: store.runs(key, limit=limit))

    def run(self, key: ThreadKey, run_id: str) -> RunRecord | None:
        """One run, or ``None``."""
        return self._call(key, lambda store: store.run(key, run_id))

    def find_run(self, key: ThreadKey, input_digest: str) -> RunRecord | None:
        """The newest run whose input has this digest, or ``None``."""
        return self._call(key, lambda store: store.find_run(key, input_digest))

    def failure(self, key: ThreadKey, run_id: str) -> Failure | None:
        """The failure of one run, or ``None``."""
        return self._call(key, lambda store: store.failure(key, run_id))

    def thread(self, key: ThreadKey) -> ThreadInfo | None:
        """The line of one thread in the index, or ``None``."""
        return self._call(key, lambda store: store.thread(key))

    def manifest(self, key: ThreadKey, fingerprint: str) -> bytes | None:
        """A stored manifest, or ``None``."""
        return self._call(key, lambda store: store.manifest(key, fingerprint))

    # ---- lists of a tenant

    def threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Sequence[ThreadInfo]:
        """The tenant's threads by thread id."""
        return self._by_name(
            lambda store: store.threads(tenant, status=status, limit=limit, after=after), limit
        )

    @property
    def tags(self) -> ShardedTags:
        """Threads by tag."""
        return ShardedTags(self._by_name, self._gathered)

    @property
    def feed(self) -> Feed:
        """The feeds of all databases."""
        return self._feed

    def _by_name(
        self, list_page: Callable[[ShardMember], Sequence[ThreadInfo]], limit: int | None
    ) -> list[ThreadInfo]:
        pages = self._databases.each(list_page)
        return list(islice(merge(*pages, key=_name), _count(limit)))

    def recent_threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ThreadInfo]:
        """The tenant's threads, the one whose line was committed last first."""
        pages = self._databases.each(lambda store: store.recent_lines(tenant, status, limit, after))
        return _merged(pages, limit, down=True)

    def waking_threads(
        self,
        tenant: str,
        *,
        until: int | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ThreadInfo]:
        """The tenant's threads that sleep, the one that wakes first first."""
        pages = self._databases.each(lambda store: store.waking_lines(tenant, until, limit, after))
        return _merged(pages, limit, down=False)

    def recent_runs(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[RunRecord]:
        """The tenant's runs, the one that was first committed last first."""
        pages = self._databases.each(
            lambda store: store.recent_records(tenant, status, limit, after)
        )
        return _merged(pages, limit, down=True)

    # ---- claims

    def beat(self, worker: WorkerInfo) -> None:
        """Record that a worker is alive now, and what it serves, in every database."""
        self._databases.ask(lambda store: store.beat(worker))

    def retire(self, worker: str) -> int:
        """Forget a worker, and give all its threads back."""
        return sum(self._databases.ask(lambda store: store.retire(worker)).values())

    def workers(self) -> Sequence[WorkerInfo]:
        """All workers that were not forgotten, by id."""
        found: dict[str, WorkerInfo] = {}
        for worker in chain.from_iterable(self._databases.ask(ShardMember.workers).values()):
            known = found.get(worker.id)
            found[worker.id] = worker if known is None else _together(known, worker)
        return [found[id] for id in sorted(found)]

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        """Give due threads of these lanes to a worker."""
        require_worker(worker)
        self._check_open()
        return self._claims.claim(worker, lanes, limit) if limit > 0 else []

    def give_back(self, worker: str, key: ThreadKey, *, delay: float = 0.0) -> bool:
        """Make a thread due again after ``delay`` seconds. This does not wait for long."""
        require_key(key)

        def give(database: Database) -> bool:
            (given,) = self._databases.ask(
                lambda store: store.give_back(worker, key, delay=delay), of=[database]
            ).values()
            return given

        return self._databases.routed(key.shard, give)

    def reclaim(self, timeout: float | None = None) -> int:
        """Take the threads of all workers that were silent for longer, or that nobody knows."""
        return sum(self._databases.ask(lambda store: store.reclaim(timeout)).values())

    def claimed(self, worker: str) -> Sequence[ThreadKey]:
        """The threads that this worker has, of all databases: without one, this is not known."""
        return list(merge(*self._databases.each(lambda store: store.claimed(worker))))

    def due_in(self, lanes: Sequence[str]) -> float | None:
        """In how many seconds a thread of these lanes is due."""
        found = self._databases.ask(lambda store: store.due_in(lanes)).values()
        return min((due for due in found if due is not None), default=None)

    def now(self) -> int:
        """The time on the clocks of the databases: it is ahead of none that answers."""
        return min(self._databases.ask(ShardMember.now).values())

    def depths(self) -> Sequence[LaneDepth]:
        """How much is in each lane, by lane and tenant."""
        found: dict[tuple[str, str], LaneDepth] = {}
        for depth in chain.from_iterable(self._databases.each(ShardMember.depths)):
            place = depth.lane, depth.tenant
            known = found.get(place)
            found[place] = depth if known is None else _sum(known, depth)
        return [found[place] for place in sorted(found)]

    def overdue(self, age: float) -> Sequence[str]:
        """The lanes that have a thread which has been due for longer than so many seconds."""
        found = self._databases.ask(lambda store: store.overdue(age)).values()
        return sorted(set(chain.from_iterable(found)))

    def enqueue(
        self,
        record: RunRecord,
        mark: str,
        payload: bytes,
        *,
        unless: str | None = None,
        known: bool = False,
    ) -> str:
        """Let an input wait until its thread is free; the id of the run that it starts."""
        require_key(record.key)
        return self._call(
            record.key,
            lambda store: store.enqueue(record, mark, payload, unless=unless, known=known),
        )

    def inputs(self, key: ThreadKey, *, limit: int | None = None) -> Sequence[WaitingInput]:
        """The inputs that wait, in their order."""
        return self._call(key, lambda store: store.inputs(key, limit=limit))

    def limits(self) -> Sequence[Limit]:
        """What claims must not exceed, by graph and tenant."""
        return self._databases.all[0].call(ShardMember.limits)

    def set_limit(self, limit: Limit) -> None:
        """Set the limit of a graph and a tenant, in every database, or remove it."""
        self._databases.each(lambda store: store.set_limit(limit))

    @property
    def listen(self) -> Listen:
        """Call a function whenever a thread may have become due."""
        return lambda heard: _Listeners([Listener(parse(e.url), heard) for e in self._databases])

    # ---- maintenance

    @property
    def maintenance(self) -> Maintenance:
        """Checks, repairs and migrations for the command line: this object has them itself."""
        return self

    def verify(self, tenant: str, threads: Sequence[str] = ()) -> Iterator[Inspected]:
        """Every thread, database by database, or those that are named."""
        if threads:
            yield from (Inspected(thread=name) for name in threads)
            return
        for database in self._databases:
            yield from _naming(database, database.call(lambda store: store.verify(tenant)))

    def repair(self, tenant: str, threads: Sequence[str] = ()) -> Iterator[Repaired]:
        """Nothing: the servers repair themselves when they start."""
        return iter(())

    def close(self) -> None:
        """Close every database; every later call raises ``Unavailable``."""
        self._closed = True
        self._databases.close()


class _Part(ForwardingStore):
    """The whole store, with groups of commits for one of its databases."""

    def __init__(self, store: ShardedStore, database: Database) -> None:
        super().__init__(store)
        self._whole = store
        self._database = database

    @property
    def writers(self) -> int:
        """How many commits run in parallel."""
        return parse(self._database.url).writers

    @property
    def commit_many(self) -> CommitMany:
        """Append the batches in one transaction; return the outcome of each."""
        return self._commit_many

    def _commit_many(self, batches: Sequence[Batch]) -> Sequence[StoreError | None]:
        found: Sequence[StoreError | None]
        try:
            found = self._database.call(lambda store: store.commit_many(batches))
        except Unavailable as error:
            found = [error] * len(batches)
        return [self._whole.settled(*each) for each in zip(batches, found, strict=True)]


@checks_keys
class ShardedTags:
    """The tags of all databases."""

    def __init__(self, by_name: _ByName, gathered: _Gathered) -> None:
        self._by_name = by_name
        self._gathered = gathered

    def of(self, tenant: str, threads: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        """The tags of these threads."""
        return self._gathered(_possible(tenant, threads), ShardMember.tags_of_keys)

    def threads(
        self, tenant: str, tag: str, *, limit: int | None = None, after: str | None = None
    ) -> Sequence[ThreadInfo]:
        """The tenant's threads that have a tag, by thread id."""
        return self._by_name(
            lambda store: store.tags.threads(tenant, tag, limit=limit, after=after), limit
        )


class _ShardedFeed:
    """The feeds of all databases: a thread has that of its own, which may be another soon."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    def publish(self, key: ThreadKey, payload: bytes, /) -> None:
        """Send soon, if the database was ever reached."""
        store = self._databases.of(key.shard).opened
        if store is not None:
            store.feed.publish(key, payload)

    def subscribe(self, key: ThreadKey, heard: Callable[[bytes], None], /) -> Callable[[], None]:
        """Call ``heard`` with what is published from now on; returns a function that ends this."""
        own = self._databases.of(key.shard)
        return self._everywhere(key, heard, own, own.call(lambda s: s.feed.subscribe(key, heard)))

    def subscribe_soon(
        self, key: ThreadKey, heard: Callable[[bytes], None], /
    ) -> Callable[[], None]:
        """``subscribe`` without waiting for the server."""
        own = self._databases.of(key.shard)
        end = own.call(lambda store: store.feed.subscribe_soon(key, heard))
        return self._everywhere(key, heard, own, end)

    def _everywhere(
        self,
        key: ThreadKey,
        heard: Callable[[bytes], None],
        own: Database,
        end: Callable[[], None],
    ) -> Callable[[], None]:
        """Listen to the other databases, too: the thread's shard may be moved to one of them."""
        others = [each.opened for each in self._databases if each is not own]
        later = (one.feed.subscribe_soon(key, _after_first(heard)) for one in others if one)
        ends = [end, *later]

        def end_all() -> None:
            for each in ends:
                each()

        return end_all


def _after_first(heard: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """``heard`` without the empty payload by which a subscription says that it has begun."""
    begun: list[bytes] = []

    def hear(payload: bytes) -> None:
        if payload or begun:
            heard(payload)
        begun[:] = [payload]

    return hear


class _Listeners:
    """Listens to every database."""

    def __init__(self, each: Sequence[Listener]) -> None:
        self._each = each

    @property
    def is_connected(self) -> bool:
        """Whether all have answered lately."""
        return all(one.is_connected for one in self._each)

    def close(self) -> None:
        """Stop listening."""
        for one in self._each:
            one.close()


def _merged(pages: Sequence[Sequence[Located[T]]], limit: int | None, *, down: bool) -> Page[T]:
    """The page of a list whose pages all databases have given, each in the order of the list."""
    found = list(islice(merge(*pages, key=itemgetter(0), reverse=down), _count(limit)))
    return Page[T].cut((item for _, item in found), limit, lambda: found[-1][0])


def _naming(database: Database, found: Iterator[T]) -> Iterator[T]:
    """What an iterator of a database yields; its error names the database."""
    try:
        yield from found
    except ShardMoved:
        raise
    except Unavailable as error:
        raise database.named(error) from error


def _possible(tenant: str, threads: Iterable[str]) -> Iterator[ThreadKey]:
    """The keys of threads, without those that no thread can have."""
    for thread in threads:
        try:
            yield ThreadKey(tenant, thread)
        except InvalidRequest:
            continue


def _together(one: WorkerInfo, other: WorkerInfo) -> WorkerInfo:
    """A worker as two databases know it: by the newer beat."""
    newer = min(one, other, key=lambda worker: worker.silent)
    return msgspec.structs.replace(newer, running=one.running + other.running)


def _sum(one: LaneDepth, other: LaneDepth) -> LaneDepth:
    return LaneDepth(
        lane=one.lane,
        tenant=one.tenant,
        due=one.due + other.due,
        later=one.later + other.later,
        running=one.running + other.running,
        oldest=max(one.oldest, other.oldest),
    )


def _name(line: ThreadInfo) -> str:
    return line.key.thread


def _count(limit: int | None) -> int | None:
    return None if limit is None else max(0, min(limit, sys.maxsize))
