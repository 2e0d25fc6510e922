"""A file run: a graph whose nodes declare files, run with a plan for reuse.

Modes: ``clean`` starts over without reusing anything; ``incremental`` reuses valid results;
``resume-only`` resumes a failed or dead run, if safe.

A run that did not end well has exactly one failure record, written before its own record says so.
One whose process died gets its failure from the next process holding its thread.

The class of a failure says whether a run can be resumed. The graph is wrong or cannot be loaded:
``graph``. Files or records of the workspace are invalid: ``workspace``. A node failed:
``execution``. Anything else, a death among them: ``system``.
"""

from __future__ import annotations

import platform
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from time import time_ns
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import msgspec.structs

from milecastle.builds.file_graph import codec_of, prepare, read_file_graph
from milecastle.builds.paths import StatIndex, hash_bytes
from milecastle.builds.plan import Plan, Why
from milecastle.builds.records import TraceFile
from milecastle.builds.reuse import BuildSession, wrap
from milecastle.builds.survey import BuildRequest, Survey, make_survey
from milecastle.builds.upkeep import evict
from milecastle.builds.workspace import Workspace
from milecastle.codec.envelope import Sealers
from milecastle.engine.failure_records import describe
from milecastle.errors import (
    Corrupted,
    DefinitionError,
    ExecutionError,
    FormatTooNew,
    InvalidRequest,
    ResumeRefused,
    RunCancelled,
    RunError,
    Unavailable,
)
from milecastle.graph.structure import CompiledGraph
from milecastle.model.keys import ThreadKey
from milecastle.model.policies import ExecutionOptions
from milecastle.model.run import RESUMABLE, Failure, FailureClass, Mode, RunRecord
from milecastle.version import __version__

if TYPE_CHECKING:
    from milecastle.builds.cache import SharedCache


class Runnable(Protocol):
    """A graph, and a way to run it with other nodes."""

    @property
    def graph(self) -> CompiledGraph: ...

    @property
    def shared_cache(self) -> SharedCache | None: ...

    def run_unsaved(
        self, graph: CompiledGraph, input: Any, run_id: str, options: ExecutionOptions | None
    ) -> Any:
        """Run a graph with the app's settings to its end, under this run id; store nothing."""
        ...

    def arun_unsaved(
        self, graph: CompiledGraph, input: Any, run_id: str, options: ExecutionOptions | None
    ) -> Awaitable[Any]: ...


class Buildable(Protocol):
    """An app: the result of ``StateGraph.compile``."""

    @property
    def runner(self) -> Runnable:
        """Runs its calls."""
        ...


class FileResult(msgspec.Struct, frozen=True, kw_only=True):
    """A file run's result. ``executed`` says why each node was run, ``reused`` which were not.

    ``ended`` is the app's result.
    """

    run_id: str
    state: Any
    plan: Plan
    executed: Mapping[str, tuple[Why, ...]]
    reused: tuple[str, ...]
    ended: Any = None


