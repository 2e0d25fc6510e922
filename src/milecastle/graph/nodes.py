"""A node: the user's function, with its signature read once.

Parameters are injected by name: ``state``, ``config``, ``ctx``, ``name``. A first parameter with
any other name receives the state, so that ``def step(s)`` works, and so does ``*args`` if there
is no other place for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec

from milecastle.graph.policy import PLAIN, NodePolicy
from milecastle.model.problem import Place

if TYPE_CHECKING:
    from inspect import Signature

    from milecastle.graph.subgraphs import Subgraph

__all__ = ["Node", "NotCallable", "is_async", "name_of", "plain_function", "read_node"]

INJECTED = ("state", "config", "ctx", "name")


class NotCallable(Exception):
    """This function cannot be a node; the message says why. Never leaves ``compile()``."""

    def __init__(self, message: str, suggestion: str) -> None:
        super().__init__(message)
        self.suggestion = suggestion


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node as it is run. ``parameters`` pairs each parameter with what is injected into it.

    The first ``leading`` of them are passed by position. ``positional`` is true for the common
    case of a function of the state alone. ``simple`` is true for a node that is called once and
    either returns or fails; a ``subgraph`` is not called at all.
    """

    name: str
    function: Callable[..., Any]
    is_async: bool
    parameters: tuple[tuple[str, str], ...]
    leading: int
    positional: bool
    wants_context: bool
    simple: bool = True
    policy: NodePolicy = PLAIN
    place: Place | None = None
    subgraph: Subgraph | None = None

    @property
    def version(self) -> str:
        """The version that its author declared."""
        return self.policy.version

    def call(self, state: Any, config: Any, context: Any) -> Any:
        """Call the function; an async one gives its coroutine."""
        if self.positional:
            return self.function(state)
        given = {"state": state, "config": config, "ctx": context, "name": self.name}
        leading = [given[what] for _, what in self.parameters[: self.leading]]
        named = {parameter: given[what] for parameter, what in self.parameters[self.leading :]}
        return self.function(*leading, **named)


def read_node(
    name: str,
    function: Callable[..., Any],
    policy: NodePolicy = PLAIN,
    place: Place | None = None,
) -> Node:
    """Read the signature of a function; ``NotCallable`` says why it cannot be a node."""
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
        policy=policy,
        place=place,
    )


def is_async(function: Any) -> bool:
    """Whether calling this gives a coroutine: an async function, method, partial or object."""
    import inspect

    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        plain_function(function)
    )


def name_of(function: Any) -> str:
    """What a function is called; a callable object goes by its class."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", None) or type(function).__name__)


def plain_function(function: Any) -> Any:
    """The function that runs when this is called, behind partials and callable objects."""
    while isinstance(function, partial | staticmethod):
        function = function.func if isinstance(function, partial) else function.__func__
    if not hasattr(function, "__code__") and not isinstance(function, type):
        call: Any = getattr(cast("object", type(function)), "__call__", None)  # noqa: B004
        if hasattr(call, "__code__"):
            return call
    return function


def _signature(function: Callable[..., Any]) -> Signature | None:
    import inspect

    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None  # some builtins have none; they take the state


def _read_parameters(
    name: str, signature: Signature | None
) -> tuple[tuple[tuple[str, str], ...], int, bool]:
    """The injected parameters, how many go by position, and whether it is the state alone."""
    if signature is None:
        return (("state", "state"),), 1, True
    found: list[tuple[str, str]] = []
    leading = 0
    for position, parameter in enumerate(signature.parameters.values()):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        what = _injected_into(parameter.name, position, signature)
        if what is None and parameter.default is parameter.empty:
            raise NotCallable(
                f"node '{name}' has the parameter '{parameter.name}', which nothing supplies",
                f"a node may ask for {', '.join(INJECTED)}; give any other a default",
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


def _injected_into(parameter: str, position: int, signature: Signature) -> str | None:
    if parameter in INJECTED:
        return parameter
    return "state" if position == 0 and "state" not in signature.parameters else None


def _given_to_rest(
    found: list[tuple[str, str]], kinds: set[str]
) -> tuple[list[tuple[str, str]], int]:
    """Without an ordinary parameter the state goes to ``*args``, or else to ``**kwargs``."""
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
