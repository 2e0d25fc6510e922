"""Mutants of a module: one small change each, inside the body of a function.

The operators are the usual ones of mutmut and cosmic-ray, and the deletion of a statement.
Left out: annotations, decorators, defaults, docstrings, f-strings and texts with a space (wording),
the arguments of ``raise``, asserts, ``__repr__`` and ``__str__``, log calls, ``TYPE_CHECKING``, and
code that runs at import.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "type_params", "args", "msg"}
SKIPPED_CALLS = {"debug", "info", "warning", "error", "exception", "warn", "assert_never", "cast"}
SKIPPED_FUNCTIONS = {"__repr__", "__str__"}


@dataclass(frozen=True)
class Mutant:
    """A change of one node: ``setattr(parent, field, new)``, or the item ``index`` of it."""

    file: str
    lines: range
    operator: str
    before: str
    after: str
    parent: ast.AST
    field: str
    index: int | None
    new: ast.AST
    name: str

    def put(self, value: object) -> object:
        """Put a value into the tree, and return what was there."""
        if self.index is None:
            old: object = getattr(self.parent, self.field)
            setattr(self.parent, self.field, value)
        else:
            items = getattr(self.parent, self.field)
            old, items[self.index] = items[self.index], value
        return old


def mutants_of(path: Path, tree: ast.Module, name: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its text."""
    found: list[Mutant] = []
    seen: dict[str, int] = {}
    for parent, field, index, operator, new in _changes(tree):
        old: object = getattr(parent, field) if index is None else getattr(parent, field)[index]
        shown = old if isinstance(old, ast.expr | ast.stmt) else parent
        first, last = vars(shown)["lineno"], vars(shown)["end_lineno"]
        if isinstance(old, ast.stmt):
            last = first
        key = f"{name}:{first}:{operator}"
        seen[key] = seen.get(key, 0) + 1
        mutant = Mutant(
            file=str(path),
            lines=range(first, last + 1),
            operator=operator,
            before=ast.unparse(shown),
            after="",
            parent=parent,
            field=field,
            index=index,
            new=new,
            name=f"{key}:{seen[key]}",
        )
        was = mutant.put(new)
        after = ast.unparse(new if shown is old else parent)
        mutant.put(was)
        found.append(replace(mutant, after=after))
    return found


Change = tuple[ast.AST, str, int | None, str, ast.AST]


def _changes(tree: ast.Module) -> Iterator[Change]:
    stack: list[tuple[ast.AST, bool]] = [(tree, False)]
    while stack:
        node, inside = stack.pop()
        if _is_left_out(node):
            continue
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if inside:
            yield from _changes_at(node)
        stack += [(child, inside) for _, _, child in reversed([*_children(node)])]


def _children(node: ast.AST) -> Iterator[tuple[str, int | None, ast.AST]]:
    for field, value in ast.iter_fields(node):
        if field in SKIPPED_FIELDS and not isinstance(node, ast.Call):
            continue
        if isinstance(value, ast.AST):
            yield field, None, value
        elif isinstance(value, list):
            for index, item in enumerate(cast("list[object]", value)):
                if isinstance(item, ast.AST):
                    yield field, index, item


def _is_left_out(node: ast.AST) -> bool:
    if isinstance(node, ast.JoinedStr | ast.Assert | ast.Raise):
        return True
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        decorators = {ast.unparse(each) for each in node.decorator_list}
        return node.name in SKIPPED_FUNCTIONS or "overload" in decorators
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).rpartition(".")[2] in SKIPPED_CALLS
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _changes_at(node: ast.AST) -> Iterator[Change]:
    """The changes whose place is a field of this node."""
    if isinstance(node, ast.Compare):
        for index, old in enumerate(node.ops):
            yield node, "ops", index, "comparison", COMPARISONS[type(old)]()
    if isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield node, "op", None, "and-or", other
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in ARITHMETIC:
        yield node, "op", None, "arithmetic", ARITHMETIC[type(node.op)]()
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield from _negated(node, "test", None, node.test)
    if isinstance(node, ast.comprehension):
        for index, test in enumerate(node.ifs):
            yield from _negated(node, "ifs", index, test)
    if isinstance(node, ast.For):
        empty = ast.copy_location(ast.Tuple(elts=[], ctx=ast.Load()), node.iter)
        yield node, "iter", None, "no-iteration", empty
    if isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        new = ast.copy_location(ast.Constant(value=None), node.value)
        yield node, "value", None, "return-none", new
    for field, at, child in _children(node):
        if found := _replacement(child):
            yield node, field, at, *found


def _negated(node: ast.AST, field: str, index: int | None, test: ast.expr) -> Iterator[Change]:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield node, field, index, "not", test.operand
    elif not isinstance(test, ast.Compare | ast.Constant):
        new = ast.copy_location(ast.UnaryOp(op=ast.Not(), operand=test), test)
        yield node, field, index, "not", new


def _replacement(child: ast.AST) -> tuple[str, ast.AST] | None:
    """What may be put into the place of a node."""
    if isinstance(child, ast.Break):
        found: tuple[str, ast.AST] = "break-continue", ast.Continue()
    elif isinstance(child, ast.Continue):
        found = "break-continue", ast.Break()
    elif isinstance(child, ast.stmt) and _is_deletable(child):
        found = "delete", ast.Pass()
    elif isinstance(child, ast.Constant) and (other := _other_value(child.value)):
        found = other
    else:
        return None
    return found[0], ast.copy_location(found[1], child)


def _is_deletable(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        if isinstance(statement.value, ast.Call) and _is_left_out(statement.value):
            return False
        return not isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Assign):
        return all(isinstance(each, ast.Attribute | ast.Subscript) for each in statement.targets)
    return isinstance(statement, ast.Raise | ast.AugAssign | ast.Delete)


def _other_value(value: object) -> tuple[str, ast.Constant] | None:
    if isinstance(value, bool):
        return "constant", ast.Constant(value=not value)
    if isinstance(value, int | float):
        return "number", ast.Constant(value=value + 1)
    if isinstance(value, str) and " " not in value:
        return "string", ast.Constant(value=value + "XX")
    if isinstance(value, bytes):
        return "string", ast.Constant(value=value + b"XX")
    return None


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None
