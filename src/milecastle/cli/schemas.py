"""Which document each verb prints with ``--json``."""

from __future__ import annotations

from milecastle.cli.care_documents import (
    CompletionDocument,
    CopyDocument,
    DoctorDocument,
    ExportDocument,
    GcDocument,
    MigrateDocument,
    RepairDocument,
    VerifyDocument,
)
from milecastle.cli.documents import (
    CheckDocument,
    DiffDocument,
    Document,
    GraphDocument,
    HistoryDocument,
    LsDocument,
    RunDocument,
    RunsDocument,
    ShowDocument,
    WrittenDocument,
)

__all__ = ["DOCUMENTS"]

DOCUMENTS: dict[str, type[Document]] = {
    "check": CheckDocument,
    "run": RunDocument,
    "resume": RunDocument,
    "answer": RunDocument,
    "ls": LsDocument,
    "runs": RunsDocument,
    "show": ShowDocument,
    "history": HistoryDocument,
    "diff": DiffDocument,
    "fork": WrittenDocument,
    "update": WrittenDocument,
    "graph": GraphDocument,
    "gc": GcDocument,
    "verify": VerifyDocument,
    "repair": RepairDocument,
    "copy": CopyDocument,
    "migrate": MigrateDocument,
    "doctor": DoctorDocument,
    "export-test": ExportDocument,
    "completion": CompletionDocument,
}
