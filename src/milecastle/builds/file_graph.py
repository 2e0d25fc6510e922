"""A graph as a file run sees it: nodes in topological order, with their inputs and outputs.

A file run must know its nodes before it starts: edges are fixed and there is no loop. Each step
runs one layer: nodes building on the same number of layers below them. A ``FileTask`` has a
node's data fixed before the run starts: versions, parameters, places.

A node's code version is a hash over its code and everything it refers to. It is
taken from the compiled code that would run, not from the source file, which may have been
edited since. Comments, layout and line numbers are not part of it.

Included: the function's code, defaults, closure and partial arguments; functions, classes and
constants it names in the user's own modules, recursively; for a library, name and version. A value
that has no stored form counts by its type if it is a module's (a logger, a lock), and is refused if
the node closes over it: ``version=`` has to say.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache, partial
from hashlib import sha256
from pathlib import Path, PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import msgspec
import msgspec.structs

from milecastle.builds.nodes import Cache, CommandNode, Files, files_of
from milecastle.builds.paths import Places, hash_bytes, inside, parts_of, problem_of
from milecastle.codec.files import files_in
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.errors import InvalidRequest, InvalidUpdate, UnserializableState
from milecastle.graph.edges import PlainEdge, exits_of, reachable
from milecastle.graph.structure import CompiledGraph, Node
from milecastle.model.keys import ThreadKey
from milecastle.model.manifest import END, START


class FileGraph(msgspec.Struct, frozen=True, kw_only=True):
    """``before`` has the direct predecessors of each node, ``makers`` who creates its inputs.

    ``upstream`` is both together: the nodes whose outputs a node's task hash covers.
    """

    graph: CompiledGraph
    layers: tuple[tuple[str, ...], ...]
    before: Mapping[str, tuple[str, ...]]
    upstream: Mapping[str, tuple[str, ...]]
    makers: Mapping[str, Mapping[str, str]]
    files: Mapping[str, Files]

    @property
    def order(self) -> Iterator[str]:
        return (name for layer in self.layers for name in layer)

    def ancestors(self, names: Iterator[str] | tuple[str, ...]) -> set[str]:
        return reachable(self.before, names)

    def layered(self, nodes: Mapping[str, Node]) -> CompiledGraph:
        edges: list[PlainEdge] = []
        last = START
        for layer in self.layers:
            edges += [PlainEdge(last, name) for name in layer]
            edges += [PlainEdge(name, END) for name in layer[1:]]
            last = layer[0]
        edges.append(PlainEdge(last, END))
        exits = exits_of((START, *nodes), edges, ())
        config = self.graph.config.replaced(max_steps=len(self.layers) + 1, cycle_detection=False)
        return msgspec.structs.replace(self.graph, nodes=nodes, exits=exits, config=config)


def read_file_graph(graph: CompiledGraph, root: Path, workspace: Path) -> FileGraph:
    found, problems = _read(graph, root, workspace)
    if problems:
        raise InvalidRequest(
            f"graph '{graph.name}' cannot run as a file graph: " + "; ".join(problems)
        )
    return found


def problems_over_files(graph: CompiledGraph, root: Path, workspace: Path) -> list[str]:
    """Reasons a graph with declared files cannot be a file run; empty if none are declared."""
    declared = [files_of(node.function) for node in graph.nodes.values()]
    if not any(one.inputs or one.outputs for one in declared if one is not None):
        return []
    return _read(graph, root, workspace)[1]


def _read(graph: CompiledGraph, root: Path, workspace: Path) -> tuple[FileGraph, list[str]]:
    problems = _problems_of_edges(graph)
    before = _before(graph)
    layers = _layers(graph, before)
    looping = set(graph.nodes) - {name for layer in layers for name in layer}
    if looping:
        names = ", ".join(sorted(map(repr, looping)))
        problems.append(f"{names} are in a loop, or after one: a file run cannot have loops")
    files = {
        name: declared
        for name, node in graph.nodes.items()
        if (declared := files_of(node.function)) is not None
    }
    made = _made(files, inside(workspace, root), problems)
    makers = {name: _makers(name, declared, made) for name, declared in files.items()}
    found = FileGraph(
        graph=graph,
        layers=layers,
        before=before,
        upstream={
            name: tuple(dict.fromkeys((*before[name], *makers.get(name, {}).values())))
            for name in graph.nodes
        },
        makers=makers,
        files=files,
    )
    return found, [*problems, *_problems_of_makers(found)]


def _problems_of_edges(graph: CompiledGraph) -> list[str]:
    sources = dict.fromkeys(edge.source for edge in graph.manifest.edges if edge.kind != "fixed")
    problems = [
        f"node '{name}' chooses what runs next, or fans out: a file run can have only fixed edges; "
        "declare a node for each item, or declare no files and use cache=, which a fan-out may have"
        for name in sources
    ]
    if graph.interrupt_before or graph.interrupt_after:
        problems.append("it has interrupts: a file run cannot wait for a person")
    return problems


def _before(graph: CompiledGraph) -> dict[str, tuple[str, ...]]:
    before: dict[str, list[str]] = {name: [] for name in graph.nodes}
    for edge in graph.manifest.edges:
        if (
            edge.target in before
            and edge.source != START
            and edge.source not in before[edge.target]
        ):
            before[edge.target].append(edge.source)
    return {name: tuple(found) for name, found in before.items()}


def _layers(
    graph: CompiledGraph, before: Mapping[str, tuple[str, ...]]
) -> tuple[tuple[str, ...], ...]:
    after: dict[str, list[str]] = {name: [] for name in graph.nodes}
    waiting: dict[str, int] = {}
    for name, sources in before.items():
        waiting[name] = len(sources)
        for source in sources:
            after[source].append(name)
    layers: list[tuple[str, ...]] = []
    ready = [name for name, count in waiting.items() if count == 0]
    while ready:
        layers.append(tuple(sorted(ready, key=graph.order.__getitem__)))
        reached: list[str] = []
        for name in ready:
            for target in after[name]:
                waiting[target] -= 1
                if waiting[target] == 0:
                    reached.append(target)
        ready = reached
    return tuple(layers)


def _made(
    files: Mapping[str, Files], workspace: tuple[str, ...] | None, problems: list[str]
) -> dict[tuple[str, ...], str]:
    made: dict[tuple[str, ...], str] = {}
    for node, declared in files.items():
        for path in declared.outputs:
            if why := problem_of(path, workspace):
                problems.append(f"the output '{path}' of node '{node}' {why}")
            other = made.setdefault(parts_of(path), node)
            if other != node:
                problems.append(f"nodes '{other}' and '{node}' both create '{path}'")
    for parts, node in made.items():
        for length in range(1, len(parts)):
            if (holder := made.get(parts[:length])) is not None:
                path, folder = "/".join(parts), "/".join(parts[:length])
                problems.append(
                    f"the output '{path}' of node '{node}' is inside '{folder}' of node '{holder}'"
                )
    return made


def _makers(node: str, declared: Files, made: Mapping[tuple[str, ...], str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in declared.inputs:
        parts = parts_of(path)
        for length in range(len(parts), 0, -1):
            maker = made.get(parts[:length])
            if maker is not None:
                found[path] = maker
                break
    return found


def _problems_of_makers(found: FileGraph) -> list[str]:
    problems: list[str] = []
    for node, makers in found.makers.items():
        ancestors: set[str] | None = None
        for path, maker in makers.items():
            if maker in found.before[node]:
                continue
            if ancestors is None:
                ancestors = found.ancestors((node,))
            if maker == node:
                problems.append(f"node '{node}' both reads and creates '{path}'")
            elif maker not in ancestors:
                problems.append(
                    f"node '{node}' reads '{path}', which node '{maker}' creates, but no path "
                    f"leads from '{maker}' to '{node}': add an edge"
                )
    return problems


_plain: Final = ValueCodec(TypeRegistry())


class FileTask(msgspec.Struct, frozen=True, kw_only=True):
    """A node declaring something. Paths come with where they are on the disk.

    ``given`` are the inputs no node makes, ``made`` those one does.
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


