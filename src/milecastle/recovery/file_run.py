"""A file run: a graph whose nodes declare files, run with a plan of what can be reused.

Modes: ``clean`` starts over and reuses nothing; ``incremental`` reuses what is valid;
``resume-only`` goes on with a run that failed or died, and refuses if that is not safe.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec
import msgspec.structs

from milecastle.errors import InvalidRequest, ResumeRefused
from milecastle.graph.compiled import CompiledGraph
from milecastle.model.keys import ThreadKey
from milecastle.model.policies import ExecutionOptions
from milecastle.model.run import Mode, RunRecord
from milecastle.recovery.eviction import evict
from milecastle.recovery.file_graph import read_file_graph
from milecastle.recovery.hashing import hash_bytes
from milecastle.recovery.plan import Plan, Why
from milecastle.recovery.recording import (
    bury,
    bury_if_free,
    new_record,
    record_unloadable,
    recording,
)
from milecastle.recovery.session import Session
from milecastle.recovery.stat_index import StatIndex
from milecastle.recovery.survey import Asked, Survey, make_survey
from milecastle.recovery.tasks import codec_of, prepare
from milecastle.recovery.trace import Trace
from milecastle.recovery.workspace import Workspace
from milecastle.recovery.wrapping import wrap_all

__all__ = ["FileResult", "FileRun", "Runnable", "load_file_run"]


class Runnable(Protocol):
    """What a file run needs of an app."""

    @property
    def graph(self) -> CompiledGraph:
        """The graph that it runs."""
        ...

    def run_unsaved(
        self,
        graph: CompiledGraph,
        input: Any,
        *,
        run_id: str,
        options: ExecutionOptions | None = None,
    ) -> Any:
        """Run a graph with the app's settings to its end, under this run id; store nothing."""
        ...

    def arun_unsaved(
        self,
        graph: CompiledGraph,
        input: Any,
        *,
        run_id: str,
        options: ExecutionOptions | None = None,
    ) -> Awaitable[Any]:
        """``run_unsaved`` on an event loop."""
        ...


class FileResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a file run ended. ``executed`` says why each node was run, ``reused`` which were not.

    ``ended`` is what the app returned.
    """

    run_id: str
    state: Any
    plan: Plan
    executed: Mapping[str, tuple[Why, ...]]
    reused: tuple[str, ...]
    ended: Any = None


class FileRun:
    """Runs the graph of an app in a workspace, again and again, doing only what is needed.

    ``thread`` names the work, by default after the graph: runs of one thread build on each other,
    one at a time. ``rehash=True`` reads every file, even those that seem untouched.
    """

    def __init__(
        self,
        app: Runnable,
        workspace: Workspace,
        *,
        thread: str | None = None,
        tenant: str = "default",
        rehash: bool = False,
        wait: float = 10.0,
    ) -> None:
        self._app = app
        self._workspace = workspace
        self._found = read_file_graph(app.graph, workspace.root, workspace.path)
        self._tasks = prepare(self._found, workspace.places)
        self._codec = codec_of(app.graph)
        self._rehash = rehash
        self._wait = wait
        self.key = ThreadKey(tenant, thread or app.graph.name)

    def plan(
        self,
        mode: Mode = "incremental",
        *,
        input: Any = None,
        previous: str | None = None,
        retry_count: int | None = None,
    ) -> Plan:
        """What ``run`` would do, and why. No output is touched."""
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
        """Do what is needed; ``ResumeRefused`` gives every reason against resuming."""
        asked = self._asked(mode, input, previous, retry_count)
        with self._running(asked) as (session, graph):
            ended = self._app.run_unsaved(
                graph, input or {}, run_id=session.run_id, options=_unlimited(options)
            )
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
        """``run`` on an event loop. Only nodes leave it free: making the plan does not."""
        asked = self._asked(mode, input, previous, retry_count)
        with self._running(asked) as (session, graph):
            ended = await self._app.arun_unsaved(
                graph, input or {}, run_id=session.run_id, options=_unlimited(options)
            )
        return self._result(session, ended)

    @contextmanager
    def _running(self, asked: Asked) -> Generator[tuple[Session, CompiledGraph]]:
        """Hold the thread, plan, record the run, and record how it ended."""
        workspace, key = self._workspace, self.key
        with workspace.holding(key, wait=self._wait) as lock:
            bury(workspace, key)
            index = self._index()
            survey = self._survey(asked, index)
            if not survey.plan.verdict:
                raise ResumeRefused(key.thread, [str(one) for one in survey.plan.verdict.reasons])
            record = self._begin(asked, survey)
            with recording(workspace, record):
                trace = Trace(workspace.trace_path(record.run_id))
                session = self._session(asked, survey, record, trace, index)
                try:
                    nodes = wrap_all(self._found.graph.nodes, session, lock)
                    yield session, self._found.layered(nodes)
                finally:
                    trace.close()
                    index.save()
                    complete = (*session.taken_over(), *session.made.values())
                    workspace.write_nodes(record.run_id, complete, ended=True)
        if workspace.cache_limit is not None:
            evict(workspace, workspace.cache_limit)

    def _asked(
        self, mode: Mode, input: Any, previous: str | None, retry_count: int | None
    ) -> Asked:
        if mode not in ("clean", "incremental", "resume-only"):
            raise InvalidRequest(
                f"there is no mode {mode!r}: use 'clean', 'incremental' or 'resume-only'"
            )
        update = self._app.graph.schema.read_input(input or {})
        digest = hash_bytes(self._codec.encode({name: update[name] for name in sorted(update)}))
        return Asked(
            mode=mode, key=self.key, input=digest, previous=previous, retry_count=retry_count
        )

    def _index(self) -> StatIndex:
        return StatIndex(None if self._rehash else self._workspace.path / "cache" / "index")

    def _survey(self, asked: Asked, index: StatIndex) -> Survey:
        return make_survey(self._found, self._tasks, self._workspace, asked, index)

    def _begin(self, asked: Asked, survey: Survey) -> RunRecord:
        workspace, plan = self._workspace, survey.plan
        record = new_record(
            workspace,
            self.key,
            self._app.graph.name,
            asked.mode,
            fingerprint=self._app.graph.fingerprint,
            retry_count=survey.retry_count,
            previous_run_id=plan.previous_run_id,
            input_digest=asked.input,
        )
        carried = [survey.base.checkpoints[name] for name in plan.reused]
        with workspace.cache.sharing():
            workspace.write_nodes(record.run_id, carried, ended=False)
            workspace.write_run(record)
        return record

    def _session(
        self, asked: Asked, survey: Survey, record: RunRecord, trace: Trace, index: StatIndex
    ) -> Session:
        return Session(
            workspace=self._workspace,
            graph=self._found.graph,
            tasks=self._tasks,
            plan=survey.plan,
            base=survey.base,
            codec=self._codec,
            trace=trace,
            run_id=record.run_id,
            input=asked.input,
            index=index,
            executed={},
            reused={},
            made={},
            given={},
        )

    def _result(self, session: Session, ended: Any) -> FileResult:
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
    load: Callable[[], Runnable],
    workspace: Workspace,
    *,
    thread: str,
    tenant: str = "default",
    mode: Mode = "incremental",
) -> FileRun:
    """Load a graph and make its file run; if it cannot be loaded, that is recorded as a run.

    The record says which thread and mode were asked for, and its failure is of class ``graph``.
    """
    try:
        return FileRun(load(), workspace, thread=thread, tenant=tenant)
    except Exception as error:
        record_unloadable(workspace, ThreadKey(tenant, thread), mode, error)
        raise


def _unlimited(options: ExecutionOptions | None) -> ExecutionOptions | None:
    """The step limit and cycles are no matter of a file run: it has one step for each layer."""
    if options is None:
        return None
    return msgspec.structs.replace(options, max_steps=None, cycle_detection=None)
