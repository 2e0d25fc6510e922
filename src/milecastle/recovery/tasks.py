"""What is fixed about each node of a file run before it starts: versions, parameters, places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.graph.compiled import CompiledGraph
from milecastle.graph.nodes import Node
from milecastle.recovery.code_version import code_version
from milecastle.recovery.commands import CommandNode
from milecastle.recovery.declarations import Cache, Files
from milecastle.recovery.file_graph import FileGraph
from milecastle.recovery.hashing import hash_bytes
from milecastle.recovery.places import Places

__all__ = ["Task", "codec_of", "digest_of", "prepare", "version_of"]

_plain: Final = ValueCodec(TypeRegistry())


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A node that declares something. Paths come with where they are on the disk.

    ``given`` are the inputs that no node makes, ``made`` those that one does.
    """

    name: str
    upstream: tuple[str, ...]
    code_version: str
    parameters: str
    given: tuple[tuple[str, str], ...]
    made: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    takes_state: bool
    cache: Cache | None


def prepare(found: FileGraph, places: Places) -> dict[str, Task]:
    """Everything that is fixed about the nodes that declare something."""
    known: dict[int, str] = {}
    base = f"{places.root}/"
    return {
        name: _task(name, declared, found, base, known) for name, declared in found.files.items()
    }


def _task(name: str, declared: Files, found: FileGraph, base: str, known: dict[int, str]) -> Task:
    node = found.graph.nodes[name]
    makers = found.makers[name]
    inputs = [(path, path if path.startswith("/") else base + path) for path in declared.inputs]
    return Task(
        name=name,
        upstream=found.upstream[name],
        code_version=version_of(node, declared, known),
        parameters=_parameters_of(node.function, declared),
        given=tuple(pair for pair in inputs if pair[0] not in makers),
        made=tuple(pair for pair in inputs if pair[0] in makers),
        outputs=tuple((path, base + path) for path in declared.outputs),
        takes_state=_takes_state(node, declared),
        cache=declared.cache,
    )


def version_of(node: Node, declared: Files, known: dict[int, str] | None = None) -> str:
    """The code version of a node: the one that was declared, or that of its code."""
    given = declared.version or node.version
    if given:
        return f"version {given}"
    function = node.function
    if not isinstance(function, CommandNode):
        return code_version(function, node.name, known)
    parts = [part for part in (function.arguments, function.update) if callable(part)]
    return " ".join(["command", *(code_version(part, node.name, known) for part in parts)])


def _parameters_of(function: Any, declared: Files) -> str:
    parameters = declared.parameters
    if isinstance(function, CommandNode):
        arguments = None if callable(function.arguments) else list(function.arguments)
        parameters = [arguments, sorted(function.env.items()), parameters]
    return "" if parameters is None else hash_bytes(_plain.encode(parameters))


def _takes_state(node: Node, declared: Files) -> bool:
    if declared.cache is not None:
        return True
    if declared.reads_state is not None:
        return declared.reads_state
    return any(what == "state" for _, what in node.parameters)


def codec_of(graph: CompiledGraph) -> ValueCodec:
    """The codec of a graph's state."""
    annotations = [channel.annotation for channel in graph.schema.channels.values()]
    return ValueCodec(TypeRegistry.for_annotations(annotations))


def digest_of(codec: ValueCodec, graph: CompiledGraph, cache: Cache | None, state: Any) -> str:
    """The digest of what a node sees of the state: all of it, or what its key says."""
    if cache is not None and cache.key is not None:
        return hash_bytes(codec.encode(cache.key(state)))
    given: Any = state
    values: dict[str, Any] = (
        dict(given) if isinstance(state, Mapping) else graph.schema.fields_of(given)
    )
    return hash_bytes(codec.encode({name: values[name] for name in sorted(values)}))
