"""A thread's messages, as one transaction sees them; every row is verified."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec.structs

from milecastle.model.run import ThreadInfo
from milecastle.ports import mailbox as port
from milecastle.ports.mailbox import Consumed, Marks, StoredMessage, with_unread
from milecastle.ports.store import Batch
from milecastle.stores.sqlite.rows import (
    SPAN,
    Damaged,
    Row,
    ThreadRow,
    checked,
    checksum,
    consumed_row,
    message_of,
    read_text,
    write_text,
)
from milecastle.stores.sqlite.transaction import Transaction


def unread(
    transaction: Transaction, thread: ThreadRow, topic: str | None, after: int, limit: int
) -> list[StoredMessage]:
    above = thread.origin + max(0, min(after, SPAN - 1))
    with transaction.reading(_place(thread)):
        if topic is not None:
            values = thread.id, write_text(topic), above, limit
            rows = transaction.all("unread_of_topic", values)
        else:
            ids = transaction.all("unread_ids", (thread.id, above, limit))
            if after <= 0 and len(ids) != min(limit, thread.unread):
                raise Damaged
            rows = [_row(transaction, id) for (id,) in ids]
        return [message_of(checked(row)) for row in rows]


def first_sent_at(transaction: Transaction, thread: ThreadRow, topic: str, after: int) -> int:
    return unread(transaction, thread, topic, after, 1)[0].sent_at


def unread_row(transaction: Transaction, thread: ThreadRow, number: int) -> Row | None:
    if not 0 < number <= thread.messages:
        return None
    with transaction.reading(_place(thread)):
        row = transaction.one("message", (thread.origin + number,))
        values = None if row is None else checked(row)
    return values if values is not None and values[4] is None else None


def unread_rows(
    transaction: Transaction, thread: ThreadRow | None, numbers: Sequence[int]
) -> list[Row] | None:
    found: list[Row] = []
    for number in dict.fromkeys(numbers):
        row = None if thread is None else unread_row(transaction, thread, number)
        if row is None:
            return None
        found.append(row)
    return found


def unread_and_count(
    transaction: Transaction, id: int, batch: Batch
) -> tuple[list[Row], Row] | None:
    """An existing thread's ``unread_rows``, and the values for ``count_messages`` without them."""
    found, thread, count = list[Row](), (), 0
    with transaction.reading(f"mailbox, thread '{batch.key}'"):
        for number in dict.fromkeys(batch.consumes):
            place = id, id * SPAN + number if 0 < number < SPAN else 0
            row = transaction.one("message_and_thread", place)
            if row is None or row[4] is not None:
                return None
            found.append(checked(row[:7]))
            thread = row[7:]
        *values, count = checked(thread)
        if values[1:3] != [batch.key.tenant, batch.key.thread]:
            raise Damaged
    count -= len(found)
    return found, (values[-1], count, checksum(*values, count), id)


def write_consumed(transaction: Transaction, rows: Sequence[Row], seq: int) -> None:
    after = (consumed_row(row, seq) for row in rows)
    transaction.run_each("consume", [(row[4], row[5], row[6], row[0]) for row in after])


def with_message(transaction: Transaction, thread: ThreadRow, batch: Batch) -> Batch:
    if batch.thread is None or thread.info is None:
        return batch
    is_unread = partial(_is_unread, transaction, thread, batch.consumes)
    row = with_unread(batch.thread, thread.info.lane, is_unread)
    return msgspec.structs.replace(batch, thread=row)


def after_restoring(
    transaction: Transaction, thread: ThreadRow, row: ThreadInfo, now: int
) -> ThreadInfo:
    return port.restored(row, now, partial(_is_unread, transaction, thread, ()))


def is_kept(transaction: Transaction, thread: ThreadRow) -> bool:
    info = thread.info if thread.unread else None
    return info is not None and port.is_kept(info, partial(_is_unread, transaction, thread, ()))


def find_mark(transaction: Transaction, thread: ThreadRow, mark: str) -> int | None:
    with transaction.reading(_place(thread)):
        row = transaction.one("message_with_mark", (thread.id, write_text(mark)))
        if row is None:
            return None
        id, _, found, *_ = checked(row)
        if read_text(found) != mark:
            raise Damaged
        return int(id % SPAN)


def marks(transaction: Transaction, thread: ThreadRow) -> Marks:
    """The consumed messages; every row in the mailbox is verified on the way."""
    found: list[Consumed] = []
    count = 0
    with transaction.reading(_place(thread)):
        transaction.check_first("message_below", (thread.origin + 1,))
        # The row after the last is checked too: a damaged number would put one there.
        for row in transaction.each("messages", (thread.origin,)):
            id, _, mark, _, seq, _ = checked(row)
            if id > thread.last:
                break
            if seq is None:
                count += 1
            else:
                found.append(Consumed(number=id % SPAN, mark=read_text(mark), seq=seq))
        if count != thread.unread:
            raise Damaged
    return Marks(last=thread.messages, consumed=tuple(found))


def _is_unread(
    transaction: Transaction, thread: ThreadRow, besides: Sequence[int], topic: str, after: int
) -> bool:
    values = thread.id, write_text(topic), thread.origin + after, len(besides) + 1
    rows = transaction.all("unread_ids_of_topic", values)
    return any(id - thread.origin not in besides for (id,) in rows)


def _row(transaction: Transaction, id: int) -> Row:
    row = transaction.one("message", (id,))
    if row is None:
        raise Damaged
    return row


def _place(thread: ThreadRow) -> str:
    return f"mailbox, thread '{thread.key}'"