def prepare(found: FileGraph, places: Places, owner: ThreadKey) -> dict[str, FileTask]:
    known: dict[int, str] = {}
    base = f"{places.root}/"
    return {
        name: _task(name, declared, found, base, owner, known)
        for name, declared in found.files.items()
    }


def _task(
    name: str, declared: Files, found: FileGraph, base: str, owner: ThreadKey, known: dict[int, str]
) -> FileTask:
    node = found.graph.nodes[name]
    makers = found.makers[name]
    inputs = [(path, path if path.startswith("/") else base + path) for path in declared.inputs]
    return FileTask(
        name=name,
        upstream=found.upstream[name],
        code_version=version_of(node, declared, known),
        parameters=_parameters_of(node.function, declared, owner),
        given=tuple(pair for pair in inputs if pair[0] not in makers),
        made=tuple(pair for pair in inputs if pair[0] in makers),
        outputs=tuple((path, base + path) for path in declared.outputs),
        takes_state=_takes_state(node, declared),
        cache=declared.cache,
    )


def version_of(node: Node, declared: Files, known: dict[int, str] | None = None) -> str:
    given = declared.version or node.version
    if given:
        return f"version {given}"
    function = node.function
    if not isinstance(function, CommandNode):
        return code_version(function, node.name, known)
    parts = [part for part in (function.arguments, function.update) if callable(part)]
    return " ".join(["command", *(code_version(part, node.name, known) for part in parts)])


