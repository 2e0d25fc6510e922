"""A run: a thread's execution, and its status transitions."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

from milecastle.model.keys import ThreadKey
from milecastle.model.limit_key import LIMIT_KEY
from milecastle.support.prepared import prepared

FailureClass = Literal["graph", "workspace", "execution", "system"]

RESUMABLE: dict[FailureClass, bool] = {
    "graph": False,
    "workspace": False,
    "execution": True,
    "system": True,
}


@prepared
class TaskFailure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task's failure, among several in a step. The beginning of its message."""

    task: str
    node: str
    error_type: str
    message: str
    attempt: int


@prepared
class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Each incomplete run has exactly one.

    It describes the first failed task. If several tasks in a step did, ``tasks`` has them all;
    a resume runs these again, and no other.
    """

    run_id: str
    failure_class: FailureClass
    resumable: bool
    error_type: str
    message: str
    traceback: tuple[str, ...]
    causes: tuple[str, ...]
    attempt: int
    time: int
    node: str | None = None
    tasks: tuple[TaskFailure, ...] = ()


RunStatus = Literal[
    "queued", "running", "interrupted", "sleeping", "completed", "failed", "cancelled", "superseded"
]
Mode = Literal["clean", "incremental", "resume-only"]

TRANSITIONS: Mapping[RunStatus, tuple[RunStatus, ...]] = MappingProxyType(
    {
        "queued": ("running", "failed", "cancelled", "superseded"),
        "running": (
            "queued",
            "interrupted",
            "sleeping",
            "completed",
            "failed",
            "cancelled",
            "superseded",
        ),
        "interrupted": ("queued", "running", "cancelled", "superseded"),
        "sleeping": ("queued", "running", "cancelled", "superseded"),
        "completed": (),
        "failed": (),
        "cancelled": (),
        "superseded": (),
    }
)
"""The allowed status transitions. A run that has ended never changes again: a resume is a new
run."""


def may_become(old: RunStatus, new: RunStatus) -> bool:
    return old == new or new in TRANSITIONS[old]


@prepared
class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The process driving a run.

    ``boot_id`` changes when the host restarts, and names the pid namespace as well: containers on
    one host have different ones. ``started`` distinguishes two processes with the same ``pid``. So
    a dead process is recognized from inside the same namespace. Both are empty if the system does
    not report them.
    """

    host: str
    boot_id: str
    pid: int
    started: str


@prepared
class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A run's record. ``previous_run_id`` is ``None`` if there is no previous run.

    ``metadata`` contains the library's version, Python's, the host, when there is one the git
    commit, observers' ``carried`` data, and a failed run's ``cause``. ``input_digest`` shows
    whether a call repeats this run's input. ``wake_at`` is when a sleeping run may resume, in
    microseconds since 1970. ``owner`` is the process driving the run, or drove it last.
    """

    run_id: str
    key: ThreadKey
    graph: str
    fingerprint: str
    mode: Mode
    status: RunStatus
    retry_count: int
    previous_run_id: str | None
    started_at: int
    ended_at: int | None = None
    input_digest: str = ""
    metadata: dict[str, str] = {}
    wake_at: int | None = None
    owner: Owner | None = None

    @property
    def carried(self) -> dict[str, str]:
        """Data observers stored with the run."""
        return {
            name.removeprefix(CARRIED): text
            for name, text in self.metadata.items()
            if name.startswith(CARRIED)
        }

    @property
    def limit_key(self) -> str:
        """The run's key for limits, as ``customer=c7``; may be empty."""
        return self.metadata.get(LIMIT_KEY, "")

    @property
    def cause(self) -> tuple[str, str | None] | None:
        """A failed run's error type, and the node; ``None`` if it did not fail."""
        error = self.metadata.get(FAILED_TYPE)
        return None if error is None else (error, self.metadata.get(FAILED_NODE))


FAILED_TYPE = "failed.type"
FAILED_NODE = "failed.node"
"""Metadata of a failed run: lists and groups of failures need no further read."""


CARRIED = "observer."
"""Prefix of the metadata that observers store with a run; a run that continues it has them too."""


ANSWERED = "answer."
"""Prefix of the metadata with the digests of answers' keys; the thread's next run has them too."""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A run from where it starts or continues, in one process, to where it stops.

    ``carried`` is observers' data stored with the run in earlier segments, or with the run it
    continues. ``parent`` is the run and the task a subgraph runs in. ``queues`` says the segment
    only hands the run over to the workers. ``key`` is ``None`` without a store.
    """

    run_id: str
    graph: str
    key: ThreadKey | None = None
    carried: Mapping[str, str] = {}
    parent: tuple[str, str] | None = None
    queues: bool = False


@prepared
class ThreadInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A thread's index row, derived from its log's head.

    ``run_id``, ``graph``, ``started_at`` and ``ended_at`` are the head's run's.
    ``status`` is the thread's: ``completed`` if nothing is left to run, however its runs ended.
    ``wake_at`` is when it may resume, if it sleeps, in microseconds since 1970;
    ``questions`` is how many questions wait for an answer.

    ``lane`` says which workers may run it (empty: none, it is run by callers), ``due_at`` from when
    on, in the same unit (``None``: not before somebody answers, retries or submits), and ``worker``
    which one has it now. Among a tenant's due threads, workers take those with the
    higher ``priority`` first. ``waiting_topics`` are the topics it waits for, each with the last
    seen message's number. ``limit_key`` is its key for limits, as ``customer=c7``.
    """

    key: ThreadKey
    status: RunStatus
    run_id: str
    graph: str
    started_at: int
    ended_at: int | None
    wake_at: int | None = None
    questions: int = 0
    lane: str = ""
    due_at: int | None = None
    worker: str = ""
    priority: int = 0
    waiting_topics: tuple[tuple[str, int], ...] = ()
    limit_key: str = ""

    @classmethod
    def of(cls, run: RunRecord) -> ThreadInfo:
        return cls(
            key=run.key,
            status=run.status,
            run_id=run.run_id,
            graph=run.graph,
            started_at=run.started_at,
            ended_at=run.ended_at,
            wake_at=run.wake_at,
            limit_key=run.limit_key,
        )
