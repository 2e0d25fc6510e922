"""A graph's frozen parts: declarations, nodes, subgraphs, the compiled graph.

A subgraph is a compiled graph used as a node in another. Input and output, unless ``give`` and
``take`` say otherwise: the subgraph is given the keys both states have; its changes to them are its
update. For a key with a reducer that is what it added: a list's end, the changed entries of a dict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import msgspec

from milecastle.errors import InvalidUpdate, NodeTimeout, Place, ProcessLost
from milecastle.graph.edges import Exits, PlainEdge, Router
from milecastle.graph.hooks import Webhook
from milecastle.graph.messages import Upsert, is_same
from milecastle.graph.schedules import Schedule
from milecastle.graph.schema import Channel, StateSchema
from milecastle.model.manifest import Manifest
from milecastle.model.notices import HookEvent
from milecastle.model.policies import ExecutionConfig, Ray, Retry, RunOn, Timeout
from milecastle.model.reducers import Reducer, add, append, maximum, merge, minimum, union


class NodePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A node's declared policy.

    ``limit`` is how many tasks of this node run at once. ``on_error`` names the node that runs
    instead of the next one when this one has failed for good. ``defer`` waits until no other node
    is left to run. ``goto`` are the nodes a ``Command`` may lead to. ``give`` and ``take`` lead
    into a subgraph and out of it. ``run_on`` says where its tasks run, if not here.
    ``renamed_from`` are its former names. ``flow``: its function makes recorded calls.
    """

    version: str = ""
    inline: bool = False
    retry: Retry | None = None
    timeout: Timeout | None = None
    limit: int | None = None
    on_error: str | None = None
    defer: bool = False
    goto: tuple[str, ...] = ()
    give: Callable[[Any], Any] | None = None
    take: Callable[[Any], Any] | None = None
    run_on: RunOn | None = None
    renamed_from: tuple[str, ...] = ()
    flow: bool = False

    def __post_init__(self) -> None:
        place = cast("object", self.run_on)
        if not (place in (None, "process", "ray") or isinstance(place, Ray)):
            raise TypeError(f"run_on= takes 'process', 'ray' or Ray(), not {_said(self.run_on)}")
        if self.run_on is not None and self.inline:
            raise TypeError("inline=True runs a node on the event loop: remove it or run_on=")
        if self.limit is not None and not (_is_number(self.limit, int) and self.limit >= 1):
            raise TypeError(f"limit= takes a whole number of at least 1, not {_said(self.limit)}")
        if self.on_error is not None and not isinstance(cast("object", self.on_error), str):
            raise TypeError(f"on_error= takes the name of a node, not {_said(self.on_error)}")
        for name in ("inline", "defer"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name}= takes True or False, not {_said(getattr(self, name))}")
        for function in (self.give, self.take):
            if function is not None and not callable(function):
                raise TypeError("give= and take= must be functions of the state")

    @property
    def is_simple(self) -> bool:
        options = (self.retry, self.timeout, self.on_error, self.run_on)
        return all(option is None for option in options)

    @property
    def attempts(self) -> Retry | None:
        """Attempts per task: as declared, or ``ELSEWHERE`` if its process may be lost."""
        return self.retry if self.retry is not None or self.run_on is None else ELSEWHERE

    def is_retried(self, error: BaseException) -> bool:
        """True if a task is retried after this error, given attempts left."""
        if self.run_on is not None and isinstance(error, ProcessLost):
            return True
        return self.retry is not None and isinstance(error, (*self.retry.errors, NodeTimeout))


PLAIN: Final = NodePolicy()

ELSEWHERE: Final = Retry(attempts=3, delay=0.2)
"""How often a task is started that has no retry policy, if the processes that run it are lost."""


def read_retry(given: object) -> Retry | None:
    if given is None or isinstance(given, Retry):
        return given
    if _is_number(given, int):
        return Retry(attempts=cast("int", given))
    raise TypeError(f"retry= takes a number of attempts or Retry(...), not {_said(given)}")


def read_timeout(given: object) -> Timeout | None:
    if given is None or isinstance(given, Timeout):
        return given
    if _is_number(given, int, float):
        return Timeout(run=cast("float", given))
    raise TypeError(f"timeout= takes seconds or Timeout(...), not {_said(given)}")


