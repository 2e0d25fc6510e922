"""Bulk work: many threads of a graph retried, cancelled or deleted, by a durable run of workers.

A job is the run of a small graph in a thread of the tenant, ``bulk@@ID``. One step commits which
threads are next, another changes them, so a job survives its worker, and its state is its progress.

Rules:

- A job changes threads of its own graph and tenant only, and those workers run it that serve the
  graph.
- Threads are changed as ``milecastle.app.upkeep.changing`` says. A page is noted before it is
  changed. If that is repeated, because its worker died, it meets the same threads and leaves out
  those that are done: none is changed twice, none beyond the limit, and fewer are counted.
- A thread is deleted only while the run that was listed wrote its head, and nobody runs it.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import Any, Final, TypedDict

import msgspec

from milecastle.app.application import App
from milecastle.app.runner import Runner
from milecastle.app.runs.calls import Call
from milecastle.app.runs.submission import require_shared
from milecastle.app.state_graph import StateGraph
from milecastle.app.upkeep.changing import CHANGEABLE, BulkAction, change_listed
from milecastle.app.upkeep.removing import delete_thread
from milecastle.engine.context import Context
from milecastle.errors import InvalidRequest, MilecastleError
from milecastle.model.keys import ThreadKey, own_key, own_name
from milecastle.model.manifest import END, START
from milecastle.model.policies import ExecutionConfig, Retry
from milecastle.model.run import RunStatus, ThreadInfo
from milecastle.support.printable import printable
from milecastle.views.listing import found_threads

__all__ = ["Bulk", "JobInfo", "job_key"]

_log = logging.getLogger("milecastle.fleet")

_PAGE: Final = 100
_ATTEMPTS: Final = Retry(attempts=10, delay=5.0)


class BulkState(TypedDict):
    """The memory of a job.

    ``left`` is how many may still be changed, ``after`` the last one that was found, ``page`` the
    names and runs of those to be changed now.
    """

    action: str
    status: str
    found: int
    left: int
    after: str
    page: list[list[str]]
    changed: int
    skipped: int


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of a job; ``status`` is that of its run."""

    id: str
    action: BulkAction
    status: RunStatus
    found: int
    changed: int
    skipped: int


def job_key(tenant: str, id: str) -> ThreadKey:
    """The thread of a job."""
    return own_key(tenant, "bulk", id)


class Bulk:
    """The jobs of one app."""

    def __init__(self, app: App[Any]) -> None:
        runner, self._app = app.runner, app
        self._store = require_shared(runner.settings.store)
        self.runner: Runner[BulkState] = runner.rebuilt(
            self._graph().compile().graph,
            interval=1,
            observers=(),
            checkpoint_dir=None,
            workspace=None,
            preserve=True,
            retry_runs=_ATTEMPTS,
            migrations={},
        )

    def _graph(self) -> StateGraph[BulkState]:
        graph = StateGraph(BulkState, name=own_name("bulk", self._app.graph.name))
        graph.add_node("find", self.find)
        graph.add_node("change", self.change)
        graph.add_edges(START, "find", "change")
        graph.add_conditional_edges("change", _what_next, {"more": "find", "ends": END})
        return graph.with_default_config(ExecutionConfig(max_steps=None, cycle_detection=False))

    def submit(
        self, action: BulkAction, tenant: str, status: RunStatus, *, limit: int | None = None
    ) -> JobInfo:
        """Hand a job over to the workers; how many runs it is about is counted now."""
        if status not in CHANGEABLE[action]:
            raise InvalidRequest(
                f"{action} is for runs that are {', '.join(CHANGEABLE[action])}: not for others"
            )
        listed = found_threads(self._store, tenant, status, self._app.graph.name)
        found = sum(1 for _ in islice(listed, limit))
        id = self.runner.settings.clock.new_id()
        fresh = BulkState(
            action=action,
            status=status,
            found=found,
            left=found,
            after="",
            page=[],
            changed=0,
            skipped=0,
        )
        call = Call(input=fresh, thread=job_key(tenant, id), is_own=True)
        handle = self.runner.submit(call, priority=0)
        return _info(id, handle.status, fresh)

    def info(self, tenant: str, id: str) -> JobInfo:
        """What has become of a job; ``InvalidRequest`` if there is none."""
        found = App(self.runner).state(job_key(tenant, id))
        return _info(id, found.status, found.state)

    def find(self, state: BulkState, ctx: Context) -> dict[str, Any]:
        """The next page of threads."""
        tenant, status, name = _tenant(ctx), _status(state), self._app.graph.name
        listed = found_threads(self._store, tenant, status, name, state["after"] or None)
        page = [[info.key.thread, info.run_id] for info in islice(listed, _size(state))]
        return {
            "left": state["left"] - len(page) if page else 0,
            "after": page[-1][0] if page else state["after"],
            "page": page,
        }

    def change(self, state: BulkState, ctx: Context) -> dict[str, Any]:
        """Change what was found, as far as it is still so."""
        store, tenant, status = self._store, _tenant(ctx), _status(state)
        change = {"retry": self._retry, "cancel": self._cancel, "delete": self._delete}[
            state["action"]
        ]
        changed = sum(
            change_listed(store, ThreadKey(tenant, thread), (run_id, status), change, _refused)
            for thread, run_id in state["page"]
        )
        return {
            "changed": state["changed"] + changed,
            "skipped": state["skipped"] + len(state["page"]) - changed,
        }

    def _retry(self, info: ThreadInfo) -> bool:
        return not self._app.retry(info.key).reused

    def _cancel(self, info: ThreadInfo) -> bool:
        return self._app.cancel(info.key, run_id=info.run_id)

    def _delete(self, info: ThreadInfo) -> bool:
        keyring = self.runner.settings.encryption
        return delete_thread(self._store, info.key, keyring, take_over=False, run_id=info.run_id)


def _what_next(state: BulkState) -> str:
    return "more" if state["left"] else "ends"


def _size(state: BulkState) -> int:
    return min(_PAGE, state["left"])


def _tenant(ctx: Context) -> str:
    if ctx.thread is None:
        raise AssertionError("a job has a thread")
    return ctx.thread.tenant


def _status(state: BulkState) -> Any:
    return state["status"]


def _info(id: str, status: RunStatus, state: BulkState) -> JobInfo:
    action: Any = state["action"]
    return JobInfo(
        id=id,
        action=action,
        status=status,
        found=state["found"],
        changed=state["changed"],
        skipped=state["skipped"],
    )


def _refused(info: ThreadInfo, error: MilecastleError) -> None:
    _log.warning(
        "thread '%s' was skipped: %s", printable(info.key.thread), printable(error.message)
    )