class FileRun:
    """Runs the graph of an app in a workspace repeatedly, doing only the necessary work.

    ``thread`` is by default named after the graph: runs of one thread build on each other, one at a
    time. ``rehash=True`` reads every file, even those looking unchanged. With ``encryption`` node
    results are encrypted in the cache; files are not.
    """

    def __init__(
        self,
        app: Buildable,
        workspace: Workspace,
        *,
        thread: str | None = None,
        tenant: str = "default",
        rehash: bool = False,
        wait: float = 10.0,
        encryption: Sealers | None = None,
    ) -> None:
        runner = app.runner
        self._runner = runner
        self._workspace = workspace
        self._found = read_file_graph(runner.graph, workspace.root, workspace.path)
        self._codec = codec_of(runner.graph)
        self._rehash = rehash
        self._wait = wait
        self._encryption = encryption
        self.key = ThreadKey(tenant, thread or runner.graph.name)
        self._tasks = prepare(self._found, workspace.places, self.key)

    def plan(
        self,
        mode: Mode = "incremental",
        *,
        input: Any = None,
        previous: str | None = None,
        retry_count: int | None = None,
    ) -> Plan:
        """Plan a ``run``, with reasons. Touches no output."""
        bury_if_free(self._workspace, self.key)
        asked = self._asked(mode, input, previous, retry_count)
        index = self._index()
        survey = self._survey(asked, index)
        index.save()
        return survey.plan

    def run(
        self,
        mode: Mode = "incremental",
        *,
        input: Any = None,
        previous: str | None = None,
        retry_count: int | None = None,
        options: ExecutionOptions | None = None,
    ) -> FileResult:
        """Do the necessary work.

        Raises:
            ResumeRefused: it cannot be resumed; every reason is given.
            Corrupted: the workspace cannot be used for a run.
        """
        asked = self._asked(mode, input, previous, retry_count)
        with self._running(asked) as (session, graph):
            limits = _unlimited(options)
            ended = self._runner.run_unsaved(graph, input or {}, session.run_id, limits)
        return self._result(session, ended)

    async def arun(
        self,
        mode: Mode = "incremental",
        *,
        input: Any = None,
        previous: str | None = None,
        retry_count: int | None = None,
        options: ExecutionOptions | None = None,
    ) -> FileResult:
        """Async version of ``run``."""
        asked = self._asked(mode, input, previous, retry_count)
        with self._running(asked) as (session, graph):
            limits = _unlimited(options)
            ended = await self._runner.arun_unsaved(graph, input or {}, session.run_id, limits)
        return self._result(session, ended)

    @contextmanager
    def _running(self, asked: BuildRequest) -> Generator[tuple[BuildSession, CompiledGraph]]:
        workspace, key = self._workspace, self.key
        if workspace.recorder() is not workspace:
            raise self._refused(asked, self._survey(asked, self._index()))
        with workspace.holding(key, wait=self._wait) as lock:
            bury(workspace, key)
            index = self._index()
            survey = self._survey(asked, index)
            if not survey.plan.verdict:
                raise self._refused(asked, survey)
            record = self._record(asked, survey)
            carried = [survey.base.checkpoints[name] for name in survey.plan.reused]
            with workspace.cache.sharing():
                workspace.write_nodes(record.run_id, carried, ended=False)
                workspace.write_run(record)
            with recording(workspace, record):
                trace = TraceFile(workspace.trace_path(record.run_id))
                encryption = self._encryption
                session = BuildSession(
                    workspace=workspace,
                    graph=self._found.graph,
                    tasks=self._tasks,
                    plan=survey.plan,
                    base=survey.base,
                    codec=self._codec,
                    trace=trace,
                    run_id=record.run_id,
                    input=asked.input,
                    index=index,
                    owner=key,
                    encryption=encryption,
                    sealer=encryption.sealer(key, new=True) if encryption else None,
                    shared=self._runner.shared_cache,
                )
                try:
                    nodes = self._found.graph.nodes
                    wrapped = {name: wrap(node, session, lock) for name, node in nodes.items()}
                    yield session, self._found.layered(wrapped)
                finally:
                    trace.close()
                    index.save()
                    complete = (*session.taken_over(), *session.made.values())
                    workspace.write_nodes(record.run_id, complete, ended=True)
        if workspace.cache_limit is not None:
            evict(workspace, workspace.cache_limit)

    def _asked(
        self, mode: Mode, input: Any, previous: str | None, retry_count: int | None
    ) -> BuildRequest:
        if mode not in ("clean", "incremental", "resume-only"):
            raise InvalidRequest(
                f"unknown mode {mode!r}: use 'clean', 'incremental' or 'resume-only'"
            )
        update = self._runner.graph.schema.start_input(input or {})
        digest = hash_bytes(self._codec.encode({name: update[name] for name in sorted(update)}))
        return BuildRequest(
            mode=mode, key=self.key, input=digest, previous=previous, retry_count=retry_count
        )

    def _index(self) -> StatIndex:
        return StatIndex(None if self._rehash else self._workspace.path / "cache" / "index")

    def _survey(self, asked: BuildRequest, index: StatIndex) -> Survey:
        return make_survey(
            self._found, self._tasks, self._workspace, asked, index, self._encryption
        )

    def _refused(self, asked: BuildRequest, survey: Survey) -> ResumeRefused | Corrupted:
        """Error for a run that must not start.

        An error of the workspace is recorded as a run.
        """
        verdict = survey.plan.verdict
        reasons = [str(one) for one in verdict.reasons]
        error = (
            ResumeRefused(self.key.thread, reasons)
            if asked.mode == "resume-only"
            else Corrupted("; ".join(reasons), place=str(self._workspace.path))
        )
        if any(one.rule == "workspace" for one in verdict.reasons):
            record = self._record(asked, survey)
            with suppress(OSError):  # not even that can be written, and the error says why
                _record_failure(self._workspace.recorder(), record, error, "workspace")
        return error

    def _record(self, asked: BuildRequest, survey: Survey) -> RunRecord:
        return new_record(
            self._workspace,
            self.key,
            self._runner.graph.name,
            asked.mode,
            fingerprint=self._runner.graph.fingerprint,
            retry_count=survey.retry_count,
            previous_run_id=survey.plan.previous_run_id,
            input_digest=asked.input,
        )

    def _result(self, session: BuildSession, ended: Any) -> FileResult:
        order = list(self._found.order)
        return FileResult(
            run_id=session.run_id,
            state=ended.state,
            plan=session.plan,
            executed={name: session.executed[name] for name in order if name in session.executed},
            reused=tuple(name for name in order if name in session.reused),
            ended=ended,
        )


