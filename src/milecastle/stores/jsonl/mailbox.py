"""A file store's mailboxes: a message is a line in its thread's log, written as a commit is."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial

from milecastle.errors import InvalidRequest
from milecastle.model.keys import ThreadKey, checks_keys
from milecastle.model.run import ThreadInfo
from milecastle.ports import mailbox as port
from milecastle.ports.mailbox import Marks, NewRun, Sent, StoredMessage
from milecastle.stores.jsonl.log import LogFile
from milecastle.stores.jsonl.pool import LogPool
from milecastle.stores.jsonl.reading import messages_in, thread_of
from milecastle.stores.jsonl.shapes import CommitShape, MessageShape, RunShape, ThreadShape

_MESSAGES = 256
"""How many messages a line has at most that restores some."""


@checks_keys
class JsonlMailbox:
    def __init__(self, pool: LogPool, now: Callable[[], int]) -> None:
        self._pool = pool
        self._now = now

    def send(
        self,
        key: ThreadKey,
        topic: str,
        mark: str,
        payload: bytes,
        graph: str = "",
        run: NewRun | None = None,
        debounce: port.Debounce | None = None,
    ) -> Sent:
        with self._writing(key) as (log, row):
            index, now = log.index, self._now()
            messages, number = index.messages, index.messages.last + 1
            if not port.is_of(row, graph):
                return Sent(number=0, reused=False, status=row.status)
            if (known := messages.find(mark)) is not None:
                return Sent(number=known, reused=True, status=row.status)
            if run and run.unless and run.is_known(index.digests.get(run.unless)):
                return Sent(number=0, reused=True, status=row.status)
            if len(messages.unread) >= port.MOST_UNREAD:
                port.refuse_full(key)
            message = StoredMessage(
                number=number, topic=topic, mark=mark, payload=payload, sent_at=now
            )
            commit = CommitShape(head=index.head, messages=(MessageShape.of(message),))
            if run:
                commit.runs = (RunShape.of(run.record),)
            first = partial(messages.first_sent_at, topic, now)
            if due := port.woken(row, topic, number, now, debounce, first):
                commit.thread = _due(log, due)
            log.append(commit)
            return Sent(number=number, reused=False, status=row.status)

    def unread(
        self, key: ThreadKey, *, topic: str | None = None, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredMessage]:
        with self._pool.reading(key) as log:
            wanted = [
                number
                for number, message in log.index.messages.unread.items()
                if number > after and topic in (None, message.topic)
            ][: None if limit is None else max(0, limit)]
            found: dict[int, StoredMessage] = {}
            for number in wanted:
                if number not in found:
                    each = messages_in(log, log.index.sent[number])
                    found |= {message.number: message for message in each}
            return [found[number] for number in wanted]

    def discard(self, key: ThreadKey, number: int) -> bool:
        with self._pool.writing(key) as log:
            if number not in log.index.messages.unread:
                return False
            log.append(CommitShape(head=log.index.head, consumes=(number,)))
            return True

    def marks(self, key: ThreadKey) -> Marks:
        with self._pool.reading(key) as log:
            return log.index.messages.marks()

    def restore(
        self, key: ThreadKey, messages: Sequence[StoredMessage] = (), marks: Marks | None = None
    ) -> None:
        known = marks or Marks()
        with self._writing(key) as (log, row):
            for start in range(0, len(messages), _MESSAGES):
                shapes = tuple(map(MessageShape.of, messages[start : start + _MESSAGES]))
                log.append(CommitShape(head=log.index.head, messages=shapes))
            if known != Marks():
                last = max(known.last, log.index.messages.last)
                commit = CommitShape(head=log.index.head, consumed=known.consumed)
                commit.last_message = last
                log.append(commit)
            due = port.restored(row, self._now(), log.index.messages.is_unread)
            if due != row:
                log.append(CommitShape(head=log.index.head, thread=_due(log, due)))

    @contextmanager
    def _writing(self, key: ThreadKey) -> Generator[tuple[LogFile, ThreadInfo], None, None]:
        with self._pool.writing(key) as log:
            row = thread_of(log)
            if row is None:
                port.refuse_no_thread(key)
            try:
                yield log, row
            except UnicodeEncodeError:
                raise InvalidRequest("text with lone surrogates cannot be stored") from None


def _due(log: LogFile, row: ThreadInfo) -> ThreadShape:
    return ThreadShape.of(row, log.index.thread.tags if log.index.thread else ())
