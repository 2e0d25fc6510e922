"""The public names, held literally: adding or removing one is a decision, made here."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType

import pytest

import milecastle
import milecastle.testing

EXPORTED: list[str] = [
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
    "END",
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
    "START",
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


def test_the_exported_names_are_these() -> None:
    assert sorted(milecastle.__all__) == EXPORTED


@pytest.mark.parametrize("module", [milecastle, milecastle.testing], ids=lambda m: m.__name__)
def test_every_exported_name_is_there(module: ModuleType) -> None:
    names: list[str] = module.__all__
    assert len(set(names)) == len(names)
    assert [name for name in names if not hasattr(module, name)] == []


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
        found |= {path for path, member in methods(thing) if not inspect.getdoc(member)}
    return sorted(found)


@pytest.mark.parametrize("module", [milecastle, milecastle.testing], ids=lambda m: m.__name__)
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
