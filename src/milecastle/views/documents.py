"""Documents printed with ``--json``: one for each verb, alone on stdout.

Fields are only ever added. Times are ISO 8601 in UTC, ids are whole, state values are JSON as
``values.plain`` makes it. ``docs/reference/command-line.md`` lists every field; a test compares it
with this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from milecastle.ports.maintenance import CheckVerdict, Finding


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True): ...


class ProblemLine(Document, frozen=True):
    """A problem in a graph."""

    code: str
    message: str
    file: str | None
    line: int | None
    suggestion: str


class ErrorLine(Document, frozen=True):
    """Why a verb failed. ``code`` is ``null`` for errors from elsewhere."""

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
    """A thread's compatibility with the current code. ``fingerprint`` is its own graph's."""

    thread: str
    status: str
    fingerprint: str
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
    """An open question. ``answer`` is the JSON schema of valid answers; ``null``: anything.

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


class RunDocument(Document, frozen=True):
    """``run``, ``resume``, ``answer``: how the run stopped.

    ``reused`` is true if nothing was run: the result is a completed run's. ``failure`` says why a
    run failed or was cancelled.
    """

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
    reused: bool
    failure: FailureLine | None = None


class CancelDocument(Document, frozen=True):
    """``cancel``. ``cancelled`` is false if the thread had no unfinished run."""

    tenant: str
    thread: str
    cancelled: bool


class DeleteDocument(Document, frozen=True):
    """``delete``."""

    tenant: str
    thread: str
    deleted: bool


class RestoreDocument(Document, frozen=True):
    """``restore``: how many archived checkpoints were moved back."""

    tenant: str
    thread: str
    restored: int


class TagDocument(Document, frozen=True):
    """``tag``: the thread's tags afterwards."""

    tenant: str
    thread: str
    tags: tuple[str, ...]


class PlanLine(Document, frozen=True):
    """A planned node, with reasons. ``restore``: outputs that would be restored."""

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
    """``build`` for a file graph. ``executed`` says why each node ran."""

    tenant: str
    thread: str
    run_id: str
    status: Literal["completed"]
    mode: str
    executed: Mapping[str, tuple[str, ...]]
    reused_nodes: tuple[str, ...]
    state: Any


class ThreadLine(Document, frozen=True):
    """A thread, derived from its log's head; ``run_id`` and the times are the head's run's.

    ``wake_at`` is when it may resume, if it sleeps; ``questions`` is how many are open. ``status``
    is ``lost`` if it is recorded as running but not known to be running; ``reason`` says why.
    ``kind`` is ``files`` for file runs: then all fields are the newest run's.
    """

    thread: str
    status: str
    graph: str
    run_id: str
    started_at: str
    ended_at: str | None
    kind: Literal["thread", "files"] = "thread"
    wake_at: str | None = None
    questions: int = 0
    reason: str = ""
    tags: tuple[str, ...] = ()


class LsDocument(Document, frozen=True):
    """``ls``. ``next`` is the next page's ``after``, if there is one."""

    tenant: str
    threads: tuple[ThreadLine, ...]
    next: str | None = None


class TaskFailureLine(Document, frozen=True):
    """Failure of one task in a step with several."""

    task: str
    node: str
    error_type: str
    message: str
    attempt: int


class FailureLine(Document, frozen=True):
    """Why a run failed or was cancelled."""

    failure_class: str
    resumable: bool
    node: str | None
    error_type: str
    message: str
    traceback: tuple[str, ...]
    causes: tuple[str, ...]
    attempt: int
    time: str
    tasks: tuple[TaskFailureLine, ...] = ()


class RunLine(Document, frozen=True):
    """A run record."""

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
    """``runs``. With ``--retry-all`` and the like it lists none, but how many it changed.

    ``skipped`` are those changed by others in between, or refused. ``next`` is where the next page
    begins, if the runs are listed in pages.
    """

    tenant: str
    runs: tuple[RunLine, ...]
    changed: int = 0
    skipped: int = 0
    next: str | None = None


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


class WhyLine(Document, frozen=True):
    """A reason why a thread does not run. ``code`` is stable, ``text`` is for people."""

    code: str
    text: str
    advice: str = ""


class WhyDocument(Document, frozen=True):
    """``why``. ``sentence`` says the reasons in one, without the advice."""

    tenant: str
    thread: str
    status: str
    reasons: tuple[WhyLine, ...]
    sentence: str = ""


