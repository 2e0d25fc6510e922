"""Committing batches, one or many, and determining their outcome.

Rules:

- A step is one INSERT and one round trip; so is any other batch. The primary key is the fence.
- A group is one transaction and one round trip. It goes in waves: in each, a thread has one batch;
  all a wave's steps are one statement, and so are all other batches. Results under a head, and a
  step that consumes messages, are a statement each.
- The writing statement reads the head, so a gap is refused; and a concurrent writer is detected by
  the primary key.
- If two groups collide so one has to be undone, or the answer is lost, each batch of it is
  looked up, and sent alone if it is missing.
- A server ending while it commits has, more often than not, committed. So nothing is guessed
  about a commit without an answer: the entry with the writer's own id is there, or it is not. If it
  is not, the batch is sent again. The first one may still arrive; the key lets only one of them in,
  and it does not matter which.
- A user's transaction holds its thread's row from before its results are written to its end:
  whoever takes the thread over waits for that row, or is seen. So an outcome is known once the row
  is free. A result that is there is never written again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from psycopg.pq.abc import PGresult

from milecastle.errors import Conflict, ShardMoved, StoreError, Unavailable
from milecastle.model.checkpoint import TaskResult
from milecastle.model.keys import ThreadKey, require_key
from milecastle.model.memory import MemoryWrite
from milecastle.ports.fencing import conflict, input_known, message_gone
from milecastle.ports.store import Batch
from milecastle.stores.postgres import writing
from milecastle.stores.postgres.libpq import Values, Write
from milecastle.stores.postgres.pool import Pool
from milecastle.stores.postgres.statements import Statements
from milecastle.stores.postgres.translating import Lost, Taken, Unreachable
from milecastle.stores.postgres.values import is_uuid


def resolve(
    attempts: Iterable[None], *, is_there: Callable[[], bool], send: Callable[[], bool]
) -> bool:
    """True if a batch with an unknown outcome is written in the end; ``False`` if it was refused.

    ``is_there`` reads whether it is written, ``send`` writes it and returns whether it was
    accepted. Both may raise ``Lost``. ``Unavailable`` if nothing was learned while there were
    attempts.
    """
    lost: Lost | None = None
    for _ in attempts:
        try:
            return is_there() or send() or is_there()
        except Lost as again:
            lost = again
    raise Unreachable(
        "the connection to PostgreSQL was lost during a commit, and its outcome is not known "
        f"yet: {lost}; read the thread before continuing"
    ) from lost


_HIGHEST = 2**31 - 1
"""The highest seq that a thread may have."""

_REMEMBERED = 10_000
"""The number of threads whose last entry is remembered."""

_by_thread = attrgetter("key.thread")


class _Part(msgspec.Struct, frozen=True):
    write: Write
    batches: Sequence[Batch]
    written: Callable[[PGresult, Sequence[Batch]], Iterable[Batch]]


class Commits:
    """Writes to one schema. ``head`` reads a head, ``is_there`` whether a batch is stored.

    ``elsewhere`` says why a thread cannot be written in this database, if that is why. ``woken``
    is called if a committed row is due because of a message. ``changed`` is the error for memory
    that has another version, if a batch expects one.
    """

    def __init__(
        self,
        pool: Pool,
        statements: Statements,
        *,
        head: Callable[[ThreadKey], int],
        is_there: Callable[[Batch], bool],
        elsewhere: Callable[[ThreadKey], StoreError | None],
        woken: Callable[[], None],
        changed: Callable[[Batch], StoreError | None],
    ) -> None:
        self._pool = pool
        self._sql = statements
        self._head = head
        self._is_there = is_there
        self._elsewhere = elsewhere
        self._woken = woken
        self._changed = changed
        self._newest: dict[ThreadKey, tuple[str, str, str]] = {}

    def one(self, batch: Batch) -> None:
        self._check(batch)
        write = self._write_of(batch)
        try:
            written = self._send(batch, write)
        except Lost:
            written = self._resolve(batch, write)
        if not written:
            raise self._refused(batch)
        self._remember(batch)

    def many(self, batches: Sequence[Batch]) -> Sequence[StoreError | None]:
        refused: dict[int, StoreError] = {}
        sound: list[Batch] = []
        for place, batch in enumerate(batches):
            try:
                self._check(batch)
                sound.append(batch)
            except (Conflict, ShardMoved) as error:
                refused[place] = error
        try:
            written = self._send_group(sound)
        except (Taken, Lost):
            return [refused.get(place) or self._alone(each) for place, each in enumerate(batches)]
        for batch in written.values():
            self._remember(batch)
        if len(written) == len(batches):
            return [None] * len(batches)
        return [
            None if id(batch) in written else refused.get(place) or self._refused(batch)
            for place, batch in enumerate(batches)
        ]

    def joined(self, batch: Batch, send: Callable[[Sequence[Write]], Sequence[PGresult]]) -> None:
        """Append a batch by ``send``, in the caller's transaction, or raise ``Conflict``."""
        self._check(batch)
        writes = [self._write_of(batch)]
        if batch.thread is not None and writing.is_waiting(batch):
            writes.append((self._sql.wake_waiting, writing.wake_values([batch])))
        if batch.memory:  # a savepoint is not the transaction that the fence looks for
            writes += [*self._locks_of([batch]), (self._sql.memory_write, _joined_memory(batch))]
        try:
            send(writes)
        except Taken:
            raise self._refused(batch) from None

    def within(
        self,
        key: ThreadKey,
        work: Callable[[Any], Batch],
        settled: Callable[[ThreadKey], Sequence[TaskResult]],
    ) -> bool:
        """Write ``work``'s result in the transaction in which it was called.

        ``settled`` reads the results when no transaction holds the thread's row any more.
        """
        made: list[Batch] = []

        def write(connection: Any) -> Sequence[Write]:
            made[:] = [work(connection)]
            self._check(made[0])
            hold = self._sql.hold_thread, writing.hold_values(made[0])
            return hold, (self._sql.keep_once, writing.keep_results_values(made[0]))

        lost: Lost | None = None
        try:
            if self._pool.write_within(write, key.tenant):
                return True
        except Lost as again:
            lost = again
        if not made:
            raise Unavailable(f"PostgreSQL did not respond: {lost}; nothing was written")
        batch, found = made[0], settled(key)
        if lost and all(result in found for result in batch.results):
            return resolve(self._pool.attempts(), is_there=self._pool.settle, send=lambda: False)
        if self._head(key) == batch.head:
            if {result.task for result in batch.results} & {result.task for result in found}:
                return False
            if lost:
                raise Unavailable(f"PostgreSQL did not respond: {lost}; nothing was written")
        raise self._refused(batch)

    def _refused(self, batch: Batch) -> StoreError:
        found = self._elsewhere(batch.key)
        if found is not None:
            return found
        head = self._head(batch.key)
        if batch.memory and head == batch.head and (changed := self._changed(batch)) is not None:
            return changed
        if batch.unless is not None and head == batch.head:
            return input_known(batch.key, head)
        if batch.consumes and head == batch.head:
            return message_gone(batch.key, head)
        return conflict(batch.key, batch.head + 1, head)

    def _remember(self, batch: Batch) -> None:
        if not batch.entries:
            return
        entry = batch.entries[-1]
        if is_uuid(entry.id):
            if len(self._newest) >= _REMEMBERED:
                self._newest.clear()
            self._newest[batch.key] = entry.id, entry.run_id, entry.fingerprint

    def _is_same(self, batch: Batch) -> bool:
        entry = batch.entries[0]
        origin = entry.parent_id, entry.run_id, entry.fingerprint
        return self._newest.get(batch.key) == origin

    def _check(self, batch: Batch) -> None:
        require_key(batch.key)
        head = batch.head
        wrong: int | None = None
        for place, entry in enumerate(batch.entries, 1):
            if entry.seq != head + place:
                wrong = entry.seq
                break
        if wrong is None and 0 <= head < _HIGHEST - len(batch.entries):
            return
        found = self._head(batch.key)
        raise conflict(batch.key, head + 1 if found != head or wrong is None else wrong, found)

    def _write_of(self, batch: Batch) -> Write:
        try:
            if writing.is_entry(batch):
                same = self._is_same(batch)
                if batch.consumes:
                    return self._sql.append_consuming, writing.append_consuming_values(batch, same)
                return self._sql.append, writing.append_values(batch, same)
            if writing.is_results(batch):
                return self._sql.keep_results, writing.keep_results_values(batch)
            return self._commit_of([batch])
        except (struct.error, OverflowError) as error:
            raise _too_large(error) from error

    def _send(self, batch: Batch, write: Write) -> bool:
        tenant = batch.key.tenant
        wakes = batch.thread is not None and writing.is_waiting(batch)
        memory, (statement, values) = batch.memory, write
        if memory and statement is self._sql.append and writing.only_puts(memory):
            write, memory = (self._sql.append_putting, [*values, *_joined_memory(batch)]), ()
        try:
            if not (wakes or memory):
                return bool(self._pool.write(*write, tenant).command_tuples)
            writes = [write]
            if wakes:
                writes.append((self._sql.wake_waiting, writing.wake_values([batch])))
            if memory:
                writes += [*self._locks_of([batch]), self._memory_of(batch)]
            result, woken, *_ = self._pool.write_together([(tenant, writes)])
        except Taken:
            return False
        if wakes and woken.command_tuples:
            self._woken()
        return bool(result.command_tuples)

    def _memory_of(self, batch: Batch) -> Write:
        is_put = writing.only_puts(batch.memory)
        statement = self._sql.memory_put_batch if is_put else self._sql.memory_batch
        return statement, writing.memory_batch_values(batch)

    def _locks_of(self, batches: Sequence[Batch]) -> Iterator[Write]:
        each: dict[str, list[MemoryWrite]] = {}
        for batch in batches:
            each.setdefault(batch.key.tenant, []).extend(batch.memory)
        for tenant in sorted(each):
            if len(batches) > 1 or writing.needs_lock(each[tenant]):
                yield self._sql.memory_lock, writing.memory_lock_values(tenant, each[tenant])

    def _resolve(self, batch: Batch, write: Write) -> bool:
        return resolve(
            self._pool.attempts(),
            is_there=lambda: self._is_there(batch) and self._pool.settle(),
            send=lambda: self._send(batch, write),
        )

    def _alone(self, batch: Batch) -> StoreError | None:
        if self._resolve(batch, self._write_of(batch)):
            return None
        return self._refused(batch)

    def _send_group(self, batches: Sequence[Batch]) -> dict[int, Batch]:
        try:
            parts = [(tenant, list(self._parts(own))) for tenant, own in self._waves(batches)]
        except (struct.error, OverflowError) as error:
            raise _too_large(error) from error
        each = [part for _, own in parts for part in own]
        if len(each) == 1:
            results = [self._pool.write(*each[0].write, parts[0][0])]
        elif each:
            writes = [(tenant, [part.write for part in own]) for tenant, own in parts]
            results = self._pool.write_together(writes)
        else:
            return {}
        return {
            id(batch): batch
            for part, result in zip(each, results, strict=True)
            for batch in part.written(result, part.batches)
        }

    def _waves(self, batches: Sequence[Batch]) -> Iterator[tuple[str, list[Batch]]]:
        """Batches in turns, each thread once; with row-level security each tenant separately.

        All groups take threads in the same order, so no two wait for each other.
        """
        apart = self._pool.address.rls
        if not apart and len({batch.key for batch in batches}) == len(batches):
            yield "", sorted(batches, key=_by_thread)
            return
        waves: list[dict[str, list[Batch]]] = []
        turns: dict[ThreadKey, int] = {}
        for batch in batches:
            turn = turns[batch.key] = turns.get(batch.key, -1) + 1
            if turn == len(waves):
                waves.append({})
            waves[turn].setdefault(batch.key.tenant if apart else "", []).append(batch)
        for wave in waves:
            for tenant in sorted(wave):
                wave[tenant].sort(key=_by_thread)
                yield tenant, wave[tenant]

    def _parts(self, batches: list[Batch]) -> Iterator[_Part]:
        steps = [batch for batch in batches if writing.is_step(batch)]
        if steps:
            same = [self._is_same(batch) for batch in steps]
            write = self._sql.append_many, writing.append_many_values(steps, same)
            yield _Part(write, steps, _named)
        if len(steps) < len(batches):
            yield from self._other_parts(batches)
        memory = [batch for batch in batches if batch.memory]
        for lock in self._locks_of(memory):
            yield _Part(lock, (), _beside)
        for batch in memory:  # after its entry, which its transaction must have written
            yield _Part(self._memory_of(batch), (), _beside)

    def _other_parts(self, batches: list[Batch]) -> Iterator[_Part]:
        others: list[Batch] = []
        for batch in batches:
            if writing.is_results(batch) or (batch.consumes and writing.is_entry(batch)):
                yield _Part(self._write_of(batch), [batch], _counted)
            elif not writing.is_step(batch):
                others.append(batch)
        if others:
            yield _Part(self._commit_of(others), others, _numbered)
        waiting = [batch for batch in others if writing.is_waiting(batch)]
        if waiting:
            wake = self._sql.wake_waiting, writing.wake_values(waiting)
            yield _Part(wake, (), self._rung)

    def _commit_of(self, batches: Sequence[Batch]) -> Write:
        values = writing.commit_values(batches)
        if any(batch.consumes for batch in batches):
            more = [*writing.tag_values(batches), *writing.message_values(batches)]
            return self._sql.commit_consuming, [*values, *more]
        if any(batch.tags for batch in batches):
            return self._sql.commit_tagged, [*values, *writing.tag_values(batches)]
        return self._sql.commit, values

    def _rung(self, result: PGresult, batches: Sequence[Batch]) -> Iterable[Batch]:
        if result.command_tuples:
            self._woken()
        return ()


def _joined_memory(batch: Batch) -> Values:
    key = batch.key
    seq = batch.head + len(batch.entries)
    return writing.memory_values(key.tenant, batch.memory, key.thread.encode(), seq)


def _named(result: PGresult, batches: Sequence[Batch]) -> Iterable[Batch]:
    if result.ntuples == len(batches):
        return batches
    found = {(result.get_value(row, 0), result.get_value(row, 1)) for row in range(result.ntuples)}
    return [
        batch
        for batch in batches
        if (batch.key.tenant.encode(), batch.key.thread.encode()) in found
    ]


def _numbered(result: PGresult, batches: Sequence[Batch]) -> Iterable[Batch]:
    numbers = [result.get_value(row, 0) or b"" for row in range(result.ntuples)]
    return [batches[int.from_bytes(number) - 1] for number in numbers]


def _counted(result: PGresult, batches: Sequence[Batch]) -> Iterable[Batch]:
    return batches if result.command_tuples else ()


def _beside(result: PGresult, batches: Sequence[Batch]) -> Iterable[Batch]:
    return ()


def _too_large(error: Exception) -> StoreError:
    return StoreError(f"a number in this batch is too large for PostgreSQL: {error}")
