"""Reading a function's own source: which keys it returns, which node names a router returns.

Only literals count, a variable holding nothing else, and module constants as node names.
Everything else is checked at run time. Nothing here ever runs the user's code, and decorators are
not looked through: they may return something other than the function they wrap.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from types import CodeType, MappingProxyType, SimpleNamespace
from typing import Any, Literal, get_args, get_origin

import msgspec
import msgspec.structs

from milecastle.errors import Place
from milecastle.graph.edges import Router
from milecastle.graph.functions import plain_function
from milecastle.graph.sending import Command, Send
from milecastle.graph.state_types import is_union, unfolded


class Returned(msgspec.Struct, frozen=True):
    """Literals a function returns, each with its place. ``complete``: there is nothing else.

    ``together`` holds the names in each returned list, ``sends`` those in a ``Send``.
    ``several`` says there are lists whose members are not all known.
    """

    names: Mapping[str, Place]
    complete: bool
    together: tuple[frozenset[str], ...] = ()
    several: bool = False
    sends: frozenset[str] = frozenset()


_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

_UNKNOWN = Returned({}, complete=False)


def returned_keys(function: Callable[..., Any]) -> Returned:
    source = _read(function)
    if source is None:
        return _UNKNOWN
    places: dict[str, Place] = {}
    complete = True
    for value in source.returned():
        for key in _keys(source.assigned(value)):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                places.setdefault(key.value, source.place(key))
            else:
                complete = False
    return Returned(places, complete)


def _keys(values: list[ast.expr]) -> Iterator[ast.expr | None]:
    for value in values:
        if isinstance(value, ast.Dict):
            yield from value.keys
        elif not (isinstance(value, ast.Constant) and value.value is None):
            yield None


def returned_names(function: Callable[..., Any]) -> Returned:
    source = _read(function)
    if source is None:
        return _UNKNOWN
    places: dict[str, Place] = {}
    together: list[frozenset[str]] = []
    sends: set[str | None] = set()
    complete, several = True, False
    for value in source.returned():
        is_list = isinstance(value, ast.List | ast.Tuple)
        members = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
        if isinstance(value, ast.ListComp) and isinstance(value.elt, ast.Call):
            members = [value.elt]
        names = {source.name(member): source.place(member) for member in members}
        sends |= {source.name(member) for member in members if isinstance(member, ast.Call)}
        told = None not in names
        complete = complete and told
        several = several or isinstance(value, ast.ListComp) or (is_list and not told)
        found = {name: place for name, place in names.items() if name is not None}
        places |= {name: place for name, place in found.items() if name not in places}
        if len(found) > 1:
            together.append(frozenset(found))
    sent = frozenset(name for name in sends if name is not None)
    return Returned(places, complete, tuple(together), several, sent)


class _Source(msgspec.Struct, frozen=True):
    node: _Function
    file: str
    offset: int
    constants: Mapping[str, Any]

    def returned(self) -> Iterator[ast.expr]:
        if isinstance(self.node, ast.Lambda):
            yield from _sides(self.node.body)
            return
        for statement in _statements(self.node):
            if isinstance(statement, ast.Return) and statement.value is not None:
                yield from _sides(statement.value)

    def assigned(self, value: ast.expr) -> list[ast.expr]:
        if not isinstance(value, ast.Name):
            return [value]
        nodes = [node for node in ast.walk(self.node) if not isinstance(node, ast.Return)]
        uses = [node for node in nodes if isinstance(node, ast.Name) and node.id == value.id]
        held = [
            node.value
            for node in nodes
            if isinstance(node, ast.Assign | ast.AnnAssign)
            and isinstance(node.value, ast.Dict)
            and any(target in uses for target in _targets(node))
        ]
        returns = sum(1 for found in self.returned() if found in uses)
        return list(held) if held and len(uses) == len(held) + returns else [value]

    def name(self, value: ast.expr) -> str | None:
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
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _targets(assignment: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return assignment.targets if isinstance(assignment, ast.Assign) else [assignment.target]


def _sides(value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(value, ast.IfExp):
        yield from _sides(value.body)
        yield from _sides(value.orelse)
    else:
        yield value


def _statements(function: ast.AST) -> Iterator[ast.AST]:
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
    linecache.checkcache(code.co_filename)
    linecache.getlines(code.co_filename, module)
    known = linecache.cache.get(code.co_filename, (None, None))
    found = _parsed(code, code.co_filename, known[:2])
    if found is None:
        return None
    local = {*code.co_varnames, *code.co_freevars, *code.co_cellvars}
    constants = {name: value for name, value in module.items() if name not in local}
    return _Source(found[0], code.co_filename, found[1], constants)


@lru_cache(maxsize=256)
def _parsed(code: CodeType, filename: str, _: tuple[object, ...]) -> tuple[_Function, int] | None:
    """The function in its source, and its lines' offset; a closure made often is parsed once.

    The file, its size and its time are part of the key: Python compares code without them.
    """
    try:
        block = inspect.getblock(linecache.getlines(filename)[code.co_firstlineno - 1 :])
        indented = block[0][:1].isspace()
        tree = ast.parse("".join(["if True:\n", *block] if indented else block))
    except Exception:  # code without a file, half a statement around a lambda: nothing to read
        return None
    offset = code.co_firstlineno - (2 if indented else 1)
    found = _find(tree, code, offset)
    return None if found is None else (found, offset)


def _find(tree: ast.Module, code: CodeType, offset: int) -> _Function | None:
    if code.co_name == "<lambda>":
        lambdas = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
        if len(lambdas) > 1:
            begin, end = _extent(code, offset)
            around = [node for node in lambdas if _begin(node) <= begin and end <= _end(node)]
            lambdas = sorted(around, key=_begin)[-1:]
        return lambdas[0] if lambdas else None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
            return node
    return None


def _extent(code: CodeType, offset: int) -> tuple[tuple[int, int], tuple[int, int]]:
    known = [place for place in code.co_positions() if place[3]]
    begins = [(line - offset, column) for line, _, column, _ in known if line and column]
    ends = [(line - offset, column) for _, line, _, column in known if line and column]
    return min(begins, default=(0, 0)), max(ends, default=(0, 0))


def _begin(value: ast.expr) -> tuple[int, int]:
    return value.lineno, value.col_offset


def _end(value: ast.expr) -> tuple[int, int]:
    return value.end_lineno or 0, value.end_col_offset or 0


def with_targets(router: Router, returned: Returned, local_names: Mapping[str, Any]) -> Router:
    hint = _return_hint(router.function, local_names)
    targets = router.targets
    if not router.declared:
        names = _literals(hint) or (tuple(returned.names) if returned.complete else ())
        targets = MappingProxyType({name: name for name in names})
    together = [
        frozenset(targets[name] for name in names if name in targets) for names in returned.together
    ]
    if returned.several or (not returned.complete and _is_list(hint)):
        together = [frozenset(targets.values())]
    sends = frozenset(targets.values()) if _is_send(hint) else returned.sends
    return msgspec.structs.replace(router, targets=targets, together=tuple(together), sends=sends)


def goto_of(function: Any, local_names: Mapping[str, Any]) -> tuple[str, ...]:
    hint = unfolded(_return_hint(function, local_names))
    parts = get_args(hint) if is_union(get_origin(hint)) else (hint,)
    return tuple(
        name
        for part in parts
        if get_origin(part) is Command
        for argument in get_args(part)
        for name in _literals(argument)
    )


def _return_hint(function: Any, local_names: Mapping[str, Any]) -> Any:
    plain = plain_function(function)
    annotations: dict[str, Any] = getattr(plain, "__annotations__", {})
    holder: Any = SimpleNamespace(__annotations__={"return": annotations.get("return")})
    names = getattr(plain, "__globals__", {})
    try:
        return typing.get_type_hints(holder, names, dict(local_names)).get("return")
    except Exception:  # annotations are code, and may raise anything
        return None


def _literals(hint: Any) -> tuple[str, ...]:
    """Names in a ``Literal``, or in lists and unions of such; none if anything else is in."""
    hint = unfolded(hint)
    origin = get_origin(hint)
    if origin is Literal:
        names = get_args(hint)
        return names if all(isinstance(name, str) for name in names) else ()
    if not is_union(origin) and not _is_list(hint):
        return ()
    parts = [_literals(part) for part in get_args(hint) if part is not ...]
    return tuple(dict.fromkeys(name for part in parts for name in part)) if all(parts) else ()


def _is_send(hint: Any) -> bool:
    hint = unfolded(hint)
    return hint is Send or (_is_list(hint) and get_args(hint)[:1] == (Send,))


def _is_list(hint: Any) -> bool:
    hint = unfolded(hint)
    origin = get_origin(hint)
    if is_union(origin):
        return any(_is_list(part) for part in get_args(hint))
    cls = hint if origin is None else origin
    return isinstance(cls, type) and issubclass(cls, typing.Sequence) and not issubclass(cls, str)
