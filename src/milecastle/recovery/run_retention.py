"""Letting old file runs go: their records, checkpoints and traces.

Of every thread these stay whatever is asked for: the newest run, the newest that failed, every run
that is at work, and each run whose nodes one of these took over: their traces are still looked at.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable

import msgspec

from milecastle.errors import InvalidRequest, Unavailable
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord
from milecastle.recovery.workspace import Workspace

__all__ = ["RunsGone", "let_runs_go"]


class RunsGone(msgspec.Struct, frozen=True, kw_only=True):
    """The ids of the runs that went, or would; ``busy`` threads are at work and come next time."""

    runs: tuple[str, ...]
    busy: tuple[str, ...] = ()


def let_runs_go(
    workspace: Workspace,
    tenant: str,
    *,
    keep_last: int | None = None,
    started_before: int | None = None,
    threads: Iterable[str] | None = None,
    dry_run: bool = False,
) -> RunsGone:
    """Remove the runs of a tenant that every rule lets go.

    ``keep_last`` keeps the newest n of each thread; ``started_before``, in microseconds since
    1970, keeps what is younger.
    """
    if keep_last is None and started_before is None:
        raise InvalidRequest("say what may go: keep_last, started_before or both")
    gone: list[str] = []
    busy: list[str] = []
    only = None if threads is None else set(threads)
    for thread in sorted({run.key.thread for run in _runs(workspace, tenant)}):
        if only is not None and thread not in only:
            continue
        key = ThreadKey(tenant, thread)
        try:
            with workspace.holding(key, wait=0):
                gone += _of_thread(workspace, key, keep_last, started_before, dry_run)
        except Unavailable:
            busy.append(thread)
    return RunsGone(runs=tuple(gone), busy=tuple(busy))


def _runs(workspace: Workspace, tenant: str) -> list[RunRecord]:
    """The file runs of a tenant; what a file store records in the same folder is its own."""
    return [
        run
        for run in workspace.runs([])
        if run.key.tenant == tenant and workspace.has_plan(run.run_id)
    ]


def _of_thread(
    workspace: Workspace,
    key: ThreadKey,
    keep_last: int | None,
    started_before: int | None,
    dry_run: bool,
) -> list[str]:
    runs = [run for run in _runs(workspace, key.tenant) if run.key == key]
    runs.sort(key=lambda run: (run.started_at, run.run_id), reverse=True)
    kept = {run.run_id for run in runs[: keep_last or 1]}
    if started_before is not None:
        kept |= {run.run_id for run in runs if run.started_at >= started_before}
    kept |= {run.run_id for run in runs if run.status == "running"}
    kept |= {run.run_id for run in [run for run in runs if run.status == "failed"][:1]}
    kept |= {
        checkpoint.run_id
        for run_id in list(kept)
        for checkpoint in workspace.checkpoints(run_id, []).values()
    }
    going = [run.run_id for run in runs if run.run_id not in kept]
    for run_id in going if not dry_run else ():
        _remove(workspace, run_id)
    return going


def _remove(workspace: Workspace, run_id: str) -> None:
    """The record goes first: a run without one is taken for one that never began."""
    folder = workspace.run_folder(run_id)
    (folder / "run.json").unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    workspace.trace_path(run_id).unlink(missing_ok=True)
