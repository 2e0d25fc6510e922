"""Every exception that Milecastle raises.

::

    MilecastleError
    |-- DefinitionError            MC100  the graph is wrong; .problems lists everything at once
    |-- RunError
    |   |-- ExecutionError         MC201  a node failed
    |   |-- MaxStepsExceeded       MC202  the step limit was reached
    |   |-- CycleDetected          MC203  a node came back and nothing had changed
    |   |-- NodeTimeout            MC204  a node took longer than it may
    |   |-- RunTimeout             MC205  the whole run took longer than it may
    |   |-- RunCancelled           MC206  the run was asked to stop
    |   |-- InvalidUpdate          MC207  a node returned something that is not an update
    |   |-- RoutingError           MC208  no edge, or an undeclared one, leads on from a node
    |   |-- AttemptsExhausted      MC209  a node was tried as often as it may
    |   |-- CommandFailed          MC220  a command ended badly
    |   `-- FileRefused            MC221  a declared file is missing, or may not be used
    |-- RecoveryError
    |   |-- ResumeRefused          MC301  the thread does not fit this graph, or cannot go on
    |   `-- InvalidRequest         MC302  the call names something that is not there
    |       `-- InvalidAnswer      MC303  an answer that the question does not take
    |-- StoreError
    |   |-- Conflict               MC401  another writer appended first
    |   |-- Corrupted              MC402  stored bytes are damaged
    |   |-- Unavailable            MC403  the store cannot be reached
    |   `-- FormatTooNew           MC404  written by a newer version
    `-- CodecError                 MC500  bytes that cannot be decoded
        |-- UnserializableState    MC501  a value that cannot be stored
        |-- UntrustedFile          MC502  a file that will not be opened
        `-- EncryptionError        MC503  encrypted bytes that do not open
            |-- NoKeyring          MC504  it is encrypted, and no keyring was given
            |-- KeyNotFound        MC505  the key that it needs is not there
            `-- PlaintextRefused   MC506  it is not encrypted, and must be

Rules:

- A message says what happened, to which thread, run and node, and what to do.
- Values of the state never appear in a message; paths and types do.
- Data is in attributes, and every error survives pickling.
"""

from milecastle.errors.coding import (
    CodecError,
    EncryptionError,
    KeyNotFound,
    NoKeyring,
    PlaintextRefused,
    UnserializableState,
    UntrustedFile,
)
from milecastle.errors.recovering import (
    InvalidAnswer,
    InvalidRequest,
    RecoveryError,
    ResumeRefused,
)
from milecastle.errors.root import (
    DefinitionError,
    MilecastleError,
)
from milecastle.errors.running import (
    AttemptsExhausted,
    CommandFailed,
    CycleDetected,
    ExecutionError,
    FileRefused,
    InvalidUpdate,
    MaxStepsExceeded,
    NodeTimeout,
    RoutingError,
    RunCancelled,
    RunError,
    RunTimeout,
)
from milecastle.errors.storing import (
    Conflict,
    Corrupted,
    FormatTooNew,
    StoreError,
    Unavailable,
)

__all__ = [
    "AttemptsExhausted",
    "CodecError",
    "CommandFailed",
    "Conflict",
    "Corrupted",
    "CycleDetected",
    "DefinitionError",
    "EncryptionError",
    "ExecutionError",
    "FileRefused",
    "FormatTooNew",
    "InvalidAnswer",
    "InvalidRequest",
    "InvalidUpdate",
    "KeyNotFound",
    "MaxStepsExceeded",
    "MilecastleError",
    "NoKeyring",
    "NodeTimeout",
    "PlaintextRefused",
    "RecoveryError",
    "ResumeRefused",
    "RoutingError",
    "RunCancelled",
    "RunError",
    "RunTimeout",
    "StoreError",
    "Unavailable",
    "UnserializableState",
    "UntrustedFile",
]
