"""An app's file runs: ``build`` and ``plan`` in its workspace.

Their records are in the workspace and not in the store: a thread continues from its last step,
while a file run checks every node again.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import msgspec.structs

from milecastle.app.results import Result
from milecastle.app.runner import Runner, Thread
from milecastle.builds.file_run import FileResult, FileRun, load_file_run
from milecastle.builds.plan import Plan
from milecastle.builds.workspace import Workspace
from milecastle.errors import InvalidRequest
from milecastle.model.keys import ThreadKey
from milecastle.model.policies import ExecutionOptions
from milecastle.model.run import Mode

S = TypeVar("S")


class HasRunner(Protocol[S]):
    @property
    def runner(self) -> Runner[S]: ...


def plan_files(app: HasRunner[Any], input: Any, mode: Mode, thread: Thread | None) -> Plan:
    workspace, key = _workspace(app.runner), _key(app.runner, thread)
    encryption = app.runner.settings.encryption
    run = FileRun(app, workspace, thread=key.thread, tenant=key.tenant, encryption=encryption)
    return run.plan(mode, input=input)


def run_files(
    app: HasRunner[S],
    input: Any,
    mode: Mode,
    thread: Thread | None,
    options: ExecutionOptions | None,
) -> Result[S]:
    run = _file_run(app, mode, thread)
    return _result(run, run.run(mode, input=input, options=options))


async def arun_files(
    app: HasRunner[S],
    input: Any,
    mode: Mode,
    thread: Thread | None,
    options: ExecutionOptions | None,
) -> Result[S]:
    run = _file_run(app, mode, thread)
    return _result(run, await run.arun(mode, input=input, options=options))


def _file_run(app: HasRunner[Any], mode: Mode, thread: Thread | None) -> FileRun:
    workspace, key = _workspace(app.runner), _key(app.runner, thread)
    return load_file_run(
        lambda: app,
        workspace,
        thread=key.thread,
        tenant=key.tenant,
        mode=mode,
        encryption=app.runner.settings.encryption,
    )


def _workspace(runner: Runner[Any]) -> Workspace:
    if runner.settings.workspace is None:
        raise InvalidRequest(
            "build() and plan() need a workspace: compile(workspace='.milecastle')"
        )
    return runner.settings.workspace


def _key(runner: Runner[Any], thread: Thread | None) -> ThreadKey:
    return runner.key(runner.graph.name if thread is None else thread)


def _result(run: FileRun, found: FileResult) -> Result[Any]:
    ended: Result[Any] = found.ended
    return msgspec.structs.replace(
        ended,
        thread=run.key,
        executed={name: tuple(map(str, why)) for name, why in found.executed.items()},
        reused_nodes=found.reused,
    )
