"""A server's answers, as its client reads them: unknown fields are left out.

A test compares each with the server's own document.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from milecastle.support.prepared import prepared


class Answered(msgspec.Struct, frozen=True, kw_only=True): ...


@prepared
class SubmittedRun(Answered, frozen=True):
    """A run queued for the workers.

    ``reused``: nothing was started, because this run was found. ``seq`` is the checkpoint that
    queued it, if one was written.
    """

    thread: str
    run_id: str
    status: str
    reused: bool
    seq: int | None = None


@prepared
class SentMessage(Answered, frozen=True):
    """A message's number, and its thread's status when it was stored.

    ``reused``: it was sent before, and nothing was written.
    """

    thread: str
    number: int
    reused: bool
    status: str


class AskedQuestion(Answered, frozen=True):
    """An open question. ``answer`` is the JSON schema for valid answers; ``None``: anything.

    ``refused`` says why the last answer was refused, ``until`` when the question times out.
    ``digest`` identifies the question as it is shown.
    """

    id: str
    node: str
    question: Any
    show: Any
    answer: Any
    refused: str | None = None
    until: str | None = None
    digest: str | None = None


class FailureInfo(Answered, frozen=True):
    node: str | None
    error_type: str
    message: str


@prepared
class RunResult(Answered, frozen=True):
    """A run that stopped: ``completed``, ``interrupted`` or ``sleeping``."""

    thread: str
    run_id: str
    status: str
    nodes: tuple[str, ...]
    next: tuple[str, ...]
    step: int
    timestamp: str
    wake_at: str | None
    questions: tuple[AskedQuestion, ...]
    state: Any
    reused: bool
    failure: FailureInfo | None = None


class CheckpointInfo(Answered, frozen=True):
    """A checkpoint without its state."""

    seq: int
    id: str
    parent_id: str | None
    step: int
    source: str
    nodes: tuple[str, ...]
    next: tuple[str, ...]
    run_id: str
    fingerprint: str
    timestamp: str
    note: str


@prepared
class ThreadSnapshot(Answered, frozen=True):
    """A thread at a checkpoint: its state, its status, and its open questions."""

    thread: str
    checkpoint: CheckpointInfo
    status: str
    state: Any
    questions: tuple[AskedQuestion, ...]
    undecoded: Mapping[str, str]
    reason: str = ""
    tags: tuple[str, ...] = ()


class ThreadSummary(Answered, frozen=True):
    """A listed thread; ``run_id`` and the times are its current run's."""

    thread: str
    status: str
    graph: str
    run_id: str
    started_at: str
    ended_at: str | None
    wake_at: str | None = None
    questions: int = 0
    reason: str = ""
    tags: tuple[str, ...] = ()


class WaitingThread(Answered, frozen=True):
    """A thread with open questions. They are empty if the server cannot decrypt the thread."""

    thread: str
    graph: str
    run_id: str
    count: int
    questions: tuple[AskedQuestion, ...]
    asked_at: str | None = None


class ClientEvent(Answered, frozen=True):
    """An event in a followed thread, with the fields of ``Event``.

    ``state``: a committed checkpoint, with its ``state``. ``emit``: a value emitted by a node, in
    ``update``. ``missed``: emitted values were lost, ``data["count"]`` of them. ``stopped``: the
    run has stopped. ``id`` is given to ``follow(after=)`` to continue after this event; ``None`` if
    it is not replayed. ``data`` is the event as it was sent.
    """

    type: Literal["state", "emit", "missed", "stopped"]
    id: str | None
    run_id: str
    time: str | None = None
    step: int = 0
    seq: int | None = None
    node: str | None = None
    task: str | None = None
    attempt: int | None = None
    state: Any = None
    update: Any = None
    data: Mapping[str, Any] = {}


@prepared
class Cancelled(Answered, frozen=True):
    cancelled: bool


@prepared
class ThreadsPage(Answered, frozen=True):
    threads: tuple[ThreadSummary, ...]
    next: str | None = None


@prepared
class InboxPage(Answered, frozen=True):
    threads: tuple[WaitingThread, ...]
    next: str | None = None


@prepared
class HistoryPage(Answered, frozen=True):
    checkpoints: tuple[CheckpointInfo, ...]
    next: int | None = None


@prepared
class ProblemAnswer(Answered, frozen=True):
    detail: str = ""
    code: str | None = None
    reasons: tuple[str, ...] = ()
