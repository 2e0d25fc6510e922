"""Flows: durable functions. ``@flow`` turns one into an app; ``step`` and the others are its calls.

A flow is a function whose calls are recorded: after a crash, or days later, it runs again from its
beginning, gets the recorded results, and continues with the first call that has none. So the
function itself must make the same calls each time; clocks, random numbers and input belong into
steps. It is its graph's only node, with a channel for each parameter, and one for the result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial, update_wrapper
from typing import (
    Any,
    Final,
    Generic,
    NotRequired,
    ParamSpec,
    TypedDict,
    TypeVar,
    cast,
    get_type_hints,
    overload,
)

from milecastle.app.application import App
from milecastle.app.state_graph import StateGraph
from milecastle.engine.context import Context, OnCancel
from milecastle.engine.flow import FlowBranch, MakeCalls, current_branch
from milecastle.errors import InvalidRequest
from milecastle.graph.functions import is_async, name_of, plain_function
from milecastle.graph.sending import Command
from milecastle.graph.structure import (
    PLAIN,
    CompiledGraph,
    NodePolicy,
    read_retry,
    read_timeout,
)
from milecastle.model.manifest import END, START
from milecastle.model.policies import ExecutionConfig, Retry, RunOn, Timeout
from milecastle.ports.task import MISSING

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

RESULT: Final = "result"
"""The channel with a flow's result."""

_MOST_CALLS: Final = 100_000


