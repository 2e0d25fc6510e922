"""Keeping the cache within its limit: what was not used for longest goes first.

What a run may still need is never evicted: of every thread the newest run and the newest that
failed, and every run that is at work. If that alone is over the limit, it stays.
"""

from __future__ import annotations

import msgspec

from milecastle.errors import Corrupted, FormatTooNew
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord
from milecastle.recovery.workspace import Workspace

__all__ = ["Eviction", "evict", "needed_tasks"]


class Eviction(msgspec.Struct, frozen=True, kw_only=True):
    """What was evicted, and how many bytes the cache holds now."""

    entries: int
    bytes: int
    left: int


def evict(workspace: Workspace, limit: int) -> Eviction:
    """Remove what no run needs until the cache holds at most ``limit`` bytes."""
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


def needed_tasks(workspace: Workspace) -> set[str]:
    """The tasks whose entries some run may still need."""
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
