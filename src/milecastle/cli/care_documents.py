"""What ``--json`` prints of verbs that care for stores, and of those that write for others."""

from __future__ import annotations

from typing import Literal

from milecastle.cli.documents import Document

__all__ = [
    "CompletionDocument",
    "CopyDocument",
    "Damage",
    "DoctorCheck",
    "DoctorDocument",
    "ExportDocument",
    "GcDocument",
    "MigrateDocument",
    "RepairDocument",
    "RepairLine",
    "VerifyDocument",
]


class GcDocument(Document, frozen=True):
    """``gc``. ``undecoded`` threads were left alone: they need ``--app``, or keys.

    ``file_runs`` are the runs that went from a workspace.
    """

    tenant: str
    dry_run: bool
    threads: int
    pruned: int
    dropped: int
    deleted: tuple[str, ...]
    busy: tuple[str, ...]
    undecoded: tuple[str, ...]
    file_runs: tuple[str, ...]


class Damage(Document, frozen=True):
    """Something that is not what was written. ``thread`` is ``null`` if it belongs to none."""

    thread: str | None
    place: str
    problem: str
    code: str


class VerifyDocument(Document, frozen=True):
    """``verify``."""

    tenant: str
    threads: int
    checkpoints: int
    runs: int
    damage: tuple[Damage, ...]


class RepairLine(Document, frozen=True):
    """A log that was mended, and the copy that was kept of it."""

    thread: str | None
    file: str
    kept: str


class RepairDocument(Document, frozen=True):
    """``repair``. ``damage`` is what cannot be mended."""

    tenant: str
    threads: int
    repaired: tuple[RepairLine, ...]
    damage: tuple[Damage, ...]


class CopyDocument(Document, frozen=True):
    """``copy``."""

    tenant: str
    source: str
    target: str
    threads: int
    changed: int
    checkpoints: int


class MigrateDocument(Document, frozen=True):
    """``migrate``. ``sql`` is what was, or with ``--print`` would be, run."""

    store: str
    pending: bool
    applied: bool
    sql: str


class DoctorCheck(Document, frozen=True):
    """One thing that was looked at, and what to do about it."""

    name: str
    verdict: Literal["ok", "warning", "failed"]
    found: str
    advice: str


class DoctorDocument(Document, frozen=True):
    """``doctor``."""

    ok: bool
    checks: tuple[DoctorCheck, ...]


class ExportDocument(Document, frozen=True):
    """``export-test``. ``file`` is ``null`` if it was printed."""

    thread: str
    seq: int
    nodes: tuple[str, ...]
    file: str | None
    test: str


class CompletionDocument(Document, frozen=True):
    """``completion``."""

    shell: str
    script: str