class HistoryDocument(Document, frozen=True):
    """``history``, newest first. ``next`` is the next page's ``before``, if there is one."""

    tenant: str
    thread: str
    checkpoints: tuple[CheckpointLine, ...]
    next: int | None = None


class TaskLine(Document, frozen=True):
    """A node's tasks in the next step, and how many have ended."""

    node: str
    done: int
    total: int


class ShowDocument(Document, frozen=True):
    """``show``. ``undecoded`` maps channels that need the graph's code to the reasons.

    ``tasks`` has the next step's nodes, if it has several tasks. ``status`` is ``lost`` if the
    thread is recorded as running but not known to be running; ``reason`` says why. ``tags`` are the
    thread's now.
    """

    tenant: str
    thread: str
    checkpoint: CheckpointLine
    status: str
    run: RunLine | None
    state: Any
    questions: tuple[QuestionLine, ...]
    undecoded: Mapping[str, str]
    tasks: tuple[TaskLine, ...] = ()
    reason: str = ""
    tags: tuple[str, ...] = ()


class NodeLine(Document, frozen=True):
    """A completed node in a file run. ``outputs`` has their hashes."""

    node: str
    run_id: str
    started_at: str
    ended_at: str
    outputs: Mapping[str, str]


class FileShowDocument(Document, frozen=True):
    """``show`` for a file run, by default the newest; ``nodes`` are its completed nodes.

    Reused nodes name the run that created them.
    """

    tenant: str
    thread: str
    status: str
    run: RunLine
    nodes: tuple[NodeLine, ...]


class FileHistoryDocument(Document, frozen=True):
    """``history`` for file runs: each completed node, newest first."""

    tenant: str
    thread: str
    nodes: tuple[NodeLine, ...]


class ChangeLine(Document, frozen=True):
    """One difference; ``old`` and ``new`` are ``null`` where there is none."""

    path: str
    kind: Literal["added", "removed", "changed"]
    old: Any
    new: Any


class DiffDocument(Document, frozen=True):
    """``diff``. ``a`` and ``b`` are ``thread@seq``.

    ``not_compared`` are the channels that cannot be read without the graph's code, each with the
    reason: ``changes`` does not include them.
    """

    tenant: str
    a: str
    b: str
    changes: tuple[ChangeLine, ...]
    not_compared: Mapping[str, str] = {}


class WrittenDocument(Document, frozen=True):
    """``fork``, ``update``: the new checkpoint."""

    tenant: str
    thread: str
    checkpoint: CheckpointLine


class GraphDocument(Document, frozen=True):
    """``graph``. ``input`` is the inputs' JSON schema; ``null`` if only the manifest is known."""

    graph: str
    fingerprint: str
    form: str
    drawing: str
    manifest: Any
    input: Any = None


class KeptLine(Document, frozen=True):
    """A thread that has more than ``--keep-last`` checkpoints left.

    ``head``: its head depends on them. ``young``: they are newer than ``--older-than``.
    """

    thread: str
    checkpoints: int
    why: Literal["head", "young"]


class GcDocument(Document, frozen=True):
    """``gc``. ``undecoded`` threads were skipped: they need ``--app``, or keys.

    ``file_runs`` are the runs deleted from a workspace. ``archived`` checkpoints were moved to
    object storage.
    """

    tenant: str
    dry_run: bool
    threads: int
    pruned: int
    dropped: int
    deleted: tuple[str, ...]
    busy: tuple[str, ...]
    undecoded: tuple[str, ...]
    file_runs: tuple[str, ...]
    kept_more: tuple[KeptLine, ...] = ()
    archived: int = 0


class Damage(Document, frozen=True):
    """A difference from what was written.

    ``thread`` is ``null`` if it belongs to no thread.
    """

    thread: str | None
    place: str
    problem: str
    code: str

    @classmethod
    def of(cls, thread: str | None, findings: Iterable[Finding]) -> list[Damage]:
        return [cls(thread, found.place, found.problem, found.code) for found in findings]


class VerifyDocument(Document, frozen=True):
    """``verify``."""

    tenant: str
    threads: int
    checkpoints: int
    runs: int
    damage: tuple[Damage, ...]


class RepairLine(Document, frozen=True):
    """A repaired log, and the saved copy of it."""

    thread: str | None
    file: str
    kept: str


class RepairDocument(Document, frozen=True):
    """``repair``. ``damage`` is what cannot be repaired."""

    tenant: str
    threads: int
    repaired: tuple[RepairLine, ...]
    damage: tuple[Damage, ...]


class CopyDocument(Document, frozen=True):
    """``copy``. ``items`` are those in long-term memory."""

    tenant: str
    source: str
    target: str
    threads: int
    changed: int
    checkpoints: int
    items: int


