"""The code version of a node: a hash of its code and of what that code refers to.

It is taken from the compiled code that would run, not from the source file, which may have been
edited since. Comments, layout and line numbers are not part of it.

What counts: the function's code, defaults, what it closes over and what a partial binds;
functions, classes and constants of the user's own modules that it names, and what those name in
turn; of a library, the name and version. A value that has no stored form counts by its type if it
is a module's (a logger, a lock), and is refused if the node closes over it: ``version=`` has to
say.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from functools import cache, partial
from hashlib import sha256
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.errors import InvalidRequest, UnserializableState

_codec: Final = ValueCodec(TypeRegistry())
_DEEPEST: Final = 50


def code_version(function: Any, node: str, known: dict[int, str] | None = None) -> str:
    """The version of what runs when ``function`` is called; ``node`` is for messages.

    ``known`` are versions found before, by the id of functions that are still there.
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
    """Adds everything that it finds, once each, to one hash."""

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
        """A name of the module; of a module of the user's own, what is named besides."""
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
            self.digest.update(_codec.encode(value))
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
    """A constant in a form whose text is the same in every process."""
    members: Any = constant
    if isinstance(constant, frozenset):
        return sorted(map(repr, members))
    if isinstance(constant, tuple):
        return [_ordered(member) for member in members]
    return constant


@cache
def _is_own(module: str | None) -> bool:
    """Whether a module is the user's own: neither of the standard library nor installed."""
    name = module or ""
    if name.partition(".")[0] in (*sys.stdlib_module_names, "milecastle") and name != "__main__":
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        return True
    return not any(file.startswith(folder) for folder in _library_folders())


@cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(paths[key] for key in ("purelib", "platlib", "stdlib", "platstdlib"))


def _version_of(module: str | None) -> str:
    top = sys.modules.get((module or "").partition(".")[0])
    return str(getattr(top, "__version__", ""))
