"""Records and reports calls return, and protocols of what they take: for annotations."""

from typing import TYPE_CHECKING

from milecastle.app.memory import AppMemory
from milecastle.app.runs.submission import Handle
from milecastle.app.threads.compatibility import Compatibility
from milecastle.app.threads.difference import Change
from milecastle.app.upkeep.copying import CopyReport
from milecastle.app.upkeep.removing import ErasureReport
from milecastle.app.upkeep.retention import KeptMore, RetentionReport
from milecastle.engine.remembering import TaskMemory
from milecastle.graph.structure import CompiledGraph
from milecastle.model.checkpoint import CheckpointMetadata
from milecastle.model.event import Emitted
from milecastle.model.interrupt import Interrupt
from milecastle.model.manifest import Manifest
from milecastle.model.memory import MemoryHit, MemoryItem
from milecastle.model.run import Failure, Owner, RunRecord, Segment, TaskFailure, ThreadInfo
from milecastle.model.task import Origin
from milecastle.ports.files import FileReader, StoredFiles
from milecastle.ports.observer import TaskObserver, TracingObserver
from milecastle.support.migration_hints import refuse_import

__all__ = [
    "AppMemory",
    "Change",
    "CheckpointMetadata",
    "Compatibility",
    "CompiledGraph",
    "CopyReport",
    "Emitted",
    "ErasureReport",
    "Failure",
    "FileReader",
    "Handle",
    "Interrupt",
    "KeptMore",
    "Manifest",
    "MemoryHit",
    "MemoryItem",
    "NodeTrace",
    "Origin",
    "Owner",
    "RetentionReport",
    "RunRecord",
    "RunTrace",
    "Segment",
    "StoredFiles",
    "TaskFailure",
    "TaskMemory",
    "TaskObserver",
    "ThreadInfo",
    "Trace",
    "TracingObserver",
]

if TYPE_CHECKING:
    from milecastle.observers.trace import NodeTrace, RunTrace, Trace
else:

    def __getattr__(name):
        """Import what reads trace files when it is used: it needs much more."""
        if name not in __all__:
            refuse_import(__name__, name)
        from milecastle.observers import trace

        return getattr(trace, name)