def load_file_run(
    load: Callable[[], Buildable],
    workspace: Workspace,
    *,
    thread: str,
    tenant: str = "default",
    mode: Mode = "incremental",
    encryption: Sealers | None = None,
) -> FileRun:
    """Load a graph and make its file run; if either is not possible, that is recorded as a run.

    The record has the given thread and mode, and its failure is of class ``graph``.
    """
    try:
        return FileRun(load(), workspace, thread=thread, tenant=tenant, encryption=encryption)
    except Exception as error:
        record_unloadable(workspace, ThreadKey(tenant, thread), mode, error)
        raise


def _unlimited(options: ExecutionOptions | None) -> ExecutionOptions | None:
    """Drop the step limit and cycle detection: a file run has one step per layer."""
    if options is None:
        return None
    return options.replaced(max_steps=None, cycle_detection=None)


def class_of(error: BaseException) -> FailureClass:
    cause = error.cause if isinstance(error, ExecutionError) else error
    if isinstance(cause, Corrupted | FormatTooNew):
        return "workspace"
    if isinstance(cause, DefinitionError):
        return "graph"
    if isinstance(error, RunError):
        return "execution"
    return "system"


def describe_failure(
    error: BaseException, record: RunRecord, *, time: int, failure_class: FailureClass | None = None
) -> Failure:
    found = failure_class or class_of(error)
    node = getattr(error, "node", None)
    described = describe(error, run_id=record.run_id, node=node, time=time)
    return msgspec.structs.replace(
        described, failure_class=found, resumable=RESUMABLE[found], attempt=record.retry_count + 1
    )


def describe_death(record: RunRecord, *, time: int) -> Failure:
    return Failure(
        run_id=record.run_id,
        failure_class="system",
        resumable=True,
        error_type="ProcessDied",
        message="the process of the run ended abruptly: it was killed, or the machine stopped",
        traceback=(),
        causes=(),
        attempt=record.retry_count + 1,
        time=time,
    )


def new_record(
    workspace: Workspace, key: ThreadKey, graph: str, mode: Mode, **more: Any
) -> RunRecord:
    facts: dict[str, Any] = {"fingerprint": "", "retry_count": 0, "previous_run_id": None}
    return RunRecord(
        run_id=workspace.new_run_id(),
        key=key,
        graph=graph,
        mode=mode,
        status="running",
        started_at=_now(),
        metadata={
            "milecastle": __version__,
            "python": platform.python_version(),
            "host": platform.node(),
        },
        **(facts | more),
    )


@contextmanager
def recording(workspace: Workspace, record: RunRecord) -> Generator[None]:
    try:
        yield
    except BaseException as error:
        _record_failure(workspace, record, error, None)
        raise
    workspace.write_run(msgspec.structs.replace(record, status="completed", ended_at=_now()))


def record_unloadable(
    workspace: Workspace, key: ThreadKey, mode: Mode, error: BaseException
) -> RunRecord:
    record = new_record(workspace, key, key.thread, mode)
    _record_failure(workspace.recorder(), record, error, "graph")
    return record


def bury(workspace: Workspace, key: ThreadKey) -> None:
    """Write a failure record for every dead run in the thread, which must be held."""
    for record in list(workspace.runs([])):
        is_ours = record.key == key and workspace.has_plan(record.run_id)
        if not is_ours or record.status != "running":
            continue
        try:
            failure = workspace.failure(record.run_id)
        except (Corrupted, FormatTooNew):
            continue  # the plan reports it; nothing is written over it
        if failure is None:
            workspace.write_failure(key, describe_death(record, time=_now()))
        workspace.write_run(msgspec.structs.replace(record, status="failed", ended_at=_now()))


def bury_if_free(workspace: Workspace, key: ThreadKey) -> None:
    if workspace.path.is_dir():
        with suppress(Unavailable), workspace.holding(key, wait=0):
            bury(workspace, key)


def _record_failure(
    workspace: Workspace,
    record: RunRecord,
    error: BaseException,
    failure_class: FailureClass | None,
) -> None:
    failure = describe_failure(error, record, time=_now(), failure_class=failure_class)
    workspace.write_failure(record.key, failure)
    status = "cancelled" if isinstance(error, RunCancelled) else "failed"
    workspace.write_run(msgspec.structs.replace(record, status=status, ended_at=_now()))


def _now() -> int:
    return time_ns() // 1000