class MigrateDocument(Document, frozen=True):
    """``migrate``. ``sql`` was run, or with ``--print`` would be."""

    store: str
    pending: bool
    applied: bool
    sql: str


class MoveLine(Document, frozen=True):
    """A shard that was moved, or that a plan moves.

    In a plan, ``entries`` is its size, and ``rate`` how many are written a second.
    """

    shard: int
    to: str
    entries: int = 0
    rate: float = 0.0


class ShardsDocument(Document, frozen=True):
    """``shards``. ``initialised`` are the databases not initialised before.

    ``moved`` were moved; ``planned`` would make the databases about equally large and busy.
    """

    store: str
    initialised: tuple[str, ...] = ()
    moved: tuple[MoveLine, ...] = ()
    planned: tuple[MoveLine, ...] = ()


class DoctorCheck(Document, frozen=True):
    """One check, and what to do about it."""

    name: str
    verdict: CheckVerdict
    found: str
    advice: str


class DoctorDocument(Document, frozen=True):
    """``doctor``."""

    ok: bool
    checks: tuple[DoctorCheck, ...]


class ExplainDocument(Document, frozen=True):
    """``explain``. ``text`` is Markdown."""

    code: str
    title: str
    text: str


class InitDocument(Document, frozen=True):
    """``init``."""

    folder: str
    files: tuple[str, ...]


class DemoDocument(Document, frozen=True):
    """``demo``: the exit code of the killed process, and the nodes that each process ran."""

    exit_code: int
    killed: tuple[str, ...]
    resumed: tuple[str, ...]


class CompletionDocument(Document, frozen=True):
    """``completion``."""

    shell: str
    script: str


class WorkerLine(Document, frozen=True):
    """A worker. ``silent`` is the seconds since its last heartbeat.

    After ``silent_after`` seconds it is considered gone. ``databases``: of a map, those it serves.
    """

    id: str
    host: str
    pid: int
    lanes: tuple[str, ...]
    running: int
    capacity: int
    draining: bool
    silent: float
    silent_after: float
    started_at: str
    databases: tuple[str, ...] = ()


class WorkerDocument(Document, frozen=True):
    """``worker``, printed when it has stopped."""

    id: str


class ServeDocument(Document, frozen=True):
    """``serve`` and ``dev``, printed when they have stopped. The URL is without the token."""

    url: str


class HeldLine(Document, frozen=True):
    """A thread that a worker has. ``seconds`` is the time since its last checkpoint.

    ``state`` is ``lost`` if its worker is silent, ``long`` if that time is long, else ``running``.
    """

    tenant: str
    thread: str
    worker: str
    nodes: tuple[str, ...]
    seconds: float
    state: Literal["running", "long", "lost"]


class WorkersDocument(Document, frozen=True):
    """``workers``; ``threads`` only if they were asked for.

    ``unserved``: a map's databases that no running worker serves.
    """

    workers: tuple[WorkerLine, ...]
    threads: tuple[HeldLine, ...] = ()
    unserved: tuple[str, ...] = ()


class LaneLine(Document, frozen=True):
    """Queued and claimed threads for one graph and tenant.

    ``oldest`` is how many seconds the first due thread has waited. ``workers`` is how many serve
    the graph in this version: without one, they wait for one whose code fits.
    """

    graph: str
    fingerprint: str
    tenant: str
    due: int
    later: int
    running: int
    oldest: float
    workers: int


class LimitLine(Document, frozen=True):
    """Limit on a graph's and a tenant's threads; empty names mean all.

    ``rate`` is how many start within ``period`` seconds. With a ``key`` it holds for each value.
    """

    graph: str
    tenant: str
    key: str
    concurrency: int | None
    rate: int | None
    period: float
    paused: bool


class BucketLine(Document, frozen=True):
    """A tenant's bucket; all tenants' if that is empty.

    ``rate`` units come back within ``period`` seconds. ``left`` may be taken at once; ``waiting``
    turns were promised, and the next one is in ``wait`` seconds.
    """

    name: str
    tenant: str
    rate: int
    period: float
    burst: int
    left: int
    waiting: int
    wait: float


class QueueDocument(Document, frozen=True):
    """``queue``."""

    lanes: tuple[LaneLine, ...]
    limits: tuple[LimitLine, ...] = ()
    buckets: tuple[BucketLine, ...] = ()


