"""Request bodies, and responses the command line does not print.

All other answers are the documents in ``views``, as ``--json`` prints them. Fields are only ever
added to answers. A request with an unlisted field is refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from milecastle.model.tags import MAX_TAG_BYTES, MAX_TAGS
from milecastle.support.prepared import prepared
from milecastle.views.documents import QuestionLine, ThreadLine

ListedStatus = Literal[
    "queued",
    "running",
    "interrupted",
    "sleeping",
    "completed",
    "failed",
    "cancelled",
    "superseded",
    "lost",
]
PageSize = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=60)]
TagList = Annotated[
    tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TAG_BYTES)], ...],
    msgspec.Meta(max_length=MAX_TAGS),
]
"""A tag has at most so many bytes."""
CurrentStatus = Literal[
    "queued", "running", "interrupted", "sleeping", "failed", "cancelled", "completed"
]


class HttpDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True): ...


class NoQuery(HttpDocument, frozen=True): ...


class StartQuery(HttpDocument, frozen=True):
    """``token`` is the start URL's, which is exchanged for a cookie."""

    token: str | None = None


class ThreadsQuery(HttpDocument, frozen=True):
    """Which threads, by name. ``after`` is the previous page's ``next``.

    ``prefix`` is how their names begin.
    """

    status: ListedStatus | None = None
    graph: str | None = None
    tag: str | None = None
    prefix: str | None = None
    after: str | None = None
    limit: PageSize = 100


class ThreadQuery(HttpDocument, frozen=True):
    """``at`` is a checkpoint's seq or id; without it, the head."""

    at: str | None = None


class WholeStateQuery(HttpDocument, frozen=True):
    """``at`` is a checkpoint's seq or id; ``channel`` is the only one that is sent."""

    at: str | None = None
    channel: str | None = None


class HistoryQuery(HttpDocument, frozen=True):
    """Checkpoints below the seq ``before``, newest first; it is the previous page's ``next``."""

    before: Annotated[int, msgspec.Meta(ge=1)] | None = None
    limit: PageSize = 100


class DiffQuery(HttpDocument, frozen=True):
    """Two checkpoints, each by seq or id; without ``b``, the head."""

    a: str
    b: str | None = None


class ThreadRunsQuery(HttpDocument, frozen=True):
    """Runs, newest first. ``after`` is the previous page's ``next``, its last run's id."""

    after: str | None = None
    limit: PageSize = 100


class RunsQuery(HttpDocument, frozen=True):
    """Threads' current runs with a status, by thread; without one, all runs, newest first.

    ``after`` is the previous page's ``next``.
    """

    status: CurrentStatus | None = None
    graph: str | None = None
    after: str | None = None
    limit: PageSize = 100


class InboxQuery(HttpDocument, frozen=True):
    """Which questions, by thread. ``after`` is the previous page's ``next``."""

    graph: str | None = None
    after: str | None = None
    limit: PageSize = 100


class WaitQuery(HttpDocument, frozen=True):
    """For how many seconds to wait for the run to stop, at most 60.

    Above 0 the token needs the scope ``read`` as well, because the answer has the state.
    """

    wait: Seconds = 0.0


class CancelQuery(HttpDocument, frozen=True):
    """``run_id`` is the only run that may be cancelled, if it still is the current one."""

    run_id: str | None = None


class DeleteQuery(HttpDocument, frozen=True):
    """``take_over`` deletes a thread also while a process runs it."""

    take_over: bool = False


class EventsQuery(HttpDocument, frozen=True):
    """The seq after which to begin, if there is no ``Last-Event-ID``; without both, all."""

    after: Annotated[int, msgspec.Meta(ge=0)] = 0


class RunOptions(HttpDocument, frozen=True):
    """Policy for a thread that is busy, or exists, and for a run started before.

    Without ``retry`` a failed run with this input or key is returned as it is.
    """

    if_busy: Literal["reject", "queue", "cancel"] = "reject"
    if_absent: bool = False
    retry: bool = True


@prepared
class RunRequest(HttpDocument, frozen=True):
    """A run. ``graph`` is needed if the server has several and the thread is new.

    ``key`` is an idempotency key, as is the header ``Idempotency-Key``. A new run adds ``tags`` to
    its thread. ``keys``, one name and its value, is its key for limits by key. ``config`` has the
    type the graph declares.
    """

    input: dict[str, Any]
    graph: str | None = None
    key: str | None = None
    again: bool = False
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] = 0
    delay: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    options: RunOptions = RunOptions()
    tags: TagList = ()
    keys: dict[str, str] | None = None
    config: dict[str, Any] | None = None


