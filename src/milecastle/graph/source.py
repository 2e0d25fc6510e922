"""Reading a function's own source: which keys it returns, which node names a router returns.

Only literals count, and module constants as names of nodes. What cannot be told is left to the
checks at run time. Nothing here ever runs the user's code, and decorators are not looked
through: they may return something else than what they wrap.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any

import msgspec

from milecastle.graph.nodes import plain_function
from milecastle.model.problem import Place

__all__ = ["Returned", "returned_keys", "returned_names"]


class Returned(msgspec.Struct, frozen=True):
    """Literals that a function returns, each with its place. ``complete``: there is nothing else.

    ``together`` holds the names of each list that is returned. ``several`` says that there are
    lists of which not all members can be told.
    """

    names: Mapping[str, Place]
    complete: bool
    together: tuple[frozenset[str], ...] = ()
    several: bool = False


_UNKNOWN = Returned({}, complete=False)


def returned_keys(function: Callable[..., Any]) -> Returned:
    """The keys of the dicts that the function returns."""
    source = _read(function)
    if source is None:
        return _UNKNOWN
    places: dict[str, Place] = {}
    complete = True
    for value in source.returned():
        keys = value.keys if isinstance(value, ast.Dict) else [None]
        if isinstance(value, ast.Constant) and value.value is None:
            keys = []
        for key in keys:
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                places.setdefault(key.value, source.place(key))
            else:
                complete = False
    return Returned(places, complete)


def returned_names(function: Callable[..., Any]) -> Returned:
    """The strings that a router returns, alone or in a list."""
    source = _read(function)
    if source is None:
        return _UNKNOWN
    places: dict[str, Place] = {}
    together: list[frozenset[str]] = []
    complete, several = True, False
    for value in source.returned():
        is_list = isinstance(value, ast.List | ast.Tuple)
        members = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
        if isinstance(value, ast.ListComp) and isinstance(value.elt, ast.Call):
            members = [value.elt]
        names = {source.name(member): source.place(member) for member in members}
        told = None not in names
        complete = complete and told
        several = several or isinstance(value, ast.ListComp) or (is_list and not told)
        found = {name: place for name, place in names.items() if name is not None}
        places |= {name: place for name, place in found.items() if name not in places}
        if len(found) > 1:
            together.append(frozenset(found))
    return Returned(places, complete, tuple(together), several)


class _Source(msgspec.Struct, frozen=True):
    """The source of one function. Its first line is line 1 + ``offset`` of the file."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    file: str
    offset: int
    constants: Mapping[str, Any]

    def returned(self) -> Iterator[ast.expr]:
        """What the function returns, both sides of an ``a if b else c`` by themselves."""
        if isinstance(self.node, ast.Lambda):
            yield from _sides(self.node.body)
            return
        for statement in _statements(self.node):
            if isinstance(statement, ast.Return) and statement.value is not None:
                yield from _sides(statement.value)

    def name(self, value: ast.expr) -> str | None:
        """A string that is written out, or that a constant of the module holds; a ``Send``'s."""
        if isinstance(value, ast.Call) and value.args and _called(value.func) == "Send":
            return self.name(value.args[0])
        if isinstance(value, ast.Name):
            constant = self.constants.get(value.id)
            return constant if isinstance(constant, str) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value
        return None

    def place(self, value: ast.expr) -> Place:
        return Place(self.file, value.lineno + self.offset)


def _called(function: ast.expr) -> str:
    """The last part of the name of what is called."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _sides(value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(value, ast.IfExp):
        yield from _sides(value.body)
        yield from _sides(value.orelse)
    else:
        yield value


def _statements(function: ast.AST) -> Iterator[ast.AST]:
    """Everything inside a function that is not inside another one, from top to bottom."""
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            yield from _statements(child)


def _read(function: Callable[..., Any]) -> _Source | None:
    plain = plain_function(function)
    code: CodeType | None = getattr(plain, "__code__", None)
    if code is None:
        return None
    module: dict[str, Any] = getattr(plain, "__globals__", {})
    local = {*code.co_varnames, *code.co_freevars, *code.co_cellvars}
    constants = {name: value for name, value in module.items() if name not in local}
    try:
        linecache.checkcache(code.co_filename)
        lines = linecache.getlines(code.co_filename, module)
        block = inspect.getblock(lines[code.co_firstlineno - 1 :])
        indented = block[0][:1].isspace()
        tree = ast.parse("".join(["if True:\n", *block] if indented else block))
    except Exception:  # code without a file, half a statement around a lambda: nothing to read
        return None
    offset = code.co_firstlineno - (2 if indented else 1)
    found = _find(tree, code.co_name)
    return None if found is None else _Source(found, code.co_filename, offset, constants)


def _find(
    tree: ast.Module, name: str
) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | None:
    if name == "<lambda>":
        lambdas = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
        return lambdas[0] if len(lambdas) == 1 else None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return node
    return None
