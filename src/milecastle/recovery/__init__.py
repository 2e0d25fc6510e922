"""Runs over files: what can be reused, what must run, and whether a run may be resumed."""

from __future__ import annotations

from milecastle.recovery.caching import with_caches
from milecastle.recovery.commands import CommandNode, CommandOutcome, command
from milecastle.recovery.current import root
from milecastle.recovery.declarations import Cache, Files, declare, files
from milecastle.recovery.eligibility import (
    Candidate,
    Reason,
    ResumeFacts,
    Verdict,
    find_previous,
    judge,
)
from milecastle.recovery.eviction import Eviction, evict
from milecastle.recovery.file_run import FileResult, FileRun, load_file_run
from milecastle.recovery.plan import Decision, NodeFacts, Plan, Why, make_plan
from milecastle.recovery.recording import record_unloadable
from milecastle.recovery.run_retention import RunsGone, let_runs_go
from milecastle.recovery.session import Session
from milecastle.recovery.workspace import Workspace
from milecastle.recovery.wrapping import wrap

__all__ = [
    "Cache",
    "Candidate",
    "CommandNode",
    "CommandOutcome",
    "Decision",
    "Eviction",
    "FileResult",
    "FileRun",
    "Files",
    "NodeFacts",
    "Plan",
    "Reason",
    "ResumeFacts",
    "RunsGone",
    "Session",
    "Verdict",
    "Why",
    "Workspace",
    "command",
    "declare",
    "evict",
    "files",
    "find_previous",
    "judge",
    "let_runs_go",
    "load_file_run",
    "make_plan",
    "record_unloadable",
    "root",
    "with_caches",
    "wrap",
]
