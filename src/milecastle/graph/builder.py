"""The builder: it records declarations and checks nothing until ``compile()``.

Every declaration records its place in the user's file, so all problems can be reported at
once, each with file and line. Only invalid names and options of the wrong type are refused
immediately, with a ``TypeError``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Generic, Self, TypeVar, cast

import msgspec.structs

from milecastle.errors import InvalidRequest
from milecastle.graph.edges import PlainEdge, Router
from milecastle.graph.functions import caller, is_async, name_of, names_around, qualified_name
from milecastle.graph.hooks import HookValue, Webhook
from milecastle.graph.schedules import CatchUp, Overlap, Schedule
from milecastle.graph.sending import Map
from milecastle.graph.structure import (
    UNDECLARED_CONFIG,
    Declared,
    NodeDeclaration,
    NodePolicy,
    read_retry,
    read_timeout,
)
from milecastle.model.manifest import END, START
from milecastle.model.message import check_topic
from milecastle.model.notices import HookEvent
from milecastle.model.policies import ExecutionConfig, Retry, Timeout
from milecastle.support.migration_hints import explains_keywords
from milecastle.support.prepared import prepared

S = TypeVar("S")
F = TypeVar("F", bound=Callable[..., Any])


class GraphBuilder(Generic[S]):
    """Collects nodes and edges. Its public class is ``milecastle.StateGraph``."""

    def __init__(
        self,
        state: type[S],
        *,
        name: str | None = None,
        input: type | None = None,
        output: type | None = None,
        topics: Mapping[str, Any] | None = None,
        config: type | None = None,
    ) -> None:
        if config is not None and not isinstance(cast("object", config), type):
            raise TypeError(
                f"config= takes the class of the runs' configs, not {type(config).__name__}: give "
                "its values to invoke() or submit()"
            )
        self._declared = Declared(
            state_type=state,
            name=name or str(getattr(state, "__name__", "graph")),
            local_names=names_around(state),
            place=caller(),
            input_type=input,
            output_type=output,
            topics=_topics(topics or {}),
            config_type=config,
        )

    def __repr__(self) -> str:
        declared = self._declared
        nodes = list(dict.fromkeys(node.name for node in declared.nodes))
        edges = len(declared.edges) + len(declared.routers)
        return f"{type(self).__name__}({declared.name!r}, nodes={nodes}, edges={edges})"

    def _add_node(
        self,
        name: Any,
        function: Any,
        *,
        version: str,
        retry: Retry | int | None,
        timeout: Timeout | float | None,
        goto: Iterable[str],
        renamed_from: str | Iterable[str] = (),
        **policy: Any,
    ) -> None:
        if function is None:
            raise TypeError(f"add_node({name!r}) needs the node's function as well")
        if isinstance(function, GraphBuilder):
            raise TypeError(f"node {name!r} is a graph: compile it first with graph.compile()")
        told = NodePolicy(
            version=_version(version),
            retry=read_retry(retry),
            timeout=read_timeout(timeout),
            goto=_several(goto),
            renamed_from=(
                (renamed_from,)
                if isinstance(renamed_from, str)
                else tuple(map(_name, renamed_from))
            ),
            **policy,
        )
        self._declared.nodes.append(NodeDeclaration(_name(name), function, told, caller()))

    def _find_node(self, name: str, function: Any) -> int | None:
        wanted = name, qualified_name(function)
        found = [(node.name, qualified_name(node.function)) for node in self._declared.nodes]
        return found.index(wanted) if wanted[1] and wanted in found else None

    @explains_keywords
    def add_edge(self, source: str, target: str, when: Callable[[S], object] | None = None) -> Self:
        """Add an edge from ``source`` to ``target``, unconditional or with a predicate.

        Edges without ``when`` are all taken. With any ``when``, the source's edges are tried in
        the order they were added and the first match is taken.
        """
        self._add_edge(source, target, when)
        return self

    def add_edges(self, *names: str) -> Self:
        """Add an edge from each name to the next: ``add_edges(START, "a", "b", END)``."""
        if len(names) < 2:
            raise TypeError("add_edges() needs at least two names: a source and a target")
        for source, target in pairwise(names):
            self._add_edge(source, target)
        return self

    @explains_keywords
    def add_conditional_edges(
        self,
        source: str,
        router: Callable[[S], object],
        targets: Iterable[str] | Mapping[Any, str] | None = None,
    ) -> Self:
        """Add edges from ``source`` to the router's result: a node, several, or ``END``.

        ``targets`` lists the nodes it may return, or maps its results (a name, a bool, any value
        that can be a key) to nodes. It may be omitted if the router's return annotation is a
        ``Literal`` of them, or if it returns only literal names.
        """
        if not callable(router):
            raise TypeError(
                f"a router must be a function of the state, not {type(router).__name__}"
            )
        edge = Router(
            source=_name(source),
            function=router,
            targets=_as_mapping(targets),
            declared=targets is not None,
            is_async=is_async(router),
            place=caller(),
        )
        self._declared.routers.append(edge)
        return self

    def map(
        self, source: str, node: str, *, over: str | Callable[[S], Iterable[Any]], item: str
    ) -> Self:
        """After ``source``, run ``node`` once for each list member, in parallel.

        ``over`` is the list's key, or a function on the state returning one. Each task has
        its member in its state, under ``item``. Their updates are applied in the list's order.
        If the list is empty, the run continues as if ``node`` had run.
        """
        self._declared.routers.append(
            Router(
                source=_name(source),
                function=Map(_name(node), cast("Any", over), _name(item)),
                targets=MappingProxyType({node: node}),
                name=f"each of {over}" if isinstance(over, str) else "each",
                place=caller(),
            )
        )
        return self

    def set_entry_point(self, name: str) -> Self:
        """Start here: the same as an edge from ``START``."""
        self._add_edge(START, name)
        return self

    def set_exit_point(self, name: str) -> Self:
        """End here, whatever edges leave the node: an edge to ``END``, and no other is followed.

        Parallel branches run to their own ends. The node's ``Command`` is still followed.
        """
        self._add_edge(name, END)
        self._declared.exit_points.add(name)
        return self

    def with_default_config(self, config: ExecutionConfig) -> Self:
        """Limits for every run, unless a call sets its own."""
        if not isinstance(cast("object", config), ExecutionConfig):
            raise TypeError(
                "with_default_config() takes ExecutionConfig(max_steps=...), not "
                f"{type(config).__name__}"
            )
        self._declared.config = config
        return self

    @explains_keywords
    def schedule(
        self,
        when: str | timedelta,
        *,
        name: str | None = None,
        tz: str = "UTC",
        input: Mapping[str, Any] | Callable[[datetime], Any] | None = None,
        overlap: Overlap = "skip",
        catch_up: CatchUp = "none",
        config: Any = None,
    ) -> Callable[[F], F]:
        """Let workers run the graph by the clock: ``graph.schedule("0 3 * * *", input={...})``.

        ``when`` is a cron expression, in the time zone ``tz``, or a period. Each firing is a run in
        its own thread, ``name@2026-11-16T03:00:00Z``, started exactly once, however many workers
        there are; ``name`` defaults to the graph's. ``input`` may be a function on the
        tick, and as a decorator this makes the decorated function that. While the last firing's run
        has not ended, a tick is skipped, waits for its end (``overlap="queue"``), or cancels
        it (``"cancel"``). If ticks came while no worker ran, ``catch_up`` fires none, the last
        one, or all. ``config`` is each run's.
        """
        if config is not None and self._declared.config_type is None:
            raise InvalidRequest(UNDECLARED_CONFIG)
        declared = Schedule(
            name=self._declared.name if name is None else name,
            when=when,
            tz=tz,
            input={} if input is None else input,
            overlap=overlap,
            catch_up=catch_up,
            config=config,
        )
        schedules = self._declared.schedules
        if any(known.name == declared.name for known in schedules):
            raise InvalidRequest(
                f"the graph has a schedule '{declared.name}' already: give this one a name="
            )
        schedules.append(declared)
        place = len(schedules) - 1

        def give(function: F) -> F:
            if input is not None:
                raise InvalidRequest("the input of a schedule is input= or a function, not both")
            schedules[place] = msgspec.structs.replace(declared, input=function)
            return function

        return give

    @explains_keywords
    def on(
        self,
        *events: HookEvent,
        url: str,
        secret: str,
        name: str | None = None,
        include: HookValue | Iterable[HookValue] = (),
    ) -> Self:
        """Notify a URL of events: ``graph.on("failed", url="https://...", secret="env:SECRET")``.

        Events are ``"completed"``, ``"failed"`` (for good, after every retry) and ``"question"``.
        The event's commit leaves the notice, and workers deliver it: at least once, always
        with the same ``webhook-id``, signed by the rules of Standard Webhooks. ``secret`` names an
        environment variable on the workers; ``url`` may name one, too. The body has names and
        numbers; ``include`` adds the ``"error"`` message, the ``"question"`` or the ``"state"``.
        ``name`` tells a graph's hooks apart. Deliveries are runs of ``delivery@@GRAPH``,
        or with a name of ``delivery@@GRAPH@NAME``.
        """
        hook = Webhook(
            graph=self._declared.name,
            name=self._declared.name if name is None else name,
            events=tuple(dict.fromkeys(events)),
            url=url,
            secret=secret,
            include=(include,) if isinstance(include, str) else tuple(include),
        )
        if any(known.name == hook.name for known in self._declared.hooks):
            raise InvalidRequest(
                f"the graph has a hook '{hook.name}' already: give this one a name="
            )
        self._declared.hooks.append(hook)
        return self

    def _add_edge(
        self, source: str, target: str, when: Callable[[S], object] | None = None
    ) -> None:
        if when is not None and not callable(when):
            raise TypeError(f"when= takes a function of the state, not {type(when).__name__}")
        self._declared.edges.append(PlainEdge(_name(source), _name(target), when, caller()))


def _topics(given: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(cast("object", given), Mapping):
        raise TypeError(
            f"topics= takes the type of each topic's messages, {{'orders': Order}}, not "
            f"{type(given).__name__}"
        )
    for topic, wanted in given.items():
        check_topic(topic)
        if not hasattr(wanted, "model_validate"):
            prepared(wanted)
    return MappingProxyType(dict(given))


def _as_mapping(targets: Iterable[str] | Mapping[Any, str] | None) -> Mapping[Any, str]:
    if targets is None:
        return MappingProxyType({})
    if isinstance(targets, str):
        targets = [targets]
    if not isinstance(targets, Mapping):
        return MappingProxyType({_name(target): target for target in targets})
    given = cast("Mapping[Any, str]", targets)
    return MappingProxyType({returned: _name(target) for returned, target in given.items()})


def _name(given: object) -> str:
    if isinstance(given, str):
        return given
    advice = f": write {name_of(given)!r}" if callable(given) else ""
    several = type(given) in (list, tuple)
    first = "add one edge each, and defer=True on a node that waits for all: " if several else ""
    raise TypeError(
        f"{first}a node is identified by its name, a str, not {type(given).__name__}{advice}"
    )


def _version(given: object) -> str:
    if isinstance(given, str):
        return given
    raise TypeError(f"the version of a node must be a str, not {type(given).__name__}")


def _several(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(map(_name, names))
