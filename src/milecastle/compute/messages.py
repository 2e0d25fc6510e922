"""Messages between the process driving a run and one running its tasks.

Everything is data: values are bytes of the graph's codec, the rest is msgpack. Nothing is
pickled, and nothing received is imported or called.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import msgspec.msgpack

from milecastle.codec.deltas import LogCodec
from milecastle.codec.plain import is_plain
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.compute.finding import Reference
from milecastle.engine.pauses import Paused
from milecastle.graph.structure import CompiledGraph
from milecastle.model.interrupt import Interrupt
from milecastle.model.keys import ThreadKey
from milecastle.model.task import RunFacts, TaskFacts
from milecastle.support.prepared import prepared


class TaskMessage(msgspec.Struct, array_like=True, tag=True, frozen=True): ...


class Enter(TaskMessage, frozen=True):
    run: int
    reference: Reference
    fingerprint: str
    path: tuple[str, ...]
    run_id: str
    thread: ThreadKey | None
    config: bytes


class SharedValues(TaskMessage, frozen=True):
    """Values shared by a step's tasks. Replaces the run's last ones."""

    run: int
    number: int
    body: bytes


class TaskSent(TaskMessage, frozen=True):
    """A task: run a node with a base's values, changed by ``body`` and without some keys."""

    ticket: int
    run: int
    node: str
    id: str
    step: int
    attempt: int
    body: bytes
    without: tuple[str, ...]
    facts: TaskFacts | None
    call: str = ""


class Cancel(TaskMessage, frozen=True):
    ticket: int


class ReturnTasks(TaskMessage, frozen=True):
    tickets: tuple[int, ...]


class Forget(TaskMessage, frozen=True):
    run: int


class EndProcess(TaskMessage, frozen=True): ...


class Raised(msgspec.Struct, array_like=True, frozen=True):
    module: str
    name: str
    text: str
    arguments: tuple[Any, ...] | None
    attributes: dict[str, Any]
    trace: str
    paused: tuple[str, Interrupt | None, int | None, tuple[tuple[str, int], ...]] | None = None


class AskReply(TaskMessage, frozen=True):
    number: int
    body: bytes | None = None
    raised: Raised | None = None


class Ready(TaskMessage, frozen=True): ...


class Began(TaskMessage, frozen=True):
    ticket: int


class TasksReturned(TaskMessage, frozen=True):
    tickets: tuple[int, ...]


class Done(TaskMessage, frozen=True):
    """A task ended. ``refused`` says its result cannot be used, or it could not run.

    Neither body nor error means it was cancelled before it started.
    """

    ticket: int
    body: bytes | None = None
    raised: Raised | None = None
    refused: bool = False
    seconds: float = 0.0


class Ask(TaskMessage, frozen=True):
    number: int
    ticket: int
    name: str
    arguments: bytes


ToTasks = Enter | SharedValues | TaskSent | Cancel | ReturnTasks | Forget | AskReply | EndProcess
FromTasks = Ready | Began | Done | TasksReturned | Ask


@prepared
class _ToFrame(msgspec.Struct, array_like=True):
    messages: list[ToTasks]


@prepared
class _FromFrame(msgspec.Struct, array_like=True):
    messages: list[FromTasks]


_encode = msgspec.msgpack.Encoder().encode
_decode_to = msgspec.msgpack.Decoder(_ToFrame).decode
_decode_from = msgspec.msgpack.Decoder(_FromFrame).decode


def encode(messages: Sequence[ToTasks | FromTasks]) -> bytes:
    return _encode((messages,))


def decode_to_tasks(data: bytes) -> list[ToTasks]:
    return _decode_to(data).messages


def decode_from_tasks(data: bytes) -> list[FromTasks]:
    return _decode_from(data).messages


class GraphValues:
    """One graph's values as bytes, by its state's codec; ``root`` declares the config's type."""

    def __init__(self, graph: CompiledGraph, root: CompiledGraph | None = None) -> None:
        annotations = [*graph.annotations, root.config_type if root else None]
        codec = LogCodec(ValueCodec(TypeRegistry.for_annotations(annotations, files=True)))
        self.pack, self.unpack = codec.encode_state, codec.decode_state

    def pack_one(self, value: Any) -> bytes:
        return self.pack({"value": value})

    def unpack_one(self, body: bytes) -> Any:
        return self.unpack(body)["value"]


def subgraph_at(graph: CompiledGraph, path: tuple[str, ...]) -> CompiledGraph:
    for name in path:
        subgraph = graph.nodes[name].subgraph
        if subgraph is None:
            raise AssertionError(f"node '{name}' is not a subgraph")
        graph = subgraph.graph
    return graph


def facts_of(entered: Enter, values: GraphValues) -> RunFacts:
    config = values.unpack_one(entered.config)
    return RunFacts(entered.run_id, entered.fingerprint, entered.path, entered.thread, config)


def pack_raised(error: BaseException) -> Raised:
    kind = type(error)
    paused = None
    if isinstance(error, Paused):
        paused = (error.label, error.question, error.until, error.topics)
    text = ""
    with suppress(Exception):  # its own code
        text = str(error)
    found: Mapping[str, Any] = getattr(error, "__dict__", {})
    return Raised(
        kind.__module__,
        kind.__qualname__,
        text,
        error.args if paused is None and is_plain(list(error.args)) else None,
        {name: value for name, value in found.items() if is_plain(value)},
        "".join(traceback.format_tb(error.__traceback__)),
        paused,
    )


def unpack_raised(raised: Raised, where: str) -> BaseException:
    """The error again; for an unknown class, one with the same name.

    Its code is not called. ``where`` says where it was raised.
    """
    if raised.paused is not None:
        return Paused(*raised.paused)
    kind = _class_of(raised.module, raised.name)
    error = _made(kind, raised)
    if raised.trace:
        error.add_note(f"raised {where}:\n{raised.trace.rstrip()}")
    return error


def _class_of(module: str, name: str) -> type[BaseException]:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and issubclass(found, BaseException):
        return found
    return _named(Exception, module, name, {})


def _named(
    base: type[BaseException], module: str, name: str, members: dict[str, Any]
) -> type[BaseException]:
    members = {"__module__": module, "__qualname__": name, **members}
    return type(name.rpartition(".")[2], (base,), members)


def _made(kind: type[BaseException], raised: Raised) -> BaseException:
    arguments = (raised.text,) if raised.arguments is None else raised.arguments
    with suppress(Exception):  # some need more than their arguments
        error = kind.__new__(kind, *arguments)
        error.__dict__.update(raised.attributes)
        if str(error) == raised.text:
            return error

    def said(_: BaseException) -> str:
        return raised.text

    members = {"__str__": said}
    try:
        named = _named(kind, raised.module, raised.name, members)
        error = named.__new__(named)
    except Exception:  # not even without arguments
        named = _named(Exception, raised.module, raised.name, members)
        error = named.__new__(named)
    error.args = arguments
    error.__dict__.update(raised.attributes)
    return error
