"""Upkeep of a workspace: old runs are deleted, the cache is kept within its limit, threads erased.

Of every thread these runs stay whatever is asked for: the newest, the newest that failed, every run
that is at work, and each run whose nodes one of these took over: their traces are still looked at.
From the cache, the least recently used entries go first. Entries a run may still need are never
evicted: for every thread the newest run and the newest that failed, and every active run. If that
alone exceeds the limit, it stays.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable

import msgspec

from milecastle.builds.workspace import Workspace
from milecastle.errors import Corrupted, FormatTooNew, InvalidRequest, Unavailable
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord


class RunsGone(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of runs deleted, or to be deleted; ``busy`` threads are active and come next time."""

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
    """Remove the runs of a tenant that every rule allows to delete.

    ``keep_last`` keeps the newest n of each thread; ``started_before``, in microseconds since 1970,
    keeps younger runs.
    """
    if keep_last is None and started_before is None:
        raise InvalidRequest("nothing selected: use keep_last, started_before or both")
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
        remove_run(workspace, run_id)
    return going


def remove_run(workspace: Workspace, run_id: str) -> None:
    """Remove a run. Its record goes first: a run without one never began."""
    folder = workspace.run_folder(run_id)
    (folder / "run.json").unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    workspace.trace_path(run_id).unlink(missing_ok=True)


class Eviction(msgspec.Struct, frozen=True, kw_only=True):
    """Evicted entries, and the cache's size now."""

    entries: int
    bytes: int
    left: int


def evict(workspace: Workspace, limit: int) -> Eviction:
    """Remove unneeded entries until the cache holds at most ``limit`` bytes."""
    with workspace.cache.sharing(alone=True):
        sizes = workspace.cache.sizes()
        total = before = sum(sizes.values())
        if total <= limit:
            return Eviction(entries=0, bytes=0, left=total)
        used = _blobs_by_task(workspace)
        needed = needed_tasks(workspace)
        counts: dict[str, int] = {}
        for blobs in used.values():
            for blob in blobs:
                counts[blob] = counts.get(blob, 0) + 1
        for blob in [blob for blob in sizes if blob not in counts]:
            workspace.cache.blob_path(blob).unlink(missing_ok=True)  # of a node that died
            total -= sizes[blob]
        gone = 0
        ages = workspace.cache.tasks()
        for task in sorted((task for task in ages if task not in needed), key=ages.__getitem__):
            if total <= limit:
                break
            workspace.cache.entry_path(task).unlink(missing_ok=True)
            gone += 1
            for blob in used.get(task, set()):
                counts[blob] -= 1
                if not counts[blob]:
                    workspace.cache.blob_path(blob).unlink(missing_ok=True)
                    total -= sizes.get(blob, 0)
        return Eviction(entries=gone, bytes=before - total, left=total)


def drop_unused_blobs(workspace: Workspace) -> None:
    """Remove unreferenced blobs. The cache must be held exclusively."""
    used = set[str]().union(*_blobs_by_task(workspace).values())
    for blob in workspace.cache.sizes():
        if blob not in used:
            workspace.cache.blob_path(blob).unlink(missing_ok=True)


def needed_tasks(workspace: Workspace) -> set[str]:
    live: dict[str, RunRecord] = {}
    newest: dict[tuple[ThreadKey, bool], RunRecord] = {}
    for record in workspace.runs([]):
        if not workspace.has_plan(record.run_id):
            continue
        if record.status == "running":
            live[record.run_id] = record
        place = (record.key, record.status == "failed")
        if place not in newest or newest[place].started_at <= record.started_at:
            newest[place] = record
    wanted = {*live, *(record.run_id for record in newest.values())}
    return {
        checkpoint.task_hash
        for run_id in wanted
        for checkpoint in workspace.checkpoints(run_id, []).values()
    }


def _blobs_by_task(workspace: Workspace) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for task in workspace.cache.names():
        try:
            entry = workspace.cache.load(task)
        except (Corrupted, FormatTooNew):
            continue  # its blobs count as nobody's
        artifacts = entry.artifacts if entry else ()
        found[task] = {item.hash for one in artifacts for item in one.items if item.hash}
    return found


class Erased(msgspec.Struct, frozen=True):
    """Threads with data in the workspace, and the number of deleted cache entries."""

    threads: frozenset[str]
    entries: int


def erase_from_workspace(workspace: Workspace, tenant: str, threads: Iterable[str]) -> Erased:
    """Remove file runs, and results in the cache, that belong to these threads of a tenant.

    A damaged entry has no known thread, is of no use, and is deleted too.

    Raises: Unavailable: a run in one thread is in progress.
    """
    wanted = set(threads)
    found: set[str] = set()
    if not workspace.path.is_dir():
        return Erased(frozenset(), 0)
    for key in (ThreadKey(tenant, thread) for thread in sorted(wanted)):
        with workspace.holding(key):
            for record in list(workspace.runs([])):
                if record.key == key and workspace.has_plan(record.run_id):
                    remove_run(workspace, record.run_id)
                    found.add(key.thread)
    gone = 0
    with workspace.cache.sharing(alone=True):
        for task in workspace.cache.names():
            try:
                entry = workspace.cache.load(task)
            except (Corrupted, FormatTooNew):
                entry = None
            if entry is not None and (entry.tenant != tenant or entry.thread not in wanted):
                continue
            workspace.cache.entry_path(task).unlink(missing_ok=True)
            gone += 1
            if entry is not None:
                found.add(entry.thread)
        drop_unused_blobs(workspace)
    return Erased(frozenset(found), gone)