def _is_number(given: object, *kinds: type) -> bool:
    return isinstance(given, kinds) and not isinstance(given, bool)


def _said(given: object) -> str:
    return repr(given) if isinstance(given, int | float | str) else type(given).__name__


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node as it is run. ``parameters`` pairs each parameter with its injected value.

    The first ``leading`` of them are passed by position. ``positional`` is true for a function with
    only the state. ``simple`` is true for a node called once and either returns or fails; a
    ``subgraph`` is not called at all. ``attempts`` are its policy's.
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
    attempts: Retry | None = None
    place: Place | None = None
    subgraph: Subgraph | None = None
    is_flow: bool = False

    @property
    def version(self) -> str:
        return self.policy.version

    def calling(self, function: Callable[..., Any]) -> Node:
        parameters = (("state", "state"), ("config", "config"), ("ctx", "ctx"))
        policy = msgspec.structs.replace(self.policy, run_on=None)  # it is called here
        return msgspec.structs.replace(
            self,
            function=function,
            parameters=parameters,
            leading=0,
            positional=False,
            policy=policy,
            attempts=policy.attempts,
        )

    def call(self, state: Any, config: Any, context: Any) -> Any:
        if self.positional:
            return self.function(state)
        given = {"state": state, "config": config, "ctx": context, "name": self.name}
        leading = [given[what] for _, what in self.parameters[: self.leading]]
        named = {parameter: given[what] for parameter, what in self.parameters[self.leading :]}
        return self.function(*leading, **named)


_MISSING = object()


class Subgraph(msgspec.Struct, frozen=True):
    """A graph as a node. ``interval``: its threads are saved every so many steps."""

    graph: CompiledGraph
    parent: StateSchema
    interval: int = 1
    give: Callable[[Any], Any] | None = None
    take: Callable[[Any], Any] | None = None

    def input(self, state: Any) -> Any:
        if self.give is not None:
            return self.give(state)
        values, schema = _values(self.parent, state), self.graph.schema
        names = schema.channels if schema.input is None else schema.input.annotations
        return {name: values[name] for name in names if name in values}

    def update(self, node: str, state: Any, values: Mapping[str, Any]) -> Any:
        if self.take is not None:
            return self.take(self.graph.schema.present(dict(values)))
        before = _values(self.parent, state)
        update: dict[str, Any] = {}
        for name in shared_keys(self.parent, self.graph.schema):
            if name not in values:
                continue
            old, new = before.get(name, _MISSING), values[name]
            if old is _MISSING or self.parent.channels[name].reducer.name == "last":
                if not is_same(old, new):
                    update[name] = new
                continue
            added = _added(node, self.parent.channels[name], old, new)
            if added is not _MISSING:
                update[name] = added
        return update


def shared_keys(parent: StateSchema, child: StateSchema) -> list[str]:
    return [name for name in parent.channels if name in child.channels]


def unshareable_keys(parent: StateSchema, child: StateSchema) -> list[str]:
    """Shared keys with a custom reducer: additions cannot be determined."""
    return [
        name
        for name in shared_keys(parent, child)
        if parent.channels[name].reducer.name != "last"
        and _adder(parent.channels[name].reducer) is None
    ]


def _values(schema: StateSchema, state: Any) -> dict[str, Any]:
    return state if schema.form == "typed-dict" else schema.fields_of(state)


def _added(node: str, channel: Channel, old: Any, new: Any) -> Any:
    if old is new:
        return _MISSING
    adder = _adder(channel.reducer)
    added = adder(old, new) if adder is not None else None
    if added is None:
        raise InvalidUpdate(
            f"the subgraph '{node}' changed values that were already in '{channel.name}', and "
            "only additions can be determined: set take= on the node to define its update",
            node=node,
            key=channel.name,
        )
    return added


def _adder(reducer: Reducer) -> Callable[[Any, Any], Any] | None:
    """Function finding additions to a channel; ``None`` for a custom reducer."""
    if isinstance(reducer.function, Upsert):
        added = reducer.function.added
        return lambda old, new: added(old, new) or _MISSING
    return _ADDED.get(reducer.function)