def _parameters_of(function: Any, declared: Files, owner: ThreadKey) -> str:
    """A node's other dependencies; the thread too, so each has its own cache entries."""
    parameters = declared.parameters
    if isinstance(function, CommandNode):
        arguments = None if callable(function.arguments) else list(function.arguments)
        parameters = [arguments, sorted(function.env.items()), parameters]
    return hash_bytes(_plain.encode([parameters, owner.tenant, owner.thread]))


def _takes_state(node: Node, declared: Files) -> bool:
    if declared.cache is not None:
        return True
    if declared.reads_state is not None:
        return declared.reads_state
    return any(what == "state" for _, what in node.parameters)


def codec_of(graph: CompiledGraph) -> ValueCodec:
    annotations = [channel.annotation for channel in graph.schema.channels.values()]
    return ValueCodec(TypeRegistry.for_annotations(annotations, files=True))


def encode_update(codec: ValueCodec, update: Mapping[str, Any] | None, node: str) -> bytes:
    """An update's bytes for the cache; ``InvalidUpdate`` if it names a file."""
    body = codec.encode(None if update is None else dict(update))
    if files_in(body):
        raise InvalidUpdate(
            f"node '{node}' declares files or a cache, and its update names a file in object "
            "storage, which may be removed before the cached update is used: store the file in a "
            "node without cache=, inputs= and outputs=",
            node=node,
        )
    return body


def digest_of(codec: ValueCodec, graph: CompiledGraph, cache: Cache | None, state: Any) -> str:
    """Digest of the state a node sees: all, or its key."""
    if cache is not None and cache.key is not None:
        return hash_bytes(codec.encode(cache.key(state)))
    given: Any = state
    values: dict[str, Any] = (
        dict(given) if isinstance(state, Mapping) else graph.schema.fields_of(given)
    )
    return hash_bytes(codec.encode({name: values[name] for name in sorted(values)}))


_DEEPEST: Final = 50


def code_version(function: Any, node: str, known: dict[int, str] | None = None) -> str:
    """The version of the code run by calling ``function``; ``node`` is for messages.

    ``known`` are versions found before, by the id of functions still there.
    """
    bound: Any = function
    if isinstance(function, partial):
        inner = code_version(bound.func, node, known)
        if not bound.args and not bound.keywords:
            return inner
        reader = _Reader(node)
        reader.add("args", bound.args, strict=True)
        reader.add("keywords", bound.keywords, strict=True)
        return sha256(f"{inner} {reader.digest.hexdigest()}".encode()).hexdigest()
    if known is not None and id(function) in known:
        return known[id(function)]
    reader = _Reader(node)
    reader.add("node", function, strict=True)
    version = reader.digest.hexdigest()
    if known is not None:
        known[id(function)] = version
    return version