class Again:
    def __init__(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        self.args = args
        self.named = named


class Flow(Generic[P, R]):
    """A durable function: ``compile()`` turns it into an ``App``. Made by ``@flow``.

    Calling it calls the function, within the calling flow if there is one.
    """

    def __init__(
        self, function: Callable[P, R], name: str, version: str, most: int, types: tuple[Any, ...]
    ) -> None:
        update_wrapper(self, function)
        self.function = function
        self.name = name
        self._version = version
        self._most = most
        self._types = types
        from inspect import signature  # slow to import

        self._signature = signature(function)
        self._refuse_parameters()

    def __call__(self, *args: P.args, **named: P.kwargs) -> R:
        return self.function(*args, **named)

    def __repr__(self) -> str:
        return f"<flow {self.name!r}>"

    def _refuse_parameters(self) -> None:
        for parameter in self._signature.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise TypeError(f"flow {self.name!r} has *{parameter.name}: name its parameters")
            if parameter.name == RESULT:
                raise TypeError(f"flow {self.name!r} has a parameter 'result': it is its result")

    def input(self, *args: P.args, **named: P.kwargs) -> dict[str, Any]:
        """A run's input, for ``invoke`` and ``submit``: the arguments by name."""
        return dict(self._signature.bind(*args, **named).arguments)

    def compile(
        self, *, topics: Mapping[str, Any] | None = None, config: type | None = None, **options: Any
    ) -> App[Any]:
        """Make an app.

        ``topics`` and ``config`` are as for ``StateGraph``, ``options`` as for its ``compile``:
        ``store=``, ``encryption=``, ``observers=`` and the others.
        """
        if options.get("checkpoint_dir") is not None:
            raise InvalidRequest(
                f"flow {self.name!r} has no portable files: a file does not have its recorded "
                "calls, so they would be made again. Copy its thread to another store instead"
            )
        return self.graph(topics=topics, config=config).compile(**options)

    def graph(
        self, *, topics: Mapping[str, Any] | None = None, config: type | None = None
    ) -> StateGraph[Any]:
        """The graph with the flow as its only node: for schedules, and the command line."""
        hints = _hints(self.function)
        names = self._signature.parameters
        types = {name: hints.get(name, Any) for name in names}
        optional = {name for name in names if names[name].default is not names[name].empty}
        result = {RESULT: NotRequired[hints.get("return", Any)]}
        state = _typed_dict(self.name, {n: NotRequired[types[n]] for n in types} | result)
        given = {n: NotRequired[types[n]] if n in optional else types[n] for n in types}
        graph = _FlowGraph(
            state,
            name=self.name,
            input=_typed_dict(f"{self.name} input", given) if given else None,
            topics=topics,
            config=config,
        )
        graph.declare(self.name, self._node(), self._version, self._call_types())
        graph.add_edges(START, self.name, END)
        graph.with_default_config(ExecutionConfig(max_steps=None, cycle_detection=False))
        return graph

    def _call_types(self) -> tuple[Any, ...]:
        function = plain_function(self.function)
        seen = [*function.__globals__.values(), *_closure_of(function)]
        steps = [cast("FlowStep[..., Any]", found) for found in seen if isinstance(found, FlowStep)]
        hints = [_hints(found.function).get("return") for found in steps]
        return (*self._types, *(hint for hint in hints if hint is not None))

    def _node(self) -> Callable[..., Any]:
        function, most, name = self.function, self._most, self.name
        names = tuple(self._signature.parameters)

        def update(returned: Any) -> Any:
            if not isinstance(returned, Again):
                return {RESULT: returned}
            given = self._signature.bind(*returned.args, **returned.named).arguments
            command: Command[Any] = Command(update=dict(given), goto=name)
            return command

        from milecastle.drivers.flow_calls import run_flow  # threads are needed only here

        async def acall(state: Any, ctx: Context) -> Any:
            from milecastle.drivers.loop_flow_calls import arun_flow

            given = {name: state[name] for name in names if name in state}
            return update(await arun_flow(ctx, function, given, most))

        def call(state: Any, ctx: Context) -> Any:
            given = {name: state[name] for name in names if name in state}
            return update(run_flow(ctx, function, given, most))

        return acall if is_async(function) else call


class _FlowGraph(StateGraph[Any]):
    def declare(
        self, name: str, function: Callable[..., Any], version: str, types: tuple[Any, ...]
    ) -> None:
        """Add the only node; ``types`` are its calls'."""
        goto = (name,)  # by again()
        self._add_node(
            name, function, version=version, retry=None, timeout=None, goto=goto, flow=True
        )
        self._declared.call_types = types


def _hints(function: Any) -> dict[str, Any]:
    try:
        return get_type_hints(plain_function(function), include_extras=True)
    except NameError:
        return {}


def _closure_of(function: Any) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # it is defined later


def _typed_dict(name: str, types: dict[str, Any]) -> Any:
    make = cast("Callable[..., Any]", TypedDict)
    return make(name, types)


@overload
def flow(function: Callable[P, R], /) -> Flow[P, R]: ...
@overload
def flow(
    *,
    name: str | None = ...,
    version: str = ...,
    max_calls: int = ...,
    types: tuple[Any, ...] = ...,
) -> Callable[[Callable[P, R]], Flow[P, R]]: ...
def flow(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    version: str = "",
    max_calls: int = _MOST_CALLS,
    types: tuple[Any, ...] = (),
) -> Any:
    """Declare a durable function. ``flow.compile(store=...)`` turns it into an ``App``.

    Two versions run side by side: each worker runs threads that began with its own. ``types`` are
    the result types for steps outside the flow's module, besides plain data.
    """

    def declare(function: Callable[..., Any]) -> Flow[..., Any]:
        return Flow(function, name or name_of(function), version, max_calls, types)

    return declare if function is None else declare(function)


class FlowStep(Generic[P, R]):
    """A function whose calls in a flow are recorded; anywhere else an ordinary function."""

    def __init__(self, function: Callable[P, R], name: str, policy: NodePolicy) -> None:
        update_wrapper(self, function)
        self.function = function
        self.name = name
        self.policy = policy
        self._graphs: dict[str, CompiledGraph] = {}

    def __call__(self, *args: P.args, **named: P.kwargs) -> R:
        found: R = _call_step(self.name, self.function, args, named, self.policy, self)
        return found

    def __repr__(self) -> str:
        return f"<step {self.name!r}>"

    def graph_in(self, flow: str) -> CompiledGraph | None:
        """With ``run_on``: a graph whose only node is this step, with the flow's name."""
        if self.policy.run_on is None or flow in self._graphs:
            return self._graphs.get(flow)
        function: Callable[..., Any] = self.function

        def call(state: dict[str, Any]) -> dict[str, Any]:
            return {RESULT: function(*state["args"], **state["named"])}

        async def acall(state: dict[str, Any]) -> dict[str, Any]:
            return {RESULT: await function(*state["args"], **state["named"])}

        node = acall if is_async(function) else call
        node.__module__ = plain_function(function).__module__
        channels = {"args": list[Any], "named": dict[str, Any], RESULT: Any}
        types = cast("Any", tuple)[(*_hints(function).values(),)]
        graph = StateGraph[Any](_typed_dict(self.name, channels | {"types": types}), name=self.name)
        graph.add_node(flow, node, run_on=self.policy.run_on, timeout=self.policy.timeout)
        graph.add_edges(START, flow, END)
        return self._graphs.setdefault(flow, graph.compile().graph)


def _call_step(
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    named: Mapping[str, Any],
    policy: NodePolicy,
    declared: FlowStep[..., Any] | None = None,
) -> Any:
    branch = current_branch.get()
    if branch is None:
        return function(*args, **named)
    if declared is not None and policy.run_on is not None:
        from milecastle.compute.steps import call_elsewhere  # threads are needed only here

        function = partial(call_elsewhere, declared.graph_in, branch.flow)
    return branch.flow.perform(
        lambda branch: branch.flow.step(branch, name, function, args, named, policy), ()
    )


@overload
def step(function: Callable[P, R], /) -> FlowStep[P, R]: ...
@overload
def step(
    *,
    name: str | None = ...,
    retry: Retry | int | None = ...,
    timeout: Timeout | float | None = ...,
    run_on: RunOn | None = ...,
) -> Callable[[Callable[P, R]], FlowStep[P, R]]: ...
@overload
def step(
    function: Callable[..., Coroutine[Any, Any, T]],
    first: Any,
    /,
    *args: Any,
    name: str | None = ...,
    retry: Retry | int | None = ...,
    timeout: Timeout | float | None = ...,
) -> Coroutine[Any, Any, T]: ...
@overload
def step(
    function: Callable[..., Any],
    /,
    *args: Any,
    name: str | None = ...,
    retry: Retry | int | None = ...,
    timeout: Timeout | float | None = ...,
) -> Any: ...
def step(
    function: Callable[..., Any] | None = None,
    /,
    *args: Any,
    name: str | None = None,
    retry: Retry | int | None = None,
    timeout: Timeout | float | None = None,
    run_on: RunOn | None = None,
) -> Any:
    """Declare a function whose calls in a flow are recorded, or call one in place.

    ``@step`` and ``@step(retry=3, timeout=30)`` declare; in a flow ``step(function, *args)`` calls.
    A call that returned is never repeated. In an async flow every step is awaited; one that is a
    plain function runs in a thread. ``run_on="process"`` calls it in another process, as for nodes.
    """
    policy = PLAIN
    if retry is not None or timeout is not None or run_on is not None:
        policy = NodePolicy(retry=read_retry(retry), timeout=read_timeout(timeout), run_on=run_on)
        if policy.timeout is not None and policy.timeout.idle is not None and run_on is None:
            raise TypeError("a step's timeout is Timeout(run=...) or seconds: it has no idle=")

    def declare(function: Callable[..., Any]) -> FlowStep[..., Any]:
        return FlowStep(function, name or name_of(function), policy)

    if function is None:
        return declare
    known: FlowStep[..., Any] | None = None
    if isinstance(function, FlowStep):
        known = cast("FlowStep[..., Any]", function)
        function, name = known.function, name or known.name
        run_on = run_on or known.policy.run_on
        policy = known.policy if policy is PLAIN else policy
    if args or name is not None or current_branch.get():
        if run_on is not None and (known is None or policy is not known.policy):
            raise TypeError(
                "declare a step that runs elsewhere with its options: @step(run_on=...)"
            )
        return _call_step(name or name_of(function), function, args, {}, policy, known)
    return declare(function)


def _branch(what: str) -> FlowBranch:
    branch = current_branch.get()
    if branch is None:
        raise InvalidRequest(
            f"{what} is a call of a flow: it was made outside of one, or inside a step"
        )
    return branch


def _perform(what: str, make: MakeCalls, parts: Sequence[Any] = ()) -> Any:
    return _branch(what).flow.perform(make, parts)


def sleep(until: datetime | timedelta | float) -> None:
    """Suspend the flow until a time, or for seconds; no process is needed meanwhile. No await."""
    branch = _branch("sleep()")
    branch.flow.sleep(branch, until)


def receive(
    topic: str | tuple[str, ...] = "",
    type: Any = None,
    *,
    timeout: float | timedelta | None = None,
    default: Any = MISSING,
) -> Any:
    """The next message's value in a topic; with several topics, the ``Message``.

    As ``ctx.receive``, in a flow. To be awaited in an async flow.
    """
    topics, is_one = ((topic,), True) if isinstance(topic, str) else (topic, False)
    return _perform(
        "receive()",
        lambda branch: branch.flow.receive(
            branch, topics, is_one=is_one, wanted=type, timeout=timeout, default=default
        ),
    )


def gather(*parts: Callable[[], Any] | Awaitable[Any]) -> Any:
    """Run parts beside each other; return their results in order.

    Parts are functions, or awaitables in an async flow, where it is awaited. If one fails, the
    others end or stop, and its error is raised.
    """
    return _perform("gather()", lambda branch: branch.flow.gather(branch, parts), parts)


def first(*parts: Callable[[], Any] | Awaitable[Any]) -> Any:
    """``(number, result)`` for the first part that ends; the others are left.

    Parts are tried in order: one that waits lets the next begin.
    """
    return _perform("first()", lambda branch: branch.flow.first(branch, parts), parts)


def spawn(
    app: Any,
    input: Any,
    thread: str | None = None,
    *,
    config: Any = None,
    on_cancel: OnCancel = "cancel",
) -> Any:
    """Start a run on another thread, as ``ctx.spawn``; return the thread's name."""
    return _perform(
        "spawn()",
        lambda branch: branch.flow.spawn(
            branch, app, input, thread, config=config, on_cancel=on_cancel
        ),
    )


def join(child: str, *, timeout: float | timedelta | None = None) -> Any:
    """Wait until a spawned run has ended; its ``ChildResult``."""
    return _perform("join()", lambda branch: branch.flow.join(branch, child, timeout))


def now() -> datetime:
    """The time of this call; the same when the flow runs again."""
    branch = _branch("now()")
    return branch.flow.now(branch)


def new_id() -> str:
    """An id that is the same when the flow runs again, and different for every other call."""
    branch = _branch("new_id()")
    return branch.flow.new_id(branch)


def changed(name: str) -> bool:
    """Return true if the flow first came here with code that has this change.

    ``if changed("survey"): survey(order)`` guards new calls: flows that passed here before the
    change do not make them, all others do.
    """
    branch = _branch("changed()")
    return branch.flow.changed(branch, name)


def again(*args: Any, **named: Any) -> Any:
    """Restart the flow with other arguments and no calls, by returning what this returns."""
    return Again(args, named)
