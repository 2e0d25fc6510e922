"""What ``--json`` prints: one document per verb, and nothing else on stdout.

Fields are only ever added. Times are ISO 8601 in UTC, ids are whole, values of the state are JSON
as ``values.plain`` makes it. ``docs/reference/command-line.md`` lists every field; a test holds it
to what stands here. What verbs that care for stores print is in ``care_documents``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

__all__ = [
    "ChangeLine",
    "CheckDocument",
    "CheckpointLine",
    "DiffDocument",
    "Document",
    "ErrorDocument",
    "ErrorLine",
    "FailureLine",
    "FileRunDocument",
    "GraphDocument",
    "HistoryDocument",
    "LsDocument",
    "PlanDocument",
    "PlanLine",
    "ProblemLine",
    "QuestionLine",
    "RunDocument",
    "RunLine",
    "RunsDocument",
    "ShowDocument",
    "ThreadFit",
    "ThreadLine",
    "WrittenDocument",
]


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of all of them."""


class ProblemLine(Document, frozen=True):
    """A problem of a graph."""

    code: str
    message: str
    file: str | None
    line: int | None
    suggestion: str


class ErrorLine(Document, frozen=True):
    """Why a verb failed. ``code`` is ``null`` for what is no error of Milecastle's."""

    type: str
    code: str | None
    message: str
    exit_code: int
    reasons: tuple[str, ...] = ()
    problems: tuple[ProblemLine, ...] = ()


class ErrorDocument(Document, frozen=True):
    """Printed in place of the verb's own document."""

    error: ErrorLine


class ThreadFit(Document, frozen=True):
    """Whether a thread would resume with the code as it is."""

    thread: str
    status: str
    next: tuple[str, ...]
    fits: bool
    reasons: tuple[str, ...]
    note: str


class CheckDocument(Document, frozen=True):
    """``check``. ``threads`` is ``null`` without ``--threads``."""

    app: str
    ok: bool
    graph: str | None
    fingerprint: str | None
    nodes: tuple[str, ...]
    problems: tuple[ProblemLine, ...]
    threads: tuple[ThreadFit, ...] | None


class QuestionLine(Document, frozen=True):
    """A question that waits. ``answer`` is the JSON schema of what it takes; ``null``: anything.

    ``refused`` says why the last answer was not taken.
    """

    id: str
    node: str
    question: Any
    show: Any
    answer: Any
    refused: str | None = None


class RunDocument(Document, frozen=True):
    """``run``, ``resume``, ``answer``: how the run came to rest."""

    tenant: str | None
    thread: str | None
    run_id: str
    status: str
    nodes: tuple[str, ...]
    next: tuple[str, ...]
    step: int
    timestamp: str
    wake_at: str | None
    questions: tuple[QuestionLine, ...]
    state: Any


class PlanLine(Document, frozen=True):
    """What would become of a node, and why. ``restore`` are outputs that would be put back."""

    node: str
    action: Literal["reuse", "execute"]
    reasons: tuple[str, ...]
    restore: tuple[str, ...]


class PlanDocument(Document, frozen=True):
    """``run --plan``. ``refused`` has every reason against it."""

    thread: str
    mode: str
    refused: tuple[str, ...]
    previous_run_id: str | None
    nodes: tuple[PlanLine, ...]


class FileRunDocument(Document, frozen=True):
    """``run`` of a graph over files. ``executed`` says why each node was run."""

    tenant: str
    thread: str
    run_id: str
    status: Literal["completed"]
    mode: str
    executed: Mapping[str, tuple[str, ...]]
    reused: tuple[str, ...]
    state: Any


class ThreadLine(Document, frozen=True):
    """A thread and what its newest run came to."""

    thread: str
    status: str
    graph: str
    run_id: str
    started_at: str
    ended_at: str | None


class LsDocument(Document, frozen=True):
    """``ls``."""

    tenant: str
    threads: tuple[ThreadLine, ...]


class FailureLine(Document, frozen=True):
    """Why a run did not end well."""

    failure_class: str
    resumable: bool
    node: str | None
    error_type: str
    message: str
    traceback: tuple[str, ...]
    causes: tuple[str, ...]
    attempt: int
    time: str


class RunLine(Document, frozen=True):
    """The record of a run."""

    thread: str
    run_id: str
    graph: str
    fingerprint: str
    mode: str
    status: str
    retry_count: int
    previous_run_id: str | None
    started_at: str
    ended_at: str | None
    metadata: Mapping[str, str]
    failure: FailureLine | None


class RunsDocument(Document, frozen=True):
    """``runs``."""

    tenant: str
    runs: tuple[RunLine, ...]


class CheckpointLine(Document, frozen=True):
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


class HistoryDocument(Document, frozen=True):
    """``history``, newest first."""

    tenant: str
    thread: str
    checkpoints: tuple[CheckpointLine, ...]


class ShowDocument(Document, frozen=True):
    """``show``. ``undecoded`` says what of the state needs the graph's code, channel by channel."""

    tenant: str
    thread: str
    checkpoint: CheckpointLine
    status: str
    run: RunLine | None
    state: Any
    questions: tuple[QuestionLine, ...]
    undecoded: Mapping[str, str]


class ChangeLine(Document, frozen=True):
    """One difference; ``old`` and ``new`` are ``null`` where there is none."""

    path: str
    kind: Literal["added", "removed", "changed"]
    old: Any
    new: Any


class DiffDocument(Document, frozen=True):
    """``diff``. ``a`` and ``b`` are ``thread@seq``."""

    tenant: str
    a: str
    b: str
    changes: tuple[ChangeLine, ...]


class WrittenDocument(Document, frozen=True):
    """``fork``, ``update``: the checkpoint that was written."""

    tenant: str
    thread: str
    checkpoint: CheckpointLine


class GraphDocument(Document, frozen=True):
    """``graph``."""

    graph: str
    fingerprint: str
    form: str
    drawing: str
    manifest: Any