class AnswersRequest(HttpDocument, frozen=True):
    """Answers by their questions' ids, or ``answer`` to the only open question.

    ``key`` identifies them, as does the header ``Idempotency-Key``: sent again, they are the same.
    ``config`` replaces the run's. The caller's name is stored with them, and ``reason`` and
    ``on_behalf_of``, a second name, as the caller says. With ``shown``, the question's ``digest``,
    an answer is refused if the question has changed since it was shown.
    """

    answers: dict[str, Any] = {}
    answer: Any = msgspec.UNSET
    key: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    config: dict[str, Any] | None = None
    reason: str = ""
    shown: str | None = None
    on_behalf_of: Annotated[str, msgspec.Meta(min_length=1)] | None = None


class AnswersQuery(HttpDocument, frozen=True):
    """Answers in checkpoints above the seq ``after``; those in one checkpoint come together."""

    after: Annotated[int, msgspec.Meta(ge=0)] = 0
    limit: PageSize = 100


class MessageRequest(HttpDocument, frozen=True):
    """A message. With ``key``, or the header ``Idempotency-Key``, sending it again is safe.

    ``by`` names the sender, as the sender says. With ``quiet`` a waiting thread is due so many
    seconds after its last message, at most ``at_most`` seconds after the first.
    """

    value: Any
    topic: str = ""
    key: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    by: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    quiet: Annotated[float, msgspec.Meta(ge=0)] | None = None
    at_most: Annotated[float, msgspec.Meta(ge=0)] | None = None


class MessagesQuery(HttpDocument, frozen=True):
    """Messages with numbers above ``after``, on all topics or one."""

    topic: str | None = None
    after: Annotated[int, msgspec.Meta(ge=0)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20


class RetryRequest(HttpDocument, frozen=True):
    """After how many seconds to resume; ``config`` replaces the run's."""

    delay: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    config: dict[str, Any] | None = None


class ForkRequest(HttpDocument, frozen=True):
    """The checkpoint to go back to, by seq or id; ``as_thread`` names another thread for it."""

    at: int | str
    as_thread: str | None = None


class TagRequest(HttpDocument, frozen=True):
    """The tags to add and to remove."""

    add: TagList = ()
    remove: TagList = ()


class UpdateRequest(HttpDocument, frozen=True):
    """The channels to change; ``at`` branches off an older checkpoint."""

    update: dict[str, Any]
    at: int | str | None = None


@prepared
class BulkRequest(HttpDocument, frozen=True):
    """Which runs: current ones with a status, for a graph's threads, at most ``limit``."""

    status: CurrentStatus
    graph: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] | None = None


class StartDocument(HttpDocument, frozen=True):
    """This server, and its description's address."""

    milecastle: str
    openapi: str


class JobDocument(HttpDocument, frozen=True):
    """A change to many runs or threads: how many were found, and its progress.

    ``status`` is the status of the job's run. ``skipped`` are those changed by others in between,
    or refused.
    """

    job: str
    action: Literal["retry", "cancel", "delete"]
    status: str
    found: int
    changed: int
    skipped: int


class GraphLine(HttpDocument, frozen=True):
    """A graph this server runs."""

    graph: str
    fingerprint: str
    nodes: tuple[str, ...]


class GraphsDocument(HttpDocument, frozen=True):
    """The graphs this server runs."""

    graphs: tuple[GraphLine, ...]


class InboxLine(HttpDocument, frozen=True):
    """A thread that waits for answers.

    ``questions`` is empty if the thread is encrypted and the server does not have its key;
    ``count`` is how many there are, and ``asked_at`` since when they wait.
    """

    thread: str
    graph: str
    run_id: str
    count: int
    questions: tuple[QuestionLine, ...]
    asked_at: str | None = None


class InboxDocument(HttpDocument, frozen=True):
    """Open questions. ``next`` is the next page's ``after``, if there is one."""

    tenant: str
    threads: tuple[InboxLine, ...]
    next: str | None = None


@prepared
class StateEvent(HttpDocument, frozen=True):
    """``event: state``, with ``id: SEQ``: a checkpoint was committed."""

    seq: int
    step: int
    run_id: str
    time: str
    source: str
    nodes: tuple[str, ...]
    next: tuple[str, ...]
    state: Any


@prepared
class EmittedEvent(HttpDocument, frozen=True):
    """``event: emit``: a node emitted a value. It is replayed if it has an ``offset``.

    ``begins`` marks an attempt's first value: a retried task begins again.
    """

    run_id: str
    time: str
    step: int
    node: str | None
    task: str | None
    attempt: int | None
    value: Any
    offset: int | None = None
    begins: bool = False


@prepared
class MissedEvent(HttpDocument, frozen=True):
    """``event: missed``: the number of emitted values lost on the way."""

    run_id: str
    count: int


@prepared
class StoppedEvent(HttpDocument, frozen=True):
    """``event: stopped``: the run has stopped. The stream stays open: it may be resumed."""

    thread: ThreadLine
