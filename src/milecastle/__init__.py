"""Milecastle: durable state graphs for Python.

Write functions and edges. Each step's outcome is committed before the next step starts; whatever
dies, the run goes on from the last committed step.
"""

from milecastle.app.application import App
from milecastle.app.checkpoints import CheckpointStore, open_store
from milecastle.app.copying import CopyReport, copy_threads
from milecastle.app.difference import Change
from milecastle.app.erasure import ErasureReport
from milecastle.app.keyring import Keyring
from milecastle.app.opening import register_store
from milecastle.app.results import Result, Snapshot
from milecastle.app.retention import Retention, RetentionReport
from milecastle.app.state_graph import StateGraph
from milecastle.codec.registry import register_type
from milecastle.engine.asking import interrupt
from milecastle.engine.context import Context, Origin
from milecastle.errors import (
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
    PlaintextRefused,
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
from milecastle.graph.sending import Command, Send
from milecastle.model.checkpoint import Checkpoint, CheckpointMetadata
from milecastle.model.event import Event
from milecastle.model.interrupt import Interrupt
from milecastle.model.keys import ThreadKey
from milecastle.model.manifest import END, START
from milecastle.model.policies import (
    CheckpointConfig,
    ExecutionConfig,
    ExecutionOptions,
    Retry,
    Timeout,
)
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
    "AttemptsExhausted",
    "Change",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointMetadata",
    "CheckpointStore",
    "CodecError",
    "Command",
    "CommandFailed",
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
    "FileRefused",
    "FormatTooNew",
    "Interrupt",
    "InvalidAnswer",
    "InvalidRequest",
    "InvalidUpdate",
    "KeyNotFound",
    "Keyring",
    "MaxStepsExceeded",
    "MilecastleError",
    "NoKeyring",
    "NodeTimeout",
    "Observer",
    "Origin",
    "PlaintextRefused",
    "Problem",
    "RecoveryError",
    "Result",
    "ResumeRefused",
    "Retention",
    "RetentionReport",
    "Retry",
    "RoutingError",
    "RunCancelled",
    "RunError",
    "RunRecord",
    "RunTimeout",
    "Send",
    "Snapshot",
    "StateGraph",
    "Store",
    "StoreError",
    "ThreadKey",
    "Timeout",
    "Unavailable",
    "UnserializableState",
    "UntrustedFile",
    "__version__",
    "add",
    "append",
    "copy_threads",
    "interrupt",
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
