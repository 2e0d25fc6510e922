"""Milecastle: durable state graphs for Python.

Write functions and edges. Each step's outcome is committed before the next step starts; whatever
dies, the run goes on from the last committed step.
"""

from milecastle.app.application import App
from milecastle.app.checkpoints import CheckpointStore, open_store
from milecastle.app.copying import CopyReport, copy_threads
from milecastle.app.difference import Change
from milecastle.app.erasure import ErasureReport
from milecastle.app.opening import register_store
from milecastle.app.results import Result, Snapshot
from milecastle.app.retention import Retention, RetentionReport
from milecastle.app.state_graph import StateGraph
from milecastle.codec.registry import register_type
from milecastle.engine.context import Context, Origin
from milecastle.errors import (
    CodecError,
    Conflict,
    Corrupted,
    CycleDetected,
    DefinitionError,
    ExecutionError,
    FormatTooNew,
    InvalidRequest,
    InvalidUpdate,
    MaxStepsExceeded,
    MilecastleError,
    NodeTimeout,
    RecoveryError,
    ResumeRefused,
    RoutingError,
    RunCancelled,
    RunError,
    RunTimeout,
    StoreError,
    Unavailable,
    UnserializableState,
    UntrustedFile,
)
from milecastle.graph.reducers import add, append, last, maximum, merge, minimum, union
from milecastle.model.checkpoint import Checkpoint, CheckpointMetadata
from milecastle.model.event import Event
from milecastle.model.keys import ThreadKey
from milecastle.model.manifest import END, START
from milecastle.model.policies import CheckpointConfig, ExecutionConfig, ExecutionOptions
from milecastle.model.problem import Problem
from milecastle.model.run import RunRecord
from milecastle.observers.registry import register_observer
from milecastle.ports.observer import Observer
from milecastle.ports.store import Store
from milecastle.version import __version__

__all__ = [
    "END",
    "START",
    "App",
    "Change",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointMetadata",
    "CheckpointStore",
    "CodecError",
    "Conflict",
    "Context",
    "CopyReport",
    "Corrupted",
    "CycleDetected",
    "DefinitionError",
    "ErasureReport",
    "Event",
    "ExecutionConfig",
    "ExecutionError",
    "ExecutionOptions",
    "FormatTooNew",
    "InvalidRequest",
    "InvalidUpdate",
    "MaxStepsExceeded",
    "MilecastleError",
    "NodeTimeout",
    "Observer",
    "Origin",
    "Problem",
    "RecoveryError",
    "Result",
    "ResumeRefused",
    "Retention",
    "RetentionReport",
    "RoutingError",
    "RunCancelled",
    "RunError",
    "RunRecord",
    "RunTimeout",
    "Snapshot",
    "StateGraph",
    "Store",
    "StoreError",
    "ThreadKey",
    "Unavailable",
    "UnserializableState",
    "UntrustedFile",
    "__version__",
    "add",
    "append",
    "copy_threads",
    "last",
    "maximum",
    "merge",
    "minimum",
    "open_store",
    "register_observer",
    "register_store",
    "register_type",
    "union",
]
