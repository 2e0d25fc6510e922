"""Mailboxes: messages to threads, numbered under the thread row's lock.

Rules:

- A message is one statement and one round trip. Its mark makes it idempotent, so it is sent again
  if the answer was lost.
- The thread's row is locked before any message, by everyone who needs both.
- ``threads.unread`` is never below the number of unread messages. It is counted again when it
  reaches ``MOST_UNREAD``, and not when messages are consumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from milecastle.errors import StoreError
from milecastle.model.keys import ThreadKey, checks_keys
from milecastle.ports import mailbox
from milecastle.ports.mailbox import (
    Consumed,
    Debounce,
    Marks,
    NewRun,
    Sent,
    StoredMessage,
    refuse_full,
    refuse_no_thread,
)
from milecastle.stores.postgres import rows, writing
from milecastle.stores.postgres.claiming import Repeat
from milecastle.stores.postgres.pool import Pool
from milecastle.stores.postgres.statements import Statements
from milecastle.stores.postgres.translating import Lost, Taken, Unreachable
from milecastle.stores.postgres.values import escape, unescape

_MOST = 2**31 - 1
_LAST = 2**63 - 1
_COLUMNS = ("numbers", "sent_at", "consumed", "topics", "marks", "payloads")


@checks_keys
class PostgresMailbox:
    def __init__(
        self,
        pool: Pool,
        statements: Statements,
        retry: Repeat,
        elsewhere: Callable[[ThreadKey], StoreError | None],
        woken: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._sql = statements
        self._retry = retry
        self._elsewhere = elsewhere
        self._woken = woken

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
        most = mailbox.MOST_UNREAD
        values = writing.send_values(key, topic, mark, payload, most, graph, debounce)
        statement = self._sql.send
        if run:
            statement, values = self._sql.send_run, [*values, *writing.run_values(run)]
        why: Exception | None = None
        for _ in self._pool.attempts():
            try:
                result = self._pool.write(statement, values, key.tenant)
            except (Lost, Taken) as again:
                why = again
                continue
            if result.ntuples:
                number, reused, status, is_due = rows.sent_from(result)
                if is_due:
                    self._woken()
                return Sent(number=number, reused=reused, status=status)
            self._make_room(key, most)
        raise Unreachable(
            f"the message to thread '{key.thread}' could not be stored in time: {why}; send it "
            "again with the same key"
        ) from why

    def _make_room(self, key: ThreadKey, most: int) -> None:
        asked = rows.key_parameters(key)
        found = self._retry(self._sql.count_unread, asked, key.tenant, self._sql.lock_thread)
        if not found:
            self._check_here(key)
            refuse_no_thread(key)
        if found[0][0] >= most:
            refuse_full(key)

    def unread(
        self, key: ThreadKey, *, topic: str | None = None, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredMessage]:
        self._pool.check_open()
        most = None if limit is None else max(0, min(limit, _MOST))
        asked = rows.key_parameters(key, after=max(0, min(after, _LAST)), limit=most)
        query = self._sql.unread
        if topic is not None:
            query, asked["topic"] = self._sql.unread_of_topic, escape(topic)
        found = self._retry(query, asked, key.tenant)
        if not found:
            self._check_here(key)
        return [
            StoredMessage(
                number=number,
                topic=unescape(topic),
                mark=unescape(mark),
                payload=payload,
                sent_at=sent_at,
            )
            for number, topic, mark, payload, sent_at in found
        ]

    def discard(self, key: ThreadKey, number: int) -> bool:
        self._pool.check_open()
        asked = rows.key_parameters(key, number=writing.message_number(number))
        done = bool(self._retry(self._sql.discard, asked, key.tenant))
        if not done:
            self._check_here(key)
        return done

    def marks(self, key: ThreadKey) -> Marks:
        self._pool.check_open()
        found = self._retry(self._sql.marks, rows.key_parameters(key), key.tenant)
        if not found:
            self._check_here(key)
            return Marks()
        consumed = tuple(
            Consumed(number=number, mark=unescape(mark), seq=seq)
            for _, number, mark, seq in found
            if number is not None
        )
        return Marks(last=found[0][0], consumed=consumed)

    def restore(
        self, key: ThreadKey, messages: Sequence[StoredMessage] = (), marks: Marks | None = None
    ) -> None:
        known = Marks() if marks is None else marks
        each: list[tuple[Any, ...]] = [
            (one.number, one.sent_at, None, escape(one.topic), escape(one.mark), one.payload)
            for one in messages
        ]
        each += [(one.number, 0, one.seq, "", escape(one.mark), b"") for one in known.consumed]
        last = max([known.last, *(one[0] for one in each)])
        columns = [list(column) for column in zip(*each, strict=True)] or [[]] * len(_COLUMNS)
        asked = rows.key_parameters(key, last=last, **dict(zip(_COLUMNS, columns, strict=True)))
        sql = self._sql
        queries = sql.lock_thread, sql.restore_over, sql.restore_messages, sql.restore
        statements = [(query, asked) for query in queries]
        lost: Lost | None = None
        for _ in self._pool.attempts():
            try:
                done = self._pool.run_together(statements, key.tenant)[-1]
            except Lost as again:
                lost = again
                continue
            if not done:
                self._check_here(key)
                refuse_no_thread(key)
            self._woken()
            return
        raise Unreachable(
            f"the mailbox of thread '{key.thread}' could not be restored in time: {lost}"
        ) from lost

    def _check_here(self, key: ThreadKey) -> None:
        found = self._elsewhere(key)
        if found is not None:
            raise found