class ScheduleLine(Document, frozen=True):
    """A graph's schedule, and its last firing.

    ``thread`` is the schedule's own, ``last`` its last firing's.
    """

    name: str
    graph: str
    when: str
    overlap: str
    catch_up: str
    thread: str
    status: str
    next: str | None
    last: str
    fired: int
    skipped: int
    missed: int


class TickLine(Document, frozen=True):
    """A schedule's submitted run; ``reused``: its thread exists, and was left unchanged."""

    thread: str
    reused: bool


class SchedulesDocument(Document, frozen=True):
    """``schedules``. ``submitted`` lists runs submitted by ``backfill`` and ``run``."""

    schedules: tuple[ScheduleLine, ...]
    submitted: tuple[TickLine, ...] = ()


class SubmitDocument(Document, frozen=True):
    """``submit`` and ``retry``. ``reused``: nothing was started, because this run was found.

    ``seq`` is the checkpoint that queued the run, if one was written.
    """

    tenant: str
    thread: str
    run_id: str
    status: str
    reused: bool
    seq: int | None = None


class SendDocument(Document, frozen=True):
    """``send``: the message's number. ``reused``: it was sent before, and nothing was written.

    ``status`` is the thread's when the message was stored.
    """

    tenant: str
    thread: str
    number: int
    reused: bool
    status: str


class MessageLine(Document, frozen=True):
    """An unread message. ``key`` and ``by`` are the sender's, if given."""

    number: int
    topic: str
    value: Any
    key: str | None
    by: str | None
    sent_at: str


class MailboxDocument(Document, frozen=True):
    """``mailbox``: a thread's unread messages, oldest first.

    ``next`` is the next page's ``after``, if there is one.
    """

    tenant: str
    thread: str
    messages: tuple[MessageLine, ...]
    next: int | None = None


class AnswerLine(Document, frozen=True):
    """An answer, or a question's end at its deadline (``timed_out``).

    ``by`` and ``reason`` come from the person who answered, if given: ``how`` is ``authenticated``
    if a server's token says so, else ``asserted``. ``on_behalf_of`` is always asserted.
    """

    question: str
    answer: Any
    by: str | None
    how: str | None
    on_behalf_of: str | None
    reason: str
    time: str
    timed_out: bool
    seq: int
    run_id: str
    digest: str | None


class ReplayLine(Document, frozen=True):
    """Outcome of replaying a thread: ``same``, ``continues`` or ``differs``.

    ``calls`` counts a flow's recorded calls, or a graph's evaluated steps. ``fingerprint`` is the
    recorded graph's.
    """

    thread: str
    run_id: str
    fingerprint: str
    verdict: str
    calls: int
    detail: str


class ReplayDocument(Document, frozen=True):
    """``replay``: recorded threads, compared with the current code."""

    app: str
    ok: bool
    threads: tuple[ReplayLine, ...]


class AuditDocument(Document, frozen=True):
    """``audit``: a thread's answers, oldest first.

    ``next`` is the next page's ``after``, if there is one.
    """

    tenant: str
    thread: str
    answers: tuple[AnswerLine, ...]
    next: int | None = None


DOCUMENTS: dict[str, type[Document]] = {
    "check": CheckDocument,
    "run": RunDocument,
    "build": FileRunDocument,
    "plan": PlanDocument,
    "submit": SubmitDocument,
    "worker": WorkerDocument,
    "serve": ServeDocument,
    "mcp": ServeDocument,
    "dev": ServeDocument,
    "demo": DemoDocument,
    "init": InitDocument,
    "workers": WorkersDocument,
    "queue": QueueDocument,
    "schedules": SchedulesDocument,
    "retry": SubmitDocument,
    "resume": RunDocument,
    "answer": RunDocument,
    "cancel": CancelDocument,
    "delete": DeleteDocument,
    "restore": RestoreDocument,
    "send": SendDocument,
    "mailbox": MailboxDocument,
    "audit": AuditDocument,
    "replay": ReplayDocument,
    "tag": TagDocument,
    "ls": LsDocument,
    "runs": RunsDocument,
    "show": ShowDocument,
    "why": WhyDocument,
    "history": HistoryDocument,
    "diff": DiffDocument,
    "fork": WrittenDocument,
    "update": WrittenDocument,
    "graph": GraphDocument,
    "gc": GcDocument,
    "verify": VerifyDocument,
    "repair": RepairDocument,
    "copy": CopyDocument,
    "migrate": MigrateDocument,
    "shards": ShardsDocument,
    "doctor": DoctorDocument,
    "explain": ExplainDocument,
    "completion": CompletionDocument,
}
