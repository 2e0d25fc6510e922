"""Mailboxes in SQLite: each call is one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec.structs

from milecastle.model.keys import ThreadKey, checks_keys
from milecastle.model.run import ThreadInfo
from milecastle.ports import mailbox as port
from milecastle.ports.mailbox import Debounce, Marks, NewRun, Sent, StoredMessage
from milecastle.stores.sqlite import messages
from milecastle.stores.sqlite.connections import Connections
from milecastle.stores.sqlite.rows import SPAN, ThreadRow, message_row, run_row, summed
from milecastle.stores.sqlite.transaction import NO_LIMIT, Transaction
from milecastle.stores.sqlite.writing import count_messages, put_thread


@checks_keys
class SqliteMailbox:
    def __init__(self, connections: Connections, path: str, now: Callable[[], int]) -> None:
        self._connections = connections
        self._path = path
        self._now = now

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
        with self._connections.writing() as cursor:
            transaction = Transaction(cursor, self._path)
            return self.send_in(transaction, key, topic, mark, payload, graph, run, debounce)

    def send_in(
        self,
        transaction: Transaction,
        key: ThreadKey,
        topic: str,
        mark: str,
        payload: bytes,
        graph: str,
        run: NewRun | None = None,
        debounce: Debounce | None = None,
    ) -> Sent:
        thread, row = _thread(transaction, key)
        if not port.is_of(row, graph):
            return Sent(number=0, reused=False, status=row.status)
        if run and run.unless and messages.find_mark(transaction, thread, mark) is None:
            newest = transaction.run_of_input(thread, run.unless)
            if newest and run.is_known(newest.run_id):
                return Sent(number=0, reused=True, status=row.status)
        now, number = self._now(), thread.messages + 1
        is_full = thread.unread >= port.MOST_UNREAD or number >= SPAN
        message = StoredMessage(number=number, topic=topic, mark=mark, payload=payload, sent_at=now)
        values = message_row(thread.origin + number, message)
        if is_full or not transaction.insert("put_message", values):
            known = messages.find_mark(transaction, thread, mark)
            if known is not None:
                return Sent(number=known, reused=True, status=row.status)
            if is_full:
                port.refuse_full(key)
            raise transaction.damage("a number is used twice", f"mailbox, thread '{key}'")
        thread = msgspec.structs.replace(thread, messages=number, unread=thread.unread + 1)
        if run:
            tenant, values = key.tenant, run_row(thread.id, run.record)
            thread = msgspec.structs.replace(thread, runs=thread.runs + 1)
            transaction.run("put_run", (*values, thread.runs, tenant, tenant))
        first = partial(messages.first_sent_at, transaction, thread, topic)
        if woken := port.woken(row, topic, number, now, debounce, first):
            put_thread(transaction, msgspec.structs.replace(thread, info=woken))
        elif run:
            put_thread(transaction, thread)
        else:
            count_messages(transaction, thread)
        return Sent(number=number, reused=False, status=row.status)

    def unread(
        self, key: ThreadKey, *, topic: str | None = None, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredMessage]:
        count = NO_LIMIT if limit is None else max(0, min(limit, NO_LIMIT))
        with self._connections.reading(whole=topic is None) as cursor:
            transaction = Transaction(cursor, self._path)
            thread = transaction.present_thread(key)
            return messages.unread(transaction, thread, topic, after, count) if thread else []

    def discard(self, key: ThreadKey, number: int) -> bool:
        with self._connections.writing() as cursor:
            transaction = Transaction(cursor, self._path)
            found = transaction.look(key)
            thread = found.thread
            row = messages.unread_row(transaction, thread, number) if thread else None
            if thread is None or row is None:
                return False
            messages.write_consumed(transaction, [row], found.seq)
            count_messages(transaction, msgspec.structs.replace(thread, unread=thread.unread - 1))
            return True

    def marks(self, key: ThreadKey) -> Marks:
        with self._connections.reading() as cursor:
            transaction = Transaction(cursor, self._path)
            thread = transaction.thread(key)
            return messages.marks(transaction, thread) if thread else Marks()

    def restore(
        self, key: ThreadKey, messages: Sequence[StoredMessage] = (), marks: Marks | None = None
    ) -> None:
        with self._connections.writing() as cursor:
            transaction = Transaction(cursor, self._path)
            thread, row = _thread(transaction, key)
            _restore(transaction, thread, row, messages, marks or Marks(), self._now())


def _restore(
    transaction: Transaction,
    thread: ThreadRow,
    row: ThreadInfo,
    unread: Sequence[StoredMessage],
    marks: Marks,
    now: int,
) -> None:
    origin = thread.origin
    gone = ((origin + one.number, "", one.mark, 0, one.seq, None) for one in marks.consumed)
    transaction.run_each("replace_message", [summed(values) for values in gone])
    rows = [message_row(origin + message.number, message) for message in unread]
    transaction.run_each("replace_message", rows)
    (count,) = transaction.one("count_unread", (thread.id,)) or (0,)
    numbers = [one.number for one in marks.consumed] + [one.number for one in unread]
    last = max(thread.messages, marks.last, *numbers)
    thread = msgspec.structs.replace(thread, messages=last, unread=count)
    row = messages.after_restoring(transaction, thread, row, now)
    put_thread(transaction, msgspec.structs.replace(thread, info=row))


def _thread(transaction: Transaction, key: ThreadKey) -> tuple[ThreadRow, ThreadInfo]:
    thread = transaction.present_thread(key)
    if thread is None or thread.info is None:
        port.refuse_no_thread(key)
    return thread, thread.info
