"""File runs of an app: what ``plan`` and ``invoke(..., mode=...)`` do in its workspace.

Their records are in the workspace and not in the store: a thread of the store goes on from its last
step, and a file run looks at every node again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec.structs

from milecastle.app.children import refuse_mark
from milecastle.app.habits import refuse_thread
from milecastle.app.launching import Wish
from milecastle.app.results import Result
from milecastle.errors import InvalidRequest
from milecastle.model.keys import ThreadKey
from milecastle.model.run import Mode
from milecastle.recovery.file_run import FileResult, FileRun
from milecastle.recovery.plan import Plan

if TYPE_CHECKING:
    from milecastle.app.application import App

__all__ = ["arun_files", "plan_files", "run_files"]

S = TypeVar("S")


def plan_files(app: App[Any], wish: Wish, mode: Mode) -> Plan:
    """What a file run would do."""
    return _file_run(app, wish).plan(mode, input=wish.input)


def run_files(app: App[S], wish: Wish, mode: Mode) -> Result[S]:
    """A file run to its end."""
    run = _file_run(app, wish)
    return _result(run, run.run(mode, input=wish.input, options=wish.options))


async def arun_files(app: App[S], wish: Wish, mode: Mode) -> Result[S]:
    """``run_files`` on an event loop."""
    run = _file_run(app, wish)
    return _result(run, await run.arun(mode, input=wish.input, options=wish.options))


def _file_run(app: App[Any], wish: Wish) -> FileRun:
    if app.workspace is None:
        raise InvalidRequest("a plan and a mode need a workspace: compile(workspace='.milecastle')")
    if wish.config is not None or wish.checkpoint is not None:
        raise InvalidRequest(
            "a file run takes neither config nor a portable file: nothing could tell when they "
            "change; give nodes what they need in the input"
        )
    key = _key(app, wish.thread)
    return FileRun(app, app.workspace, thread=key.thread, tenant=key.tenant)


def _key(app: App[Any], thread: Any) -> ThreadKey:
    """The thread, by default named after the graph: runs of one thread build on each other."""
    if isinstance(thread, ThreadKey):
        return thread
    if thread is None:
        return ThreadKey(app.tenant, app.graph.name)
    if not isinstance(thread, str):
        return refuse_thread(thread)
    refuse_mark(thread)
    return ThreadKey(app.tenant, thread)


def _result(run: FileRun, found: FileResult) -> Result[Any]:
    ended: Result[Any] = found.ended
    return msgspec.structs.replace(
        ended,
        thread=run.key,
        executed={name: tuple(map(str, why)) for name, why in found.executed.items()},
        reused=found.reused,
    )
