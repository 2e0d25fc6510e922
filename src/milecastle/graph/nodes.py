"""A node: the user's function, with its signature read once.

Parameters are injected by name: ``state``, ``config``, ``ctx``, ``name``. A first parameter with
any other name receives the state, so that ``def step(s)`` works, and so does ``*args`` if there
is no other place for it. A parameter with a default keeps it, unless it is called ``state``,
``config`` or ``ctx``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from milecastle.errors import Place
from milecastle.graph.functions import is_async, plain_function
from milecastle.graph.structure import PLAIN, Node, NodePolicy

if TYPE_CHECKING:
    from inspect import Parameter, Signature


INJECTED = ("state", "config", "ctx", "name")


class NotCallable(Exception):
    """This function cannot be a node; the message explains why. Never leaves ``compile()``."""

    def __init__(self, message: str, suggestion: str) -> None:
        super().__init__(message)
        self.suggestion = suggestion


def read_node(
    name: str, function: Callable[..., Any], policy: NodePolicy = PLAIN, place: Place | None = None
) -> Node:
    import inspect

    if not callable(function):
        raise NotCallable(
            f"node '{name}' is a {type(function).__name__}, not a function",
            "pass the function itself, without calling it",
        )
    target = plain_function(function)
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise NotCallable(
            f"node '{name}' is a generator; a node returns its update",
            "write return instead of yield",
        )
    parameters, leading, positional = _read_parameters(name, _signature(function))
    return Node(
        name=name,
        function=function,
        is_async=is_async(function),
        parameters=parameters,
        leading=leading,
        positional=positional,
        wants_context=any(what == "ctx" for _, what in parameters),
        simple=policy.is_simple,
        attempts=policy.attempts,
        policy=policy,
        place=place,
        is_flow=policy.flow,
    )


def _signature(function: Callable[..., Any]) -> Signature | None:
    import inspect

    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None  # some builtins have none; they take the state


def _read_parameters(
    name: str, signature: Signature | None
) -> tuple[tuple[tuple[str, str], ...], int, bool]:
    if signature is None:
        return (("state", "state"),), 1, True
    found: list[tuple[str, str]] = []
    leading = 0
    for position, parameter in enumerate(signature.parameters.values()):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        what = _injected_into(parameter, position, signature)
        if what is None and parameter.default is parameter.empty:
            raise NotCallable(
                f"node '{name}' has the parameter '{parameter.name}', which milecastle does not "
                "supply",
                f"a node may have {', '.join(INJECTED)}; give any other parameter a default",
            )
        if parameter.kind is not parameter.POSITIONAL_ONLY:
            found += [(parameter.name, what)] if what else []
        elif what and leading == position:
            found.append((parameter.name, what))
            leading += 1
    kinds = {parameter.kind.name for parameter in signature.parameters.values()}
    if kinds.isdisjoint({"POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD"}):
        found, leading = _given_to_rest(found, kinds)
    return tuple(found), leading, _takes_state_first(found, leading, signature)


def _injected_into(parameter: Parameter, position: int, signature: Signature) -> str | None:
    name, has_default = parameter.name, parameter.default is not parameter.empty
    if name in INJECTED and not (has_default and name == "name"):
        return name
    is_first = position == 0 and not has_default
    return "state" if is_first and "state" not in signature.parameters else None


def _given_to_rest(
    found: list[tuple[str, str]], kinds: set[str]
) -> tuple[list[tuple[str, str]], int]:
    if any(what == "state" for _, what in found):
        return found, 0
    if "VAR_POSITIONAL" in kinds:
        return [("state", "state"), *found], 1
    return ([*found, ("state", "state")] if "VAR_KEYWORD" in kinds else found), 0


def _takes_state_first(found: list[tuple[str, str]], leading: int, signature: Signature) -> bool:
    if [what for _, what in found] != ["state"]:
        return False
    first = next(iter(signature.parameters.values()))
    return leading == 1 or (first.name == found[0][0] and first.kind is first.POSITIONAL_OR_KEYWORD)
