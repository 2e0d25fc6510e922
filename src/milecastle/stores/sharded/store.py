"""A store over many PostgreSQL databases: each thread is in the database with its shard.

Rules:

- A call for a thread goes to one database. A tenant's list asks them all, each for one page
  at most, and merges these in the list's order.
- A database that is down makes its own shards unavailable and no others. A list fails, and names
  it; claims and heartbeats go on with the others.
- Databases have no common counter. Lists by recency are ordered by the times at which lines
  and runs were committed, each by its database's clock: one database's are in
  commit order, as long as its clock does not go back.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from heapq import merge
from itertools import chain, islice
from operator import itemgetter, methodcaller
from threading import Thread
from typing import Any, Protocol, TypeVar

import msgspec
import msgspec.structs

from milecastle.errors import Conflict, InvalidRequest, ShardMoved, StoreError, Unavailable
from milecastle.model.checkpoint import Entry, TaskResult
from milecastle.model.keys import ThreadKey, checks_keys, require_key
from milecastle.model.run import Failure, RunRecord, RunStatus, ThreadInfo
from milecastle.ports.claims import require_worker
from milecastle.ports.feed import Feed
from milecastle.ports.limits import Limit
from milecastle.ports.mailbox import Debounce, Marks, NewRun, Sent, StoredMessage
from milecastle.ports.maintenance import Inspected, Maintenance, Repaired
from milecastle.ports.notifying import Listen
from milecastle.ports.pages import Page
from milecastle.ports.store import (
    Batch,
    Capabilities,
    Chain,
    CommitMany,
    Join,
    Opened,
    ReadMany,
    Transact,
)
from milecastle.ports.workers import LaneDepth, WorkerInfo
from milecastle.stores.postgres.address import parse
from milecastle.stores.postgres.notify import Listener
from milecastle.stores.postgres.shard_member import ShardMember
from milecastle.stores.postgres.store import Located
from milecastle.stores.sharded.buckets import ShardedBuckets
from milecastle.stores.sharded.claiming import ShardedClaims
from milecastle.stores.sharded.databases import Database, Databases
from milecastle.stores.sharded.joining import MapServers
from milecastle.stores.sharded.map import read_map
from milecastle.stores.wrapping import ForwardingStore

K = TypeVar("K")
T = TypeVar("T")


_ByName = Callable[[Callable[[ShardMember], Sequence[ThreadInfo]], int | None], list[ThreadInfo]]
_Tagged = Mapping[str, tuple[str, ...]]
_Gathered = Callable[
    [Iterable[ThreadKey], Callable[[ShardMember, Sequence[ThreadKey]], _Tagged]], _Tagged
]


class _Call(Protocol):
    def __call__(self, key: ThreadKey, work: Callable[[ShardMember], T], /) -> T: ...


@checks_keys
class ShardedStore(MapServers, Capabilities):
    """Stores logs in a map's databases, ``shards.toml``."""

    blocking = True
    rollup_after = ShardMember.rollup_after

    def __init__(self, path: str | os.PathLike[str]) -> None:
        shards = read_map(path)
        super().__init__(shards)
        self._databases = Databases(shards)
        self._claims = ShardedClaims(self._databases)
        self._parts = {database: _Part(self, database) for database in self._databases}
        self._closed = False
        self._served: tuple[Database, ...] | None = None
        self._feed = _ShardedFeed(self._databases)
        try:
            self._databases.open()
        except BaseException:
            self.close()
            raise

    @property
    def writers(self) -> int:
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
        return self._part_of

    def _part_of(self, key: ThreadKey) -> _Part:
        require_key(key)
        return self._parts[self._database(key)]

    def commit(self, batch: Batch) -> None:
        require_key(batch.key)
        try:
            self._database(batch.key).call(lambda store: store.commit(batch))
        except Unavailable as error:
            found = self.settled(batch, error)
            if found is not None:
                raise found from error

    @property
    def commit_many(self) -> CommitMany:
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
        """A batch's outcome, which is sent again if its shard is in another database.

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
        """Let ``work`` write in the transaction committing the results it returns.

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

    @property
    def join(self) -> Join:
        return lambda connection, key: self._call(key, lambda store: store.join(connection, key))

    @property
    def ring(self) -> Callable[[], None]:
        return self._ring

    def _ring(self) -> None:
        for entry in self._databases:
            entry.call(lambda store: store.ring())

    def delete(
        self, key: ThreadKey, *, head: int | None = None, head_id: str | None = None
    ) -> bool:
        found = self._call(key, lambda store: store.bury(key, head, head_id))
        self._call(key, lambda store: store.sweep(key))
        return found

    def prune(
        self,
        key: ThreadKey,
        *,
        head: int,
        cut: int,
        rewritten: Sequence[Entry],
        oldest: Entry | None = None,
        archived: bool = False,
    ) -> int:
        return self._call(
            key,
            lambda store: store.prune(
                key, head=head, cut=cut, rewritten=rewritten, oldest=oldest, archived=archived
            ),
        )

    def put_back(
        self, key: ThreadKey, *, head: int, oldest: Entry, entries: Sequence[Entry]
    ) -> None:
        self._call(
            key, lambda store: store.put_back(key, head=head, oldest=oldest, entries=entries)
        )

    # ---- reading one thread

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        return self._call(key, lambda store: store.read(key, seq))

    @property
    def read_many(self) -> ReadMany:
        return lambda keys: self._gathered(keys, lambda store, own: store.read_many(own))

    def open(self, key: ThreadKey) -> Opened | None:
        return self._call(key, lambda store: store.open(key))

    def _gathered(
        self,
        keys: Iterable[ThreadKey],
        ask: Callable[[ShardMember, Sequence[ThreadKey]], Mapping[K, T]],
    ) -> dict[K, T]:
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
        return self._call(key, lambda store: store.head(key))

    def results(self, key: ThreadKey) -> Sequence[TaskResult]:
        return self._call(key, lambda store: store.results(key))

    def read_state(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        return self._call(key, lambda store: store.read_state(key, seq))

    def count_results(self, key: ThreadKey, task: str) -> int:
        return self._call(key, lambda store: store.count_results(key, task))

    def locate(self, key: ThreadKey, checkpoint_id: str) -> int | None:
        return self._call(key, lambda store: store.locate(key, checkpoint_id))

    def history(
        self, key: ThreadKey, *, limit: int | None = None, before: int | None = None
    ) -> Iterator[Entry]:
        self._check_open()
        return self._history(key, limit, before)

    def _history(self, key: ThreadKey, limit: int | None, before: int | None) -> Iterator[Entry]:
        while True:
            database = self._database(key)
            read: Callable[[ShardMember], Iterator[Entry]]
            read = methodcaller("history", key, limit=limit, before=before)
            try:
                with database.held():
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
        return self._call(key, lambda store: store.entries(key, after=after, limit=limit))

    def runs(self, key: ThreadKey, *, limit: int | None = None) -> Sequence[RunRecord]:
        return self._call(key, lambda store: store.runs(key, limit=limit))

    def run(self, key: ThreadKey, run_id: str) -> RunRecord | None:
        return self._call(key, lambda store: store.run(key, run_id))

    def find_run(self, key: ThreadKey, input_digest: str) -> RunRecord | None:
        return self._call(key, lambda store: store.find_run(key, input_digest))

    def failure(self, key: ThreadKey, run_id: str) -> Failure | None:
        return self._call(key, lambda store: store.failure(key, run_id))

    def thread(self, key: ThreadKey) -> ThreadInfo | None:
        return self._call(key, lambda store: store.thread(key))

    def manifest(self, key: ThreadKey, fingerprint: str) -> bytes | None:
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
        return self._by_name(
            lambda store: store.threads(tenant, status=status, limit=limit, after=after), limit
        )

    @property
    def tags(self) -> ShardedTags:
        return ShardedTags(self._by_name, self._gathered)

    @property
    def mailbox(self) -> ShardedMailbox:
        return ShardedMailbox(self._call)

    @property
    def feed(self) -> Feed:
        return self._feed

    def _by_name(
        self, list_page: Callable[[ShardMember], Sequence[ThreadInfo]], limit: int | None
    ) -> list[ThreadInfo]:
        pages = self._databases.each(list_page)
        return list(islice(merge(*pages, key=lambda line: line.key.thread), _count(limit)))

    def recent_threads(
        self,
        tenant: str,
        *,
        status: RunStatus | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ThreadInfo]:
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
        pages = self._databases.each(
            lambda store: store.recent_records(tenant, status, limit, after)
        )
        return _merged(pages, limit, down=True)

    # ---- claims

    @property
    def cells(self) -> ShardedCells:
        return ShardedCells(self._databases, self._serves, self._serving)

    @property
    def _serves(self) -> tuple[Database, ...]:
        return self._databases.all if self._served is None else self._served

    def _serving(self, names: Sequence[str]) -> ShardedStore:
        view = copy(self)
        view._served = self._databases.chosen(names)
        view._claims = ShardedClaims(self._databases, view._served)
        return view

    def _ask(self, work: Callable[[ShardMember], T]) -> dict[Database, T]:
        return self._databases.ask(work, of=self._served)

    def beat(self, worker: WorkerInfo) -> None:
        self._ask(lambda store: store.beat(worker))
        self._databases.rest(self._serves)

    def retire(self, worker: str) -> int:
        return sum(self._ask(lambda store: store.retire(worker)).values())

    def workers(self) -> Sequence[WorkerInfo]:
        found: dict[str, WorkerInfo] = {}
        for database, workers in self._ask(ShardMember.workers).items():
            for worker in workers:
                own = msgspec.structs.replace(worker, databases=(database.name,))
                known = found.get(worker.id)
                found[worker.id] = own if known is None else _together(known, own)
        return [found[id] for id in sorted(found)]

    def claim(self, worker: str, lanes: Sequence[str], *, limit: int) -> Sequence[ThreadInfo]:
        require_worker(worker)
        self._check_open()
        return self._claims.claim(worker, lanes, limit) if limit > 0 else []

    def give_back(self, worker: str, key: ThreadKey, *, delay: float = 0.0) -> bool:
        require_key(key)

        def give(database: Database) -> bool:
            (given,) = self._databases.ask(
                lambda store: store.give_back(worker, key, delay=delay), of=[database]
            ).values()
            return given

        return self._databases.routed(key.shard, give)

    def reclaim(self, timeout: float | None = None) -> int:
        return sum(self._ask(lambda store: store.reclaim(timeout)).values())

    def claimed(self, worker: str) -> Sequence[ThreadKey]:
        own = self._databases.each(lambda store: store.claimed(worker), self._served)
        return list(merge(*own))

    def due_in(self, lanes: Sequence[str]) -> float | None:
        found = self._ask(lambda store: store.due_in(lanes)).values()
        return min((due for due in found if due is not None), default=None)

    def now(self) -> int:
        return min(self._ask(ShardMember.now).values())

    def depths(self) -> Sequence[LaneDepth]:
        found: dict[tuple[str, str], LaneDepth] = {}
        for depth in chain.from_iterable(self._databases.each(ShardMember.depths, self._served)):
            place = depth.lane, depth.tenant
            known = found.get(place)
            found[place] = depth if known is None else _sum(known, depth)
        return [found[place] for place in sorted(found)]

    def overdue(self, age: float) -> Sequence[str]:
        found = self._ask(lambda store: store.overdue(age)).values()
        return sorted(set(chain.from_iterable(found)))

    def limits(self) -> Sequence[Limit]:
        return self._databases.all[0].call(ShardMember.limits)

    def set_limit(self, limit: Limit) -> None:
        self._databases.each(lambda store: store.set_limit(limit))

    @property
    def buckets(self) -> ShardedBuckets:
        return ShardedBuckets(self._databases.all[0].call)

    @property
    def listen(self) -> Listen:
        return lambda heard: _Listeners([Listener(parse(e.url), heard) for e in self._serves])

    # ---- maintenance

    @property
    def maintenance(self) -> Maintenance:
        return self

    def verify(self, tenant: str, threads: Sequence[str] = ()) -> Iterator[Inspected]:
        if threads:
            yield from (Inspected(thread=name) for name in threads)
            return
        for database in self._databases:
            with database.held():
                yield from _naming(database, database.call(lambda store: store.verify(tenant)))

    def repair(self, tenant: str, threads: Sequence[str] = ()) -> Iterator[Repaired]:
        return iter(())

    def close(self) -> None:
        self._closed = True
        self._databases.close()


class ShardedCells:
    def __init__(
        self,
        databases: Databases,
        served: Sequence[Database],
        serving: Callable[[Sequence[str]], ShardedStore],
    ) -> None:
        self._databases = databases
        self._served = served
        self._serving = serving

    @property
    def names(self) -> Sequence[str]:
        return [database.name for database in self._served]

    def of(self, key: ThreadKey) -> str:
        return self._databases.of(key.shard).name

    def serving(self, names: Sequence[str]) -> ShardedStore:
        return self._serving(names)


class _Part(ForwardingStore):
    def __init__(self, store: ShardedStore, database: Database) -> None:
        super().__init__(store)
        self._whole = store
        self._database = database

    @property
    def writers(self) -> int:
        return parse(self._database.url).writers

    @property
    def commit_many(self) -> CommitMany:
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
    def __init__(self, by_name: _ByName, gathered: _Gathered) -> None:
        self._by_name = by_name
        self._gathered = gathered

    def of(self, tenant: str, threads: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        return self._gathered(_possible(tenant, threads), ShardMember.tags_of_keys)

    def threads(
        self, tenant: str, tag: str, *, limit: int | None = None, after: str | None = None
    ) -> Sequence[ThreadInfo]:
        return self._by_name(
            lambda store: store.tags.threads(tenant, tag, limit=limit, after=after), limit
        )


@checks_keys
class ShardedMailbox:
    def __init__(self, call: _Call) -> None:
        self._call = call

    def send(
        self,
        key: ThreadKey,
        topic: str,
        mark: str,
        payload: bytes,
        graph: str = "",
        run: NewRun | None = None,
        debounce: Debounce | None = None,
    ) -> Sent:
        return self._call(
            key, lambda store: store.mailbox.send(key, topic, mark, payload, graph, run, debounce)
        )

    def unread(
        self, key: ThreadKey, *, topic: str | None = None, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredMessage]:
        return self._call(
            key, lambda store: store.mailbox.unread(key, topic=topic, after=after, limit=limit)
        )

    def discard(self, key: ThreadKey, number: int) -> bool:
        return self._call(key, lambda store: store.mailbox.discard(key, number))

    def marks(self, key: ThreadKey) -> Marks:
        return self._call(key, lambda store: store.mailbox.marks(key))

    def restore(
        self, key: ThreadKey, messages: Sequence[StoredMessage] = (), marks: Marks | None = None
    ) -> None:
        self._call(key, lambda store: store.mailbox.restore(key, messages, marks))


class _ShardedFeed:
    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    def publish(self, key: ThreadKey, payload: bytes, /) -> None:
        store = self._databases.of(key.shard).opened
        if store is not None:
            store.feed.publish(key, payload)

    def subscribe(self, key: ThreadKey, heard: Callable[[bytes], None], /) -> Callable[[], None]:
        own = self._databases.of(key.shard)
        with own.held():
            end = own.call(lambda store: store.feed.subscribe(key, heard))
            return self._everywhere(key, heard, own, end)

    def subscribe_soon(
        self, key: ThreadKey, heard: Callable[[bytes], None], /
    ) -> Callable[[], None]:
        own = self._databases.of(key.shard)
        with own.held():
            end = own.call(lambda store: store.feed.subscribe_soon(key, heard))
            return self._everywhere(key, heard, own, end)

    def _everywhere(
        self, key: ThreadKey, heard: Callable[[bytes], None], own: Database, end: Callable[[], None]
    ) -> Callable[[], None]:
        """Listen to the other databases too: the thread's shard may be moved there."""
        ends = ExitStack()
        ends.enter_context(own.held())
        ends.callback(end)
        for each in self._databases:
            if each is not own:
                ends.enter_context(each.held())
                store = each.opened
                if store is not None:
                    ends.callback(store.feed.subscribe_soon(key, _after_first(heard)))
        return ends.close


def _after_first(heard: Callable[[bytes], None]) -> Callable[[bytes], None]:
    begun: list[bytes] = []

    def hear(payload: bytes) -> None:
        if payload or begun:
            heard(payload)
        begun[:] = [payload]

    return hear


class _Listeners:
    def __init__(self, each: Sequence[Listener]) -> None:
        self._each = each

    @property
    def is_connected(self) -> bool:
        return all(one.is_connected for one in self._each)

    def close(self) -> None:
        for one in self._each:
            one.close()


def _merged(pages: Sequence[Sequence[Located[T]]], limit: int | None, *, down: bool) -> Page[T]:
    found = list(islice(merge(*pages, key=itemgetter(0), reverse=down), _count(limit)))
    return Page[T].cut((item for _, item in found), limit, lambda: found[-1][0])


def _naming(database: Database, found: Iterator[T]) -> Iterator[T]:
    try:
        yield from found
    except ShardMoved:
        raise
    except Unavailable as error:
        raise database.named(error) from error


def _possible(tenant: str, threads: Iterable[str]) -> Iterator[ThreadKey]:
    for thread in threads:
        try:
            yield ThreadKey(tenant, thread)
        except InvalidRequest:
            continue


def _together(one: WorkerInfo, other: WorkerInfo) -> WorkerInfo:
    """One worker of two databases: it serves those in which it is not gone, if there are any."""
    newer = min(one, other, key=lambda worker: worker.silent)
    alive = [worker for worker in (one, other) if not worker.is_gone] or [one, other]
    databases = tuple(chain.from_iterable(worker.databases for worker in alive))
    running = one.running + other.running
    return msgspec.structs.replace(newer, running=running, databases=databases)


def _sum(one: LaneDepth, other: LaneDepth) -> LaneDepth:
    return LaneDepth(
        lane=one.lane,
        tenant=one.tenant,
        due=one.due + other.due,
        later=one.later + other.later,
        running=one.running + other.running,
        oldest=max(one.oldest, other.oldest),
    )


def _count(limit: int | None) -> int | None:
    return None if limit is None else max(0, min(limit, sys.maxsize))
