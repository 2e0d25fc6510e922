"""The public names, held literally: adding or removing one is a decision, made here."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import milecastle
import milecastle.agents
import milecastle.agents.anthropic
import milecastle.agents.langchain
import milecastle.agents.mcp
import milecastle.agents.openai
import milecastle.agents.pydantic_ai
import milecastle.builds
import milecastle.client
import milecastle.integrations.langgraph
import milecastle.integrations.openai_agents
import milecastle.integrations.opentelemetry
import milecastle.integrations.pydantic_ai
import milecastle.records
import milecastle.server
import milecastle.stores
import milecastle.testing

EXPORTED: dict[str, list[str]] = {
    "milecastle": [
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
        "END",
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
        "REMOVE_ALL",
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
        "START",
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
    ],
    "milecastle.records": [
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
    ],
    "milecastle.stores": [
        "Archive",
        "Batch",
        "Bucket",
        "BucketLevel",
        "BucketTake",
        "Buckets",
        "Capabilities",
        "Cells",
        "Chain",
        "Check",
        "ClaimStore",
        "Consumed",
        "DELTA",
        "Debounce",
        "Entry",
        "Failure",
        "Feed",
        "Finding",
        "FleetReader",
        "HOLDING",
        "INPUTS",
        "Inspected",
        "JsonlStore",
        "LaneDepth",
        "Limit",
        "Listening",
        "Mailbox",
        "MailboxReader",
        "Maintenance",
        "Marks",
        "MemoryItems",
        "MemoryStore",
        "MemoryWrite",
        "NewRun",
        "ObjectStorage",
        "Opened",
        "Owner",
        "Page",
        "Pending",
        "PostgresStore",
        "ROLLUP",
        "Repaired",
        "Replica",
        "RunRecord",
        "SNAPSHOT",
        "Sent",
        "ShardedStore",
        "SqliteStore",
        "Store",
        "StoreReader",
        "StoredItem",
        "StoredMessage",
        "SweepReport",
        "TagChange",
        "Tags",
        "TaskResult",
        "ThreadInfo",
        "ThreadKey",
        "Turn",
        "Unopened",
        "WaitingTurn",
        "WorkerInfo",
        "checks_keys",
        "dated",
        "finding_of",
        "inspect_listed",
        "page_of",
        "place_after",
        "place_text",
    ],
    "milecastle.testing": [
        "BucketContract",
        "ClaimContract",
        "Clock",
        "CrashMismatch",
        "CrashPoint",
        "CrashReport",
        "Crashed",
        "FailingStore",
        "MailboxContract",
        "ManualClock",
        "MemoryContract",
        "Mismatch",
        "Races",
        "RunTask",
        "Simulator",
        "StoreContract",
        "TornStore",
        "UNANSWERED",
        "Volatile",
        "Witness",
        "WrappedStore",
        "crash_everywhere",
        "race_in_tasks",
        "race_in_threads",
        "with_store",
    ],
    "milecastle.builds": [
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
    ],
    "milecastle.agents": [
        "AgentState",
        "Budget",
        "Grant",
        "Handoff",
        "Role",
        "Subagent",
        "Tool",
        "ToolDecision",
        "agent",
        "closed",
        "tool",
    ],
    "milecastle.client": [
        "AskedQuestion",
        "AsyncClient",
        "CheckpointInfo",
        "Client",
        "ClientEvent",
        "RunResult",
        "SentMessage",
        "SubmittedRun",
        "ThreadSnapshot",
        "ThreadSummary",
        "WaitingThread",
    ],
    "milecastle.agents.anthropic": ["chat"],
    "milecastle.agents.langchain": ["chat"],
    "milecastle.agents.mcp": ["mcp_tools"],
    "milecastle.agents.openai": ["chat"],
    "milecastle.agents.pydantic_ai": ["chat"],
    "milecastle.integrations.langgraph": ["MilecastleSaver", "MilecastleStore"],
    "milecastle.server": [
        "AnswerTo",
        "Identity",
        "InboundHook",
        "Mountable",
        "Oidc",
        "SendTo",
        "SubmitTo",
        "asgi",
        "hook",
        "problem_for",
        "standard_webhooks",
    ],
    "milecastle.integrations.opentelemetry": ["OpenTelemetryObserver"],
    "milecastle.integrations.pydantic_ai": ["MilecastleDurability"],
    "milecastle.integrations.openai_agents": [
        "RecordedModel",
        "RunStates",
        "ThreadSession",
        "record_tool",
    ],
}

PUBLIC: list[ModuleType] = [
    milecastle,
    milecastle.records,
    milecastle.stores,
    milecastle.testing,
    milecastle.builds,
    milecastle.agents,
    milecastle.client,
    milecastle.agents.anthropic,
    milecastle.agents.langchain,
    milecastle.agents.mcp,
    milecastle.agents.openai,
    milecastle.agents.pydantic_ai,
    milecastle.integrations.langgraph,
    milecastle.server,
    milecastle.integrations.opentelemetry,
    milecastle.integrations.pydantic_ai,
    milecastle.integrations.openai_agents,
]


@pytest.mark.parametrize("module", PUBLIC, ids=lambda m: m.__name__)
def test_the_exported_names_are_these(module: ModuleType) -> None:
    """Of all public modules. Broken on purpose: a name added to one of them."""
    assert sorted(module.__all__) == EXPORTED[module.__name__]


@pytest.mark.parametrize("module", PUBLIC, ids=lambda m: m.__name__)
def test_every_exported_name_is_there(module: ModuleType) -> None:
    names: list[str] = module.__all__
    assert len(set(names)) == len(names)
    assert [name for name in names if not hasattr(module, name)] == []


@pytest.mark.parametrize("name", ["Asked", "Session", "Task", "Trace", "Entry", "Checkpoint"])
def test_a_word_of_the_domain_names_one_class(name: str) -> None:
    """Broken on purpose: ``BuildSession`` called ``Session`` again."""
    source = Path(milecastle.__file__).parent
    found = [
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if re.search(rf"^class {name}\b", path.read_text("utf-8"), re.MULTILINE)
    ]
    assert len(found) <= 1, found


def own_doc(thing: object, name: str) -> str:
    """Return the docstring written for a class or function; those that Python makes up are none."""
    if not inspect.isclass(thing):
        return inspect.getdoc(thing) or ""
    doc = vars(thing).get("__doc__") or ""
    return "" if doc.startswith(f"{name}(") else doc  # a dataclass repeats its signature


def methods(owner: type) -> Iterator[tuple[str, object]]:
    """Yield the public methods and properties that a class of ours has, inherited ones too."""
    for base in owner.__mro__:
        if base.__module__.partition(".")[0] == "milecastle":
            for name, member in vars(base).items():
                if not name.startswith("_") and is_code(member):
                    yield f"{base.__qualname__}.{name}", getattr(owner, name)


def is_code(member: object) -> bool:
    return isinstance(member, property | classmethod | staticmethod) or inspect.isroutine(member)


def undocumented(module: ModuleType) -> list[str]:
    """Return the public names of a module, and their public methods, that lack a docstring."""
    found: set[str] = set()
    for name in module.__all__:
        thing = getattr(module, name)
        if not inspect.isclass(thing):
            if inspect.isroutine(thing) and not own_doc(thing, name):
                found.add(name)
            continue
        if not own_doc(thing, name):
            found.add(name)
        found |= {path for path, member in methods(thing) if not is_documented(path, member)}
    return sorted(found)


def is_documented(path: str, member: object) -> bool:
    """By itself, by a base class, by a port that it implements, or by a sentence as its name."""
    name = path.rpartition(".")[2]
    ports = [
        item for item in vars(milecastle.stores).values() if getattr(item, "_is_protocol", False)
    ]
    return (
        bool(inspect.getdoc(member))
        or name.startswith("test_")
        or any(inspect.getdoc(getattr(port, name)) for port in ports if hasattr(port, name))
    )


@pytest.mark.parametrize("module", PUBLIC, ids=lambda m: m.__name__)
def test_every_public_name_has_a_docstring(module: ModuleType) -> None:
    assert (module.__doc__ or "").strip()
    assert undocumented(module) == []


def test_a_missing_docstring_is_reported() -> None:
    class Bare:
        def method(self) -> None: ...

        @property
        def value(self) -> int:
            """Documented."""
            return 1

    def bare() -> None: ...

    Bare.__module__ = "milecastle.made_up"
    Bare.__qualname__ = "Bare"
    module = ModuleType("made_up")
    vars(module).update(Bare=Bare, bare=bare, __all__=["Bare", "bare"])
    assert undocumented(module) == ["Bare", "Bare.method", "bare"]
