"""Where a router leads: as declared, else as its annotation says, else as its source shows."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, Literal, get_args, get_origin

import msgspec.structs

from milecastle.graph.edges import Router
from milecastle.graph.nodes import plain_function
from milecastle.graph.sending import Command
from milecastle.graph.source import Returned
from milecastle.graph.types import is_union, unfolded

__all__ = ["goto_of", "with_targets"]


def with_targets(router: Router, returned: Returned, local_names: Mapping[str, Any]) -> Router:
    """The router with all that can be told of its targets; they stay empty if nothing can."""
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
    return msgspec.structs.replace(router, targets=targets, together=tuple(together))


def goto_of(function: Any, local_names: Mapping[str, Any]) -> tuple[str, ...]:
    """Where the ``Command`` of a node may lead, by its annotation: ``Command[Literal[...]]``."""
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
    """The return annotation, resolved without the others: those may be harder to resolve."""
    plain = plain_function(function)
    annotations: dict[str, Any] = getattr(plain, "__annotations__", {})
    holder: Any = SimpleNamespace(__annotations__={"return": annotations.get("return")})
    names = getattr(plain, "__globals__", {})
    try:
        return typing.get_type_hints(holder, names, dict(local_names)).get("return")
    except Exception:  # annotations are code, and may raise anything
        return None


def _literals(hint: Any) -> tuple[str, ...]:
    """The names in a ``Literal``, or in lists and unions of them; none if anything else is in."""
    hint = unfolded(hint)
    origin = get_origin(hint)
    if origin is Literal:
        names = get_args(hint)
        return names if all(isinstance(name, str) for name in names) else ()
    if not is_union(origin) and not _is_list(hint):
        return ()
    parts = [_literals(part) for part in get_args(hint) if part is not ...]
    return tuple(dict.fromkeys(name for part in parts for name in part)) if all(parts) else ()


def _is_list(hint: Any) -> bool:
    """Whether a list of names may be returned."""
    hint = unfolded(hint)
    origin = get_origin(hint)
    if is_union(origin):
        return any(_is_list(part) for part in get_args(hint))
    cls = hint if origin is None else origin
    return isinstance(cls, type) and issubclass(cls, typing.Sequence) and not issubclass(cls, str)