def _tail(old: Any, new: Any) -> Any:
    count = len(old)
    if new[:count] != old:
        return None
    return new[count:] or _MISSING


def _new_entries(old: Any, new: Any) -> Any:
    if any(name not in new for name in old):
        return None
    changed: dict[Any, Any] = {
        name: value
        for name, value in new.items()
        if name not in old or not is_same(old[name], value)
    }
    return changed or _MISSING


def _new_members(old: Any, new: Any) -> Any:
    return None if old - new else (new - old or _MISSING)


def _sum_of_rest(old: Any, new: Any) -> Any:
    return _tail(old, new) if hasattr(old, "__len__") else new - old


_ADDED: Final[dict[Any, Callable[[Any, Any], Any]]] = {
    append: _tail,
    merge: _new_entries,
    union: _new_members,
    add: _sum_of_rest,
    maximum: lambda _, new: new,
    minimum: lambda _, new: new,
}
"""What was added to the first value to make the second, by reducer function."""


UNDECLARED_CONFIG: Final = (
    "the config of a run for workers is stored, so its type must be declared: "
    "StateGraph(State, config=Settings)"
)


class CompiledGraph(msgspec.Struct, frozen=True, kw_only=True):
    """A graph that passed every check. ``order`` ranks nodes as they were declared.

    ``gotos`` are the nodes each node may lead to by whatever way. ``topics`` are the types of the
    messages that have one declared, ``config_type`` that of configs stored with runs, and
    ``call_types`` those of a flow's calls.
    """

    name: str
    schema: StateSchema
    nodes: Mapping[str, Node]
    order: Mapping[str, int]
    exits: Mapping[str, Exits]
    gotos: Mapping[str, frozenset[str]]
    config: ExecutionConfig
    manifest: Manifest
    fingerprint: str
    is_async: bool
    defers: bool = False
    interrupt_before: frozenset[str] = frozenset()
    interrupt_after: frozenset[str] = frozenset()
    schedules: tuple[Schedule, ...] = ()
    hooks: tuple[Webhook, ...] = ()
    topics: Mapping[str, Any] = {}
    config_type: type | None = None
    call_types: tuple[Any, ...] = ()

    @property
    def annotations(self) -> list[Any]:
        """Types of everything a thread stores."""
        found = [channel.annotation for channel in self.schema.channels.values()]
        config = () if self.config_type is None else (self.config_type,)
        return [*found, *self.topics.values(), *config, *self.call_types]

    @property
    def has_flow(self) -> bool:
        """True if a node is a flow."""
        return any(node.is_flow for node in self.nodes.values())

    @property
    def notifies(self) -> frozenset[HookEvent]:
        """The events its hooks are notified of."""
        return frozenset(event for hook in self.hooks for event in hook.events)

    @property
    def is_placed(self) -> bool:
        """True if a node in it, or in a subgraph, runs elsewhere."""
        return any(
            node.policy.run_on is not None or (node.subgraph and node.subgraph.graph.is_placed)
            for node in self.nodes.values()
        )


class NodeDeclaration(msgspec.Struct, frozen=True):
    name: str
    function: Callable[..., Any]
    policy: NodePolicy
    place: Place


class Declared(msgspec.Struct):
    """All declarations, in order.

    ``local_names`` are the names annotations of a state written inside a function may refer to.
    ``input_type`` and ``output_type`` declare some of its keys, ``topics`` types of messages,
    ``config_type`` that of runs' configs, ``call_types`` those of a flow's calls.
    """

    state_type: type
    name: str
    local_names: Mapping[str, Any]
    place: Place
    nodes: list[NodeDeclaration] = []
    edges: list[PlainEdge] = []
    routers: list[Router] = []
    exit_points: set[str] = set()
    schedules: list[Schedule] = []
    hooks: list[Webhook] = []
    config: ExecutionConfig = ExecutionConfig()
    input_type: type | None = None
    output_type: type | None = None
    topics: Mapping[str, Any] = {}
    config_type: type | None = None
    call_types: tuple[Any, ...] = ()
