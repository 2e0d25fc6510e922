"""Milecastle: durable state graphs for Python.

Write functions and edges. Each step's outcome is committed before the next step starts; after
a crash the run resumes from the last committed step.
"""

from typing import TYPE_CHECKING

from milecastle.app.application import App
from milecastle.app.checkpoints import CheckpointStore, open_store
from milecastle.app.encryption.keyring import Keyring
from milecastle.app.flow import (
    Flow,
    FlowStep,
    again,
    changed,
    first,
    flow,
    gather,
    join,
    new_id,
    now,
    receive,
    sleep,
    spawn,
    step,
)
from milecastle.app.replaying import Replay
from milecastle.app.results import Result, Snapshot
from milecastle.app.state_graph import StateGraph
from milecastle.app.upkeep.copying import copy_threads
from milecastle.app.upkeep.retention import Retention
from milecastle.codec.registry import register_type
from milecastle.engine.context import Context, current, interrupt
from milecastle.errors import (
    Conflict,
    CycleDetected,
    DefinitionError,
    ExecutionError,
    InvalidAnswer,
    InvalidRequest,
    InvalidUpdate,
    MaxStepsExceeded,
    MilecastleError,
    ResumeRefused,
    RunCancelled,
    RunFailed,
    RunInProgress,
    RunTimeout,
    StepFailed,
    StoreError,
    ThreadNotFound,
    TimedOut,
    Unavailable,
    UnserializableState,
)
from milecastle.graph.messages import MessagesState, messages, upsert
from milecastle.graph.sending import Command, Send
from milecastle.model.actor import Actor, AnswerRecord
from milecastle.model.checkpoint import Checkpoint
from milecastle.model.children import ChildResult
from milecastle.model.event import Event
from milecastle.model.file import File
from milecastle.model.keys import ThreadKey
from milecastle.model.manifest import END, START
from milecastle.model.message import Message
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
    inbox,
    initial,
    last,
    maximum,
    merge,
    minimum,
    renamed_from,
    union,
)
from milecastle.model.removal import REMOVE_ALL, Remove
from milecastle.observers.registry import register_observer
from milecastle.ports.mailbox import Sent
from milecastle.ports.observer import Observer
from milecastle.ports.store import Store
from milecastle.stores.opening import register_store
from milecastle.support.migration_hints import refuse_import
from milecastle.version import __version__

__all__ = [
    "END",
    "REMOVE_ALL",
    "START",
    "Actor",
    "AnswerRecord",
    "App",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointStore",
    "ChildResult",
    "Command",
    "Conflict",
    "Context",
    "CycleDetected",
    "DefinitionError",
    "Event",
    "ExecutionConfig",
    "ExecutionError",
    "ExecutionOptions",
    "File",
    "Flow",
    "FlowStep",
    "InvalidAnswer",
    "InvalidRequest",
    "InvalidUpdate",
    "Keyring",
    "MaxStepsExceeded",
    "Memory",
    "Message",
    "MessagesState",
    "MilecastleError",
    "Observer",
    "Ray",
    "Remove",
    "Replay",
    "Result",
    "ResumeRefused",
    "Retention",
    "Retry",
    "RunCancelled",
    "RunFailed",
    "RunInProgress",
    "RunTimeout",
    "Schedules",
    "Send",
    "Sent",
    "Snapshot",
    "StateGraph",
    "StepFailed",
    "Store",
    "StoreError",
    "ThreadKey",
    "ThreadNotFound",
    "TimedOut",
    "Timeout",
    "Unavailable",
    "UnserializableState",
    "Worker",
    "WorkerOptions",
    "__version__",
    "add",
    "again",
    "append",
    "changed",
    "copy_threads",
    "current",
    "draw_trace",
    "first",
    "flow",
    "gather",
    "inbox",
    "initial",
    "interrupt",
    "join",
    "last",
    "maximum",
    "merge",
    "messages",
    "minimum",
    "new_id",
    "now",
    "open_store",
    "read_trace",
    "receive",
    "register_observer",
    "register_store",
    "register_type",
    "renamed_from",
    "sleep",
    "spawn",
    "step",
    "union",
    "upsert",
]

if TYPE_CHECKING:
    from milecastle.app.memory import Memory
    from milecastle.fleet.schedules import Schedules
    from milecastle.fleet.worker import Worker, WorkerOptions
    from milecastle.observers.trace import draw_trace, read_trace
else:

    def __getattr__(name):
        """Import workers and trace readers on use: they need much more."""
        if name not in __all__:
            from milecastle.records import __all__ as records

            place = f"milecastle.records.{name}" if name in records else None
            refuse_import(__name__, name, place)
        if name.startswith("Worker"):
            from milecastle.fleet import worker as found
        elif name == "Schedules":
            from milecastle.fleet import schedules as found
        elif name == "Memory":
            from milecastle.app import memory as found
        else:
            from milecastle.observers import trace as found
        return getattr(found, name)
