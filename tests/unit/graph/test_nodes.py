"""Nodes: what is injected where, for every kind of function that can be called."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from unittest import mock

import pytest

from milecastle.errors import Place
from milecastle.graph.functions import is_async, name_of
from milecastle.graph.nodes import NotCallable, read_node
from milecastle.graph.structure import NodePolicy

STATE, CONFIG, CONTEXT = "the state", "the config", "the context"


def called(function: Callable[..., Any]) -> Any:
    """What a node of this function returns, awaited if need be."""
    node = read_node("step", function)
    returned = node.call(STATE, CONFIG, CONTEXT)
    if not node.is_async:
        if node.positional:
            assert function(STATE) == returned
        return returned

    async def wait() -> Any:
        return await returned

    return asyncio.run(wait())


anonymous: Callable[[Any], Any] = lambda s: (s,)  # noqa: E731


def nothing() -> Any:
    return ()


def state_only(state: Any) -> Any:
    return (state,)


def other_name(s: Any) -> Any:
    return (s,)


def first_of_any_name(s: Any, ctx: Any) -> Any:
    return (s, ctx)


def everything(state: Any, config: Any, ctx: Any, name: Any) -> Any:
    return (state, config, ctx, name)


def another_order(name: Any, ctx: Any, state: Any) -> Any:
    return (name, ctx, state)


def keyword_only(*, state: Any, ctx: Any) -> Any:
    return (state, ctx)


def keyword_only_of_any_name(*, s: Any) -> Any:
    return (s,)


def context_alone(ctx: Any) -> Any:
    return (ctx,)


def with_defaults(state: Any, limit: int = 3, ctx: Any = None) -> Any:
    return (state, limit, ctx)


def default_first(limit: int = 3, state: Any = None) -> Any:
    return (limit, state)


def default_alone(folder: Any = "out", name: Any = "own") -> Any:
    return (folder, name)


def state_by_default(state: Any = None) -> Any:
    return (state,)


def positional_only(state: Any, /) -> Any:
    return (state,)


def positional_only_of_any_name(s: Any, config: Any, /, ctx: Any, *, name: Any) -> Any:
    return (s, config, ctx, name)


def positional_default(s: Any, limit: int = 3, ctx: Any = None, /) -> Any:
    return (s, limit, ctx)


def rest(*args: Any) -> Any:
    return args


def rest_and_keyword(*args: Any, ctx: Any) -> Any:
    return (*args, ctx)


def both_rests(*args: Any, **keywords: Any) -> Any:
    return (args, keywords)


def keywords_alone(**keywords: Any) -> Any:
    return keywords


def state_and_rests(state: Any, *args: Any, **keywords: Any) -> Any:
    return (state, args, keywords)


def named_state_and_rest(*args: Any, state: Any) -> Any:
    return (args, state)


INJECTED: list[tuple[Callable[..., Any], Any]] = [
    (nothing, ()),
    (state_only, (STATE,)),
    (other_name, (STATE,)),
    (first_of_any_name, (STATE, CONTEXT)),
    (everything, (STATE, CONFIG, CONTEXT, "step")),
    (another_order, ("step", CONTEXT, STATE)),
    (keyword_only, (STATE, CONTEXT)),
    (keyword_only_of_any_name, (STATE,)),
    (context_alone, (CONTEXT,)),
    (with_defaults, (STATE, 3, CONTEXT)),
    (default_first, (3, STATE)),
    (default_alone, ("out", "own")),  # a first parameter with a default received the state
    (state_by_default, (STATE,)),
    (positional_only, (STATE,)),
    (positional_only_of_any_name, (STATE, CONFIG, CONTEXT, "step")),
    (positional_default, (STATE, 3, None)),
    (rest, (STATE,)),
    (rest_and_keyword, (STATE, CONTEXT)),
    (both_rests, ((STATE,), {})),
    (keywords_alone, {"state": STATE}),
    (state_and_rests, (STATE, (), {})),
    (named_state_and_rest, ((), STATE)),
    (anonymous, (STATE,)),
    (len, len(STATE)),
    (str.upper, "THE STATE"),
]


@pytest.mark.parametrize(("function", "expected"), INJECTED)
def test_parameters_are_injected_by_name(function: Callable[..., Any], expected: Any) -> None:
    assert called(function) == expected


def test_a_builtin_that_hides_its_signature_takes_the_state() -> None:
    node = read_node("step", dict)
    assert node.positional
    assert node.call({"a": 1}, None, None) == {"a": 1}


class Machine:
    def method(self, state: Any, ctx: Any) -> Any:
        return (state, ctx)

    async def later(self, state: Any) -> Any:
        return (state,)

    @classmethod
    def of_class(cls, state: Any) -> Any:
        return (cls.__name__, state)

    @staticmethod
    def static(state: Any) -> Any:
        return (state,)

    @staticmethod
    async def static_later(state: Any) -> Any:
        return (state,)

    def __call__(self, s: Any, name: Any) -> Any:
        return (s, name)


class AsyncMachine:
    async def __call__(self, s: Any, ctx: Any) -> Any:
        return (s, ctx)


async def later(state: Any, config: Any) -> Any:
    return (state, config)


def three(a: Any, state: Any, ctx: Any) -> Any:
    return (a, state, ctx)


async def three_later(a: Any, state: Any) -> Any:
    return (a, state)


@pytest.mark.parametrize(
    ("function", "expected", "asynchronous"),
    [
        (Machine().method, (STATE, CONTEXT), False),
        (Machine().later, (STATE,), True),
        (Machine.of_class, ("Machine", STATE), False),
        (Machine.static, (STATE,), False),
        (vars(Machine)["static"], (STATE,), False),
        (vars(Machine)["static_later"], (STATE,), True),
        (Machine(), (STATE, "step"), False),
        (AsyncMachine(), (STATE, CONTEXT), True),
        (later, (STATE, CONFIG), True),
        (functools.partial(three, 1), (1, STATE, CONTEXT), False),
        (functools.partial(functools.partial(three_later, a=1)), (1, STATE), True),
        (functools.partial(AsyncMachine(), ctx=2), (STATE, CONTEXT), True),
    ],
)
def test_methods_partials_and_objects_are_functions_too(
    function: Any, expected: Any, asynchronous: bool
) -> None:
    assert read_node("step", function).is_async is asynchronous
    assert is_async(function) is asynchronous
    assert called(function) == expected


def test_the_common_case_is_called_by_position() -> None:
    assert read_node("step", state_only).positional
    assert read_node("step", positional_only).positional
    assert read_node("step", rest).positional
    assert not read_node("step", default_first).positional
    assert not read_node("step", keyword_only_of_any_name).positional
    assert not read_node("step", nothing).positional


def test_context_is_made_only_for_nodes_that_take_one() -> None:
    assert read_node("step", everything).wants_context
    assert not read_node("step", state_only).wants_context


def test_a_decorated_function_is_read_behind_its_decorator() -> None:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **keywords: Any) -> Any:
            return ("wrapped", *function(*args, **keywords))

        return wrapper

    assert called(decorate(first_of_any_name)) == ("wrapped", STATE, CONTEXT)


def test_a_mock_can_stand_in_for_a_node() -> None:
    double = mock.Mock(return_value={"a": 1})
    assert read_node("step", double).call(STATE, None, None) == {"a": 1}
    double.assert_called_once_with(STATE)


def generator(state: Any) -> Iterator[Any]:
    yield state


async def async_generator(state: Any) -> AsyncIterator[Any]:
    yield state


class GeneratorMachine:
    def __call__(self, state: Any) -> Iterator[Any]:
        yield state


@pytest.mark.parametrize(
    "function",
    [generator, async_generator, GeneratorMachine(), functools.partial(generator)],
)
def test_a_generator_is_refused(function: Any) -> None:
    with pytest.raises(NotCallable, match="node 'step' is a generator"):
        read_node("step", function)


def unknown_parameter(state: Any, database: Any) -> Any:
    return (state, database)


def unknown_beside_state(s: Any, state: Any) -> Any:
    return (s, state)


def unknown_keyword(state: Any, *, database: Any) -> Any:
    return (state, database)


@pytest.mark.parametrize(
    ("function", "parameter"),
    [(unknown_parameter, "database"), (unknown_beside_state, "s"), (unknown_keyword, "database")],
)
def test_a_parameter_that_nothing_supplies_is_refused(function: Any, parameter: str) -> None:
    with pytest.raises(
        NotCallable, match=f"the parameter '{parameter}', which milecastle does not"
    ) as caught:
        read_node("step", function)
    assert "state, config, ctx, name" in caught.value.suggestion


@pytest.mark.parametrize("function", [5, "later", None, {"a": 1}, vars(Machine)["of_class"]])
def test_what_cannot_be_called_is_refused(function: Any) -> None:
    with pytest.raises(NotCallable, match=r"node 'step' is a \w+, not a function"):
        read_node("step", function)


def test_a_node_keeps_what_was_declared() -> None:
    place = Place("demo.py", 3)
    node = read_node("step", state_only, NodePolicy(version="2", inline=True), place)
    assert (node.name, node.version, node.policy.inline, node.place) == ("step", "2", True, place)


def test_the_name_of_a_function() -> None:
    assert name_of(state_only) == "state_only"
    assert name_of(functools.partial(functools.partial(state_only))) == "state_only"
    assert name_of(Machine()) == "Machine"
    assert name_of(Machine().method) == "method"
