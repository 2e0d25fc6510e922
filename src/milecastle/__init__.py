"""Milecastle: durable state graphs for Python.

Write functions and edges. The outcome of each step is committed before the next step starts; after
a crash the run resumes from the last committed step.
"""

from typing import TYPE_CHECKING

from milecastle.app.application import App
from milecastle.app.checkpoints import CheckpointStore, open_store
from milecastle.app.encryption.keyring import Keyring
from milecastle.app.results import Result, Snapshot
from milecastle.app.runs.submission import Handle
from milecastle.app.state_graph import StateGraph
from milecastle.app.threads.compatibility import Compatibility
from milecastle.app.threads.difference import Change
from milecastle.app.upkeep.copying import CopyReport, copy_threads
from milecastle.app.upkeep.removing import ErasureReport
from milecastle.app.upkeep.retention import KeptMore, Retention, RetentionReport
from milecastle.codec.registry import register_type
from milecastle.engine.context import Context, current, interrupt
from milecastle.errors import (
    AlreadyAnswered,
    AttemptsExhausted,
    CodecError,
    CommandFailed,
    Conflict,
    Corrupted,
    CycleDetected,
    DefinitionError,
    EncryptionError,
    ExecutionError,
    FileRefused,
    FormatTooNew,
    InvalidAnswer,
    InvalidRequest,
    InvalidUpdate,
    KeyNotFound,
    MaxStepsExceeded,
    MilecastleError,
    NodeTimeout,
    NoKeyring,
    NoObjects,
    NotAsked,
    Place,
    PlaintextRefused,
    Problem,
    ProcessLost,
    RecoveryError,
    ResumeRefused,
    RoutingError,
    RunCancelled,
    RunError,
    RunFailed,
    RunInProgress,
    RunTimeout,
    ShardMoved,
    StoreError,
    ThreadNotFound,
    Unavailable,
    UnserializableState,
    UntrustedFile,
)
from milecastle.graph.messages import MessagesState, messages, upsert
from milecastle.graph.sending import Command, Send
from milecastle.graph.structure import CompiledGraph
from milecastle.model.checkpoint import Checkpoint, CheckpointMetadata
from milecastle.model.event import Event
from milecastle.model.file import File
from milecastle.model.interrupt import Interrupt
from milecastle.model.keys import ThreadKey
from milecastle.model.manifest import END, START, Manifest
from milecastle.model.policies import (
    CheckpointConfig,
    ExecutionConfig,
    ExecutionOptions,
    Ray,
    Retry,
    Timeout,
)
from milecastle.model.reducers import (
    add,
    append,
    initial,
    last,
    maximum,
    merge,
    minimum,
    renamed_from,
    union,
)
from milecastle.model.removal import REMOVE_ALL, Remove
from milecastle.model.run import Failure, Owner, RunRecord, Segment, TaskFailure, ThreadInfo
from milecastle.model.task import Origin
from milecastle.observers.registry import register_observer
from milecastle.ports.files import FileReader, StoredFiles
from milecastle.ports.observer import Observer, TaskObserver, TracingObserver
from milecastle.ports.store import Store
from milecastle.stores.opening import register_store
from milecastle.support.migration_hints import refuse_import
from milecastle.version import __version__

__all__ = [
    "END",
    "REMOVE_ALL",
    "START",
    "AlreadyAnswered",
    "App",
    "AttemptsExhausted",
    "Change",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointMetadata",
    "CheckpointStore",
    "CodecError",
    "Command",
    "CommandFailed",
    "Compatibility",
    "CompiledGraph",
    "Conflict",
    "Context",
    "CopyReport",
    "Corrupted",
    "CycleDetected",
    "DefinitionError",
    "EncryptionError",
    "ErasureReport",
    "Event",
    "ExecutionConfig",
    "ExecutionError",
    "ExecutionOptions",
    "Failure",
    "File",
    "FileReader",
    "FileRefused",
    "FormatTooNew",
    "Handle",
    "Interrupt",
    "InvalidAnswer",
    "InvalidRequest",
    "InvalidUpdate",
    "KeptMore",
    "KeyNotFound",
    "Keyring",
    "Manifest",
    "MaxStepsExceeded",
    "MessagesState",
    "MilecastleError",
    "NoKeyring",
    "NoObjects",
    "NodeTimeout",
    "NodeTrace",
    "NotAsked",
    "Observer",
    "Origin",
    "Owner",
    "Place",
    "PlaintextRefused",
    "Problem",
    "ProcessLost",
    "Ray",
    "RecoveryError",
    "Remove",
    "Result",
    "ResumeRefused",
    "Retention",
    "RetentionReport",
    "Retry",
    "RoutingError",
    "RunCancelled",
    "RunError",
    "RunFailed",
    "RunInProgress",
    "RunRecord",
    "RunTimeout",
    "RunTrace",
    "Schedules",
    "Segment",
    "Send",
    "ShardMoved",
    "Snapshot",
    "StateGraph",
    "Store",
    "StoreError",
    "StoredFiles",
    "TaskFailure",
    "TaskObserver",
    "ThreadInfo",
    "ThreadKey",
    "ThreadNotFound",
    "Timeout",
    "Trace",
    "TracingObserver",
    "Unavailable",
    "UnserializableState",
    "UntrustedFile",
    "Worker",
    "WorkerOptions",
    "__version__",
    "add",
    "append",
    "copy_threads",
    "current",
    "draw_trace",
    "initial",
    "interrupt",
    "last",
    "maximum",
    "merge",
    "messages",
    "minimum",
    "open_store",
    "read_trace",
    "register_observer",
    "register_store",
    "register_type",
    "renamed_from",
    "union",
    "upsert",
]

if TYPE_CHECKING:
    from milecastle.fleet.schedules import Schedules
    from milecastle.fleet.worker import Worker, WorkerOptions
    from milecastle.observers.trace import NodeTrace, RunTrace, Trace, draw_trace, read_trace
else:

    def __getattr__(name):
        """Import workers and what reads trace files when they are used: they need much more."""
        if name not in __all__:
            refuse_import(__name__, name)
        if name.startswith("Worker"):
            from milecastle.fleet import worker as found
        elif name == "Schedules":
            from milecastle.fleet import schedules as found
        else:
            from milecastle.observers import trace as found
        return getattr(found, name)
