"""Builds: file graphs. Their runs are stored in a workspace, and plans decide about reuse."""

from __future__ import annotations

from milecastle.builds.file_run import Buildable, FileResult, FileRun
from milecastle.builds.nodes import (
    Cache,
    CommandNode,
    CommandOutcome,
    Files,
    command,
    declare,
    files,
    root,
)
from milecastle.builds.plan import Decision, Plan, Reason, Verdict, Why
from milecastle.builds.records import NodeCheckpoint
from milecastle.builds.upkeep import Eviction, RunsGone, evict, let_runs_go
from milecastle.builds.workspace import Workspace

__all__ = [
    "Buildable",
    "Cache",
    "CommandNode",
    "CommandOutcome",
    "Decision",
    "Eviction",
    "FileResult",
    "FileRun",
    "Files",
    "NodeCheckpoint",
    "Plan",
    "Reason",
    "RunsGone",
    "Verdict",
    "Why",
    "Workspace",
    "command",
    "declare",
    "evict",
    "files",
    "let_runs_go",
    "root",
]