class _Reader:
    def __init__(self, node: str) -> None:
        self.digest = sha256()
        self._node = node
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no id is given twice
        self._depth = 0

    def add(self, name: str, thing: Any, *, strict: bool) -> None:
        key = id(thing)
        if isinstance(thing, FunctionType | type | partial | MethodType):
            if key in self._seen:
                self._feed("again", name, str(self._seen[key]))
                return
            self._seen[key] = len(self._seen)
            self._kept.append(thing)
        self._add(name, thing, strict)

    def _add(self, name: str, thing: Any, strict: bool) -> None:
        raw: Any = thing
        match thing:
            case FunctionType():
                self._function(name, thing)
            case partial():
                self._feed("partial", name)
                self.add("func", raw.func, strict=True)
                self._value("args", raw.args, strict=True)
                self._value("keywords", raw.keywords, strict=True)
            case MethodType():
                self.add(name, thing.__func__, strict=True)
                self._value("self", thing.__self__, strict=True)
            case staticmethod() | classmethod():
                self.add(name, raw.__func__, strict=strict)
            case property():
                for part in (thing.fget, thing.fset, thing.fdel):
                    self.add(name, part, strict=False)
            case type():
                self._class(name, thing)
            case ModuleType():
                self._feed("module", name, thing.__name__, _version_of(thing.__name__))
            case BuiltinFunctionType():
                self._feed("builtin", name, thing.__qualname__)
            case _:
                self._value(name, thing, strict=strict)

    def _function(self, name: str, function: FunctionType) -> None:
        if not _is_own(function.__module__):
            self._library(name, function.__module__, function.__qualname__)
            return
        self._feed("function", name)
        self._code(function.__code__)
        self._value("defaults", function.__defaults__, strict=True)
        self._value("keywords", function.__kwdefaults__, strict=True)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for variable, cell in cells:
            try:
                self.add(variable, cell.cell_contents, strict=True)
            except ValueError:
                self._feed("empty", variable)
        names = dict.fromkeys(_names_in(function.__code__))
        for wanted in names:
            if wanted in function.__globals__:
                self._global(wanted, function.__globals__[wanted], list(names))

    def _global(self, name: str, thing: Any, names: list[str]) -> None:
        self.add(name, thing, strict=False)
        if isinstance(thing, ModuleType) and _is_own(thing.__name__):
            for wanted in names:
                if wanted in vars(thing) and not isinstance(vars(thing)[wanted], ModuleType):
                    self.add(f"{name}.{wanted}", vars(thing)[wanted], strict=False)

    def _class(self, name: str, cls: type) -> None:
        if not _is_own(cls.__module__):
            self._library(name, cls.__module__, cls.__qualname__)
            return
        self._feed("class", name, cls.__qualname__)
        for base in cls.__bases__:
            self.add("base", base, strict=False)
        for attribute, value in vars(cls).items():
            if not attribute.startswith("__") or isinstance(value, FunctionType):
                self.add(attribute, value, strict=False)

    def _code(self, code: CodeType) -> None:
        flags = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self._feed("code", *map(str, flags), *code.co_names, *code.co_varnames)
        self.digest.update(code.co_code)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._code(constant)
            else:
                self._feed("constant", repr(_ordered(constant)))

    def _value(self, name: str, value: Any, *, strict: bool) -> None:
        try:
            self._feed("value", name)
            self.digest.update(_plain.encode(value))
            return
        except UnserializableState:
            pass
        raw: Any = value
        if isinstance(value, PurePath):
            self._feed("path", str(value))
        elif isinstance(value, tuple | list):
            self._members(name, [*raw], strict)
        elif isinstance(value, dict):
            self._members(name, [*raw.keys(), *raw.values()], strict)
        elif strict:
            raise InvalidRequest(
                f"the code of node '{self._node}' refers to '{name}', of type "
                f"{type(value).__qualname__}, whose changes cannot be detected: give the node a "
                "version="
            )
        else:
            self._feed("object", type(value).__module__, type(value).__qualname__)

    def _members(self, name: str, members: list[Any], strict: bool) -> None:
        if self._depth > _DEEPEST:
            self._feed("deep", name)
            return
        self._depth += 1
        for position, member in enumerate(members):
            self.add(f"{name}[{position}]", member, strict=strict)
        self._depth -= 1

    def _library(self, name: str, module: str | None, qualname: str) -> None:
        self._feed("library", name, module or "", qualname, _version_of(module))

    def _feed(self, *words: str) -> None:
        for word in words:
            data = word.encode("utf-8", "surrogatepass")
            self.digest.update(b"%d:" % len(data))
            self.digest.update(data)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _ordered(constant: Any) -> Any:
    members: Any = constant
    if isinstance(constant, frozenset):
        return sorted(map(repr, members))
    if isinstance(constant, tuple):
        return [_ordered(member) for member in members]
    return constant


@cache
def _is_own(module: str | None) -> bool:
    name = module or ""
    if name.partition(".")[0] in (*sys.stdlib_module_names, "milecastle") and name != "__main__":
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        return True
    paths = sysconfig.get_paths()
    libraries = tuple(paths[key] for key in ("purelib", "platlib", "stdlib", "platstdlib"))
    return not file.startswith(libraries)


def _version_of(module: str | None) -> str:
    top = sys.modules.get((module or "").partition(".")[0])
    return str(getattr(top, "__version__", ""))
