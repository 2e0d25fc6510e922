"""Messages received by the current step's tasks.

Rules:

- Receiving writes nothing. The step's commit consumes the messages its tasks received, so a task
  that runs again receives the same: the oldest in its topics that no other task has.
- A finished task's messages are in a row beside its outcome, and belong to it when the rest of the
  step runs again.
- A task's messages, if it runs beside others, are reserved for it once something may be about them:
  they are in its wait, or in that row beside each of its records.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from threading import Lock
from typing import Any

import msgspec

from milecastle.model.message import Message
from milecastle.model.task import RunTask

ReadUnread = Callable[[str, int], Sequence[Message]]
"""Some unread messages of a topic above a number, oldest first; empty if there are none."""

_number = attrgetter("number")


class Received(msgspec.Struct, eq=False):
    """The step's messages by task. ``is_used`` is false until a task has received one.

    ``is_shared``: the step has several tasks.
    """

    _look: ReadUnread | None
    is_used: bool = False
    is_shared: bool = False
    _free: dict[str, list[Message]] = {}
    _last: dict[str, int] = {}
    _given: dict[str, tuple[int, list[Message]]] = {}
    _held: set[int] = set()
    _reserved: dict[str, Sequence[int]] = {}
    _owners: dict[int, str] = {}
    _kept: dict[str, list[Message]] = {}
    _applied: list[int] = []
    _lock: Any = msgspec.field(default_factory=Lock)

    def next(self, task: RunTask, topics: Sequence[str]) -> Message | None:
        """The oldest message in these topics for a task; ``None`` if there is none now."""
        with self._lock:
            if self._given.get(task.id, (0, []))[0] != task.attempt:
                self._keep(task.id)
                self._given[task.id] = (task.attempt, [])
            last = max(self._reserved.get(task.id, ()), default=0)
        while True:
            is_all = [self._load(topic, last) for topic in topics]
            if len(topics) > 1:  # older messages may have come between the reads of two topics
                is_all = [self._load(topic, last) for topic in topics]
            with self._lock:
                message = self._pick(task.id, topics)
                if message is not None:
                    self._given[task.id][1].append(message)
                    self.is_used = True
            if message is not None or all(is_all):
                return message

    def _pick(self, task: str, topics: Sequence[str]) -> Message | None:
        kept = self._kept.get(task, ())
        if found := [message for message in kept if message.topic in topics]:
            message = min(found, key=_number)
            self._kept[task] = [one for one in kept if one is not message]
            return message
        oldest = [free[0] for topic in topics if (free := self._free.get(topic))]
        if not oldest:
            return None
        message = min(oldest, key=_number)
        self._free[message.topic].pop(0)
        return message

    def _load(self, topic: str, last: int = 0) -> bool:
        """Read until a message is free, and those reserved for a task up to ``last``.

        Return whether everything was read. The lock is not held while the store is read: the run
        takes it on its event loop.
        """
        while self._look is not None:
            with self._lock:
                known, after = self._free.setdefault(topic, []), self._last.get(topic, 0)
                if known and after >= last:
                    return False
            if not (found := self._look(topic, after)):
                return True
            with self._lock:
                for one in found:
                    if one.number <= self._last.get(topic, 0):
                        continue  # another task has read it too
                    self._last[topic] = one.number
                    if (owner := self._owners.get(one.number)) is not None:
                        self._kept.setdefault(owner, []).append(one)
                    elif one.number not in self._held:
                        self._free[topic].append(one)
        return True

    def drain(self, topics: Sequence[str]) -> list[Message]:
        found: list[Message] = []
        for topic in topics:
            is_all = False
            while not is_all:
                is_all = self._load(topic)
                found += self._free.get(topic, [])
                self._free[topic] = []
        return sorted(found, key=_number)

    def take_next(self, topics: Sequence[str]) -> Message | None:
        for _ in topics:  # older messages may have come between the reads of two topics
            for topic in topics:
                self._load(topic)
        with self._lock:
            return self._pick("", topics)

    def give_back(self, message: Message) -> None:
        with self._lock:
            insort(self._free[message.topic], message, key=_number)

    def consume_numbers(self, numbers: Sequence[int]) -> None:
        self._applied += numbers
        self.is_used = self.is_used or bool(numbers)

    def consume(self, messages: Sequence[Message]) -> None:
        self._applied += map(_number, messages)
        self.is_used = self.is_used or bool(messages)

    def load(self, topics: Sequence[str]) -> None:
        for topic in topics:
            if topic not in self._free:
                self._load(topic)

    def release(self, task: str) -> None:
        with self._lock:
            self._keep(task)
            self._release(task)

    def _release(self, task: str) -> None:
        for number in self._reserved.pop(task, ()):
            del self._owners[number]
        for message in self._kept.pop(task, ()):
            insort(self._free[message.topic], message, key=_number)

    def keep(self, task: str) -> None:
        """A task runs again: it receives the same first."""
        with self._lock:
            self._keep(task)

    def _keep(self, task: str) -> None:
        self._kept.setdefault(task, []).extend(self._given.pop(task, (0, []))[1])

    def settle(self, task: str) -> list[int]:
        if task in self._reserved or self._kept.get(task):
            with self._lock:
                self._release(task)
        return [message.number for message in self._given.get(task, (0, []))[1]]

    def recorded(self, task: str) -> list[int]:
        """Messages a recording task has received: it must receive the same again."""
        if not self.is_shared:
            return []
        return [message.number for message in self._given.get(task, (0, []))[1]]

    def reserve(self, task: str, numbers: Sequence[int]) -> None:
        """A task that waits, or has records, received these, and receives them again."""
        self._reserved[task] = numbers
        self._owners.update(dict.fromkeys(numbers, task))
        self.is_used = True

    def hold(self, numbers: Sequence[int]) -> None:
        self._held.update(numbers)
        self.is_used = self.is_used or bool(numbers)

    def seen(self, topic: str, known: int) -> int:
        """The number above which a message in a topic resumes a task that waits for it.

        Messages that other tasks received do not. ``known`` is for topics this run has not read.
        """
        free = self._free.get(topic)
        if free:
            return free[0].number - 1
        return max(self._last.get(topic, 0), known if free is None else 0)

    def apply(self) -> None:
        self._applied += [one.number for _, own in self._given.values() for one in own]
        self._applied += self._held
        self._given, self._held = {}, set()
        self.is_shared = False

    def before_commit(self) -> Received:
        with self._lock:
            return Received(
                self._look,
                self.is_used,
                self.is_shared,
                {topic: [*free] for topic, free in self._free.items()},
                {**self._last},
                {task: (attempt, [*own]) for task, (attempt, own) in self._given.items()},
                {*self._held},
                {**self._reserved},
                {**self._owners},
                {task: [*kept] for task, kept in self._kept.items()},
                [*self._applied],
            )

    def rewind(self, before: Received, tasks: Iterable[str]) -> None:
        """Undo ``apply`` and ``take``; these tasks run again, and receive the same first."""
        with self._lock:
            self.is_used, self.is_shared = before.is_used, before.is_shared
            self._free, self._last, self._held = before._free, before._last, before._held
            self._given, self._kept = before._given, before._kept
            self._reserved, self._owners = before._reserved, before._owners
            self._applied = before._applied
            for task in tasks:
                self._keep(task)

    def take(self) -> tuple[int, ...]:
        numbers, self._applied = tuple(sorted(self._applied)), []
        self.is_used = bool(self._given or self._held or self._reserved)
        return numbers
