"""Child runs: started by a node of another thread's run, and reported to it when they end."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from milecastle.model.run import TRANSITIONS, RunRecord, ThreadInfo

OUTSTANDING: Final = ("__outstanding", 0)
"""Waiting topic of a row with work left after its last commit; no message has this topic."""

_CHILD: Final = "__child "

PARENT: Final = "parent"
"""Name of a record's metadata with the parent of a spawned run."""


class ChildResult(msgspec.Struct, frozen=True, kw_only=True):
    """A child run's end.

    ``status`` is ``completed``, ``failed`` or ``cancelled``. ``state`` is a completed
    run's state as plain data; ``None`` if it is not, or over 1 MiB: read it with the child's app.
    ``failure`` says why a run has not completed.
    """

    thread: str
    run_id: str
    status: str
    state: Any = None
    failure: str | None = None


class Parent(msgspec.Struct, frozen=True):
    thread: str
    run_id: str
    call: str
    stays: bool = False

    def metadata(self) -> dict[str, str]:
        return {PARENT: msgspec.json.encode(msgspec.structs.astuple(self)).decode()}

    @classmethod
    def of(cls, record: RunRecord | None) -> Parent | None:
        found = record.metadata.get(PARENT) if record else None
        return None if found is None else cls(*msgspec.json.decode(found))


def inherited(record: RunRecord) -> dict[str, str]:
    return {name: text for name, text in record.metadata.items() if name == PARENT}


def owed(info: ThreadInfo, record: RunRecord) -> ThreadInfo:
    """The row for a run with work left after its last commit: due at once."""
    lane = info.lane or f"{record.graph}@{record.fingerprint}"
    topics = (*(one for one in info.waiting_topics if one != OUTSTANDING), OUTSTANDING)
    return msgspec.structs.replace(info, lane=lane, due_at=0, waiting_topics=topics)


def has_ended(info: ThreadInfo) -> bool:
    return not TRANSITIONS[info.status] and info.due_at is None


def child_topic(thread: str) -> str:
    return bounded(_CHILD, thread)


def joined_children(info: ThreadInfo) -> list[str]:
    topics = [topic for topic, _ in info.waiting_topics]
    return [topic.removeprefix(_CHILD) for topic in topics if topic.startswith(_CHILD)]


def parent_tag(thread: str) -> str:
    return bounded("parent:", thread)


def bounded(prefix: str, name: str) -> str:
    if len(name.encode()) + len(prefix) <= 128:
        return prefix + name
    from hashlib import sha256

    return prefix + sha256(name.encode()).hexdigest()
