"""Checking a whole graph: every problem at once, each with its code, place and suggestion.

========  ==========================================================
MC110     an edge, router or interrupt names a node that is not there
MC111     a node that nothing leads to
MC112     a node from which no way leads to an end
MC113     two nodes with one name
MC114     a router returns a node it did not declare
MC115     a node returns a key the state does not have
MC116     two parallel writers of a channel with no reducer
MC117     no entry point
MC118     a function that cannot be a node
MC119     an edge never tried
MC120     a class that cannot be a state
MC121     a name a node cannot have
MC122     an edge into START or out of END
MC123     a router whose targets are not known
MC124     a subgraph whose state does not fit
MC125     a key a state cannot have
MC126     nodes declare files, and the graph cannot be run over them
          (reported by ``StateGraph.compile``, if there is a workspace)
MC127     a declared input or output that does not fit the state
MC128     two nodes, or two keys, with one former name
========  ==========================================================

A mistake is reported once: what only follows from it (a misspelt target leaves a node without a
way to it) is not.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from milecastle.errors import InvalidRequest, Place, Problem
from milecastle.graph.edges import PlainEdge, Router, followed, reachable
from milecastle.graph.nodes import NotCallable, read_node
from milecastle.graph.parallel import meetings
from milecastle.graph.schema import InputSchema, StateSchema, read_input_schema, read_schema
from milecastle.graph.source import Returned, goto_of, returned_keys, returned_names, with_targets
from milecastle.graph.state_types import UnreadableState
from milecastle.graph.structure import (
    CompiledGraph,
    Declared,
    Node,
    NodeDeclaration,
    Subgraph,
    shared_keys,
    unshareable_keys,
)
from milecastle.model.manifest import END, START
from milecastle.model.reducers import LAST

_GUESSES = 20
"""Guessing what was meant is slow in a large graph, and after some guesses nobody reads them."""


class Findings(msgspec.Struct):
    """The parsed declarations, and their problems. ``routers`` have their targets."""

    schema: StateSchema | None = None
    nodes: dict[str, Node] = {}
    routers: list[Router] = []
    writes: dict[str, Returned] = {}
    problems: list[Problem] = []
    guesses: int = 0

    def report(self, code: str, message: str, place: Place | None, suggestion: str) -> None:
        self.problems.append(Problem(code, message, place, suggestion))

    def nearest(self, name: str, known: Iterable[str]) -> str | None:
        self.guesses += 1
        if self.guesses > _GUESSES:
            return None
        return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def read_declared(
    declaration: NodeDeclaration, local_names: Mapping[str, Any], findings: Findings
) -> None:
    graph = getattr(declaration.function, "graph", None)
    gotos = declaration.policy.goto
    if isinstance(graph, CompiledGraph):
        findings.nodes[declaration.name] = _read_subgraph(declaration, graph, findings)
    else:
        node = _read_function(declaration, findings)
        if node is None:
            return
        findings.nodes[declaration.name] = node
        findings.writes[declaration.name] = returned_keys(node.function)
        gotos = gotos or goto_of(node.function, local_names)
    _add_way("goto", gotos, declaration, findings)
    if declaration.policy.on_error is not None:
        _add_way("on error", (declaration.policy.on_error,), declaration, findings)


def _read_function(declaration: NodeDeclaration, findings: Findings) -> Node | None:
    policy = declaration.policy
    try:
        if policy.give is not None or policy.take is not None:
            raise NotCallable(
                f"node '{declaration.name}' has give= or take= but is not a subgraph",
                "remove them, or pass a compiled graph as the node",
            )
        return read_node(declaration.name, declaration.function, policy, declaration.place)
    except NotCallable as error:
        findings.report("MC118", str(error), declaration.place, error.suggestion)
        return None


def _read_subgraph(declaration: NodeDeclaration, graph: CompiledGraph, findings: Findings) -> Node:
    policy = declaration.policy
    if findings.schema is not None:
        _check_keys(declaration, findings.schema, graph.schema, findings)
    return Node(
        name=declaration.name,
        function=declaration.function,
        is_async=False,
        parameters=(),
        leading=0,
        positional=False,
        wants_context=False,
        simple=False,
        attempts=policy.attempts,
        policy=policy,
        place=declaration.place,
        subgraph=_subgraph_of(declaration, graph, findings.schema),
    )


def _subgraph_of(
    declaration: NodeDeclaration, graph: CompiledGraph, parent: StateSchema | None
) -> Subgraph | None:
    if parent is None:
        return None
    interval = getattr(declaration.function, "interval", 1)
    return Subgraph(graph, parent, interval, declaration.policy.give, declaration.policy.take)


def _check_keys(
    declaration: NodeDeclaration, parent: StateSchema, child: StateSchema, findings: Findings
) -> None:
    policy, name = declaration.policy, declaration.name
    if policy.timeout is not None:
        findings.report(
            "MC124",
            f"the subgraph '{name}' has a timeout",
            declaration.place,
            "set the timeout on the nodes inside it",
        )
    if policy.run_on is not None:
        findings.report(
            "MC124",
            f"the subgraph '{name}' has run_on=",
            declaration.place,
            "set it on the nodes inside it",
        )
    if not shared_keys(parent, child) and (policy.give is None or policy.take is None):
        findings.report(
            "MC124",
            f"the state of the subgraph '{name}' shares no key with the state of this graph",
            declaration.place,
            "set give= and take= on the node, which convert the state on the way in and out",
        )
    for key in [] if policy.take else unshareable_keys(parent, child):
        findings.report(
            "MC124",
            f"the subgraph '{name}' shares the key '{key}', which has a custom reducer: what the "
            "subgraph adds cannot be determined",
            declaration.place,
            "set take= on the node, which computes the update from the subgraph's final state",
        )


def _add_way(
    label: str, targets: tuple[str, ...], declaration: NodeDeclaration, findings: Findings
) -> None:
    if targets:
        findings.routers.append(
            Router(
                source=declaration.name,
                function=_never_asked,
                targets={target: target for target in targets},
                name=label,
                asked=False,
                place=declaration.place,
            )
        )


def _never_asked(state: Any) -> Any:
    raise AssertionError("the node takes this edge by returning a Command")


def examine(
    declared: Declared, interrupts: Iterable[str] = (), place: Place | None = None
) -> Findings:
    """Read all declarations and collect every problem, in source order.

    ``place`` is where ``interrupts`` were given.
    """
    findings = Findings()
    _read_state(declared, findings)
    _read_nodes(declared, findings)
    _read_routers(declared, findings)
    _check_ends(declared, findings)
    meant = _check_names(declared, findings)
    _check_interrupts(declared, findings, interrupts, place)
    _check_order_of_edges(declared, findings)
    _check_ways(declared, findings, meant)
    _check_updates(findings)
    _check_former_names(declared, findings)
    _check_parallel_writers(declared, findings)
    findings.problems.sort(key=_source_order)
    return findings


def _source_order(problem: Problem) -> tuple[bool, str, int, str]:
    place = problem.place
    return (place is None, place.file if place else "", place.line if place else 0, problem.code)


def _read_state(declared: Declared, findings: Findings) -> None:
    try:
        findings.schema = read_schema(declared.state_type, declared.local_names)
    except UnreadableState as error:
        suggestion = "declare the state as a TypedDict, each field with its type"
        findings.report("MC120", str(error), declared.place, suggestion)
        return
    for name in findings.schema.channels:
        if name.startswith("__") and name.endswith("__"):
            findings.report(
                "MC125",
                f"the state has the key '{name}', which is a reserved name",
                declared.place,
                "remove the leading and trailing underscores",
            )
    if declared.input_type is not None:
        input = _read_part("input", declared.input_type, declared, findings)
        findings.schema = msgspec.structs.replace(findings.schema, input=input)
        _check_schedules(declared, findings, findings.schema)
    if declared.output_type is not None:
        output = _read_part("output", declared.output_type, declared, findings)
        shown = tuple(output.annotations) if output else ()
        findings.schema = msgspec.structs.replace(findings.schema, output=shown)


def _read_part(what: str, part: Any, declared: Declared, findings: Findings) -> InputSchema | None:
    known: Iterable[str] = findings.schema.channels if findings.schema else ()
    try:
        found = read_input_schema(part, declared.local_names)
    except UnreadableState as error:
        suggestion = f"declare the {what} as a TypedDict with some of the state's keys"
        findings.report("MC127", f"{what}=: {error}", declared.place, suggestion)
        return None
    for name in found.annotations:
        if name not in known:
            near = findings.nearest(name, known)
            findings.report(
                "MC127",
                f"the {what} {found.name} has the key '{name}', which the state does not have",
                declared.place,
                f"did you mean '{near}'?" if near else "add it to the state, or remove it here",
            )
    return found


def _check_schedules(declared: Declared, findings: Findings, schema: StateSchema) -> None:
    for schedule in declared.schedules:
        if not callable(schedule.input):
            try:
                schema.start_input(schedule.input)
            except InvalidRequest as error:
                message = f"schedule '{schedule.name}': {error.message}"
                findings.report("MC127", message, declared.place, "complete its input=")


def _read_nodes(declared: Declared, findings: Findings) -> None:
    first: dict[str, NodeDeclaration] = {}
    for declaration in declared.nodes:
        name = declaration.name
        other = first.setdefault(name, declaration)
        if other is not declaration:
            findings.report(
                "MC113",
                f"two nodes are named '{name}'; the other is at {other.place}",
                declaration.place,
                "give one of them another name",
            )
        elif not _can_be_a_name(name):
            findings.report(
                "MC121",
                f"a node cannot be named {name!a}",
                declaration.place,
                "give it a name: add_node('my_name', function)",
            )
        else:
            read_declared(declaration, declared.local_names, findings)


def _check_former_names(declared: Declared, findings: Findings) -> None:
    nodes = [(one.name, one.policy.renamed_from, one.place) for one in findings.nodes.values()]
    channels = findings.schema.channels.values() if findings.schema else ()
    keys = [(one.name, one.former, declared.place) for one in channels]
    for what, renamed in (("nodes", nodes), ("keys", keys)):
        first: dict[str, str] = {}
        for name, former, place in renamed:
            for old in former:
                if first.setdefault(old, name) != name:
                    findings.report(
                        "MC128",
                        f"the {what} '{first[old]}' and '{name}' are both renamed from '{old}'",
                        place,
                        "declare it on the one that continues it",
                    )


def _can_be_a_name(name: str) -> bool:
    # Names are stored as UTF-8, which has no lone surrogates.
    return name not in ("", START, END) and not any("\ud800" <= char <= "\udfff" for char in name)


def _read_routers(declared: Declared, findings: Findings) -> None:
    for declaration in declared.routers:
        returned = returned_names(declaration.function)
        router = with_targets(declaration, returned, declared.local_names)
        findings.routers.append(router)
        if router.targets:
            _check_returned(router, returned, findings)
        else:
            findings.report(
                "MC123",
                f"the router '{router.label}' of '{router.source}' does not declare its targets",
                router.place,
                "list its targets as the third argument, or annotate it with a Literal",
            )


def _check_returned(router: Router, returned: Returned, findings: Findings) -> None:
    for name, place in returned.names.items():
        if name not in router.targets:
            meant = findings.nearest(name, router.targets)
            findings.report(
                "MC114",
                f"the router '{router.label}' of '{router.source}' returns '{name}', which is not "
                "one of its targets",
                place,
                f"did you mean '{meant}'?" if meant else f"add '{name}' to its targets",
            )


def _check_ends(declared: Declared, findings: Findings) -> None:
    entered = False
    for source, target, place in _ways(declared, findings):
        entered = entered or source == START
        if source == END:
            message, suggestion = "an edge starts at END", "END is the last node"
            findings.report("MC122", message, place, suggestion)
        if target == START:
            message, suggestion = "an edge points to START", "point it to the first node instead"
            findings.report("MC122", message, place, suggestion)
    if not entered and not any(router.source == START for router in findings.routers):
        findings.report(
            "MC117",
            "the graph has no entry point",
            declared.place,
            "add an edge from START, or call set_entry_point",
        )


def _ways(declared: Declared, findings: Findings) -> Iterator[tuple[str, str, Place | None]]:
    for edge in declared.edges:
        yield edge.source, edge.target, edge.place
    for router in findings.routers:
        for target in dict.fromkeys(router.targets.values()):
            yield router.source, target, router.place


def _check_names(declared: Declared, findings: Findings) -> dict[str, str]:
    known = dict.fromkeys([*(declaration.name for declaration in declared.nodes), START, END])
    mentions: dict[tuple[str, Place | None, str], None] = {}
    for edge in declared.edges:
        mentions[edge.source, edge.place, "an edge"] = None
        mentions[edge.target, edge.place, "an edge"] = None
    for router in findings.routers:
        what = f"the router '{router.label}'"
        mentions |= dict.fromkeys(
            (name, router.place, what) for name in (router.source, *router.targets.values())
        )
    meant: dict[str, str] = {}
    for name, place, what in mentions:
        if name not in known:
            guess = findings.nearest(name, known)
            meant[name] = guess or END
            suggestion = f"did you mean '{guess}'?" if guess else f"add a node named '{name}'"
            findings.report(
                "MC110", f"{what} names '{name}', which is not a node", place, suggestion
            )
    return meant


def _check_interrupts(
    declared: Declared, findings: Findings, interrupts: Iterable[str], place: Place | None
) -> None:
    known = dict.fromkeys(declaration.name for declaration in declared.nodes)
    for name in dict.fromkeys(interrupts):
        if name not in known:
            guess = findings.nearest(name, known)
            suggestion = f"did you mean '{guess}'?" if guess else "name a node of this graph"
            findings.report(
                "MC110", f"an interrupt names '{name}', which is not a node", place, suggestion
            )


def _check_order_of_edges(declared: Declared, findings: Findings) -> None:
    conditional = {edge.source for edge in declared.edges if edge.when is not None}
    always: dict[str, PlainEdge] = {}
    for edge in declared.edges:
        before = always.get(edge.source)
        if edge.source in declared.exit_points:
            continue
        if before is not None:
            findings.report(
                "MC119",
                f"the edge from '{edge.source}' to '{edge.target}' is never taken: the edge to "
                f"'{before.target}' before it always matches",
                edge.place,
                "move the edge without a predicate to the end",
            )
        elif edge.when is None and edge.source in conditional:
            always[edge.source] = edge


def _check_ways(declared: Declared, findings: Findings, meant: Mapping[str, str]) -> None:
    anywhere = object()
    ways: dict[object, set[object]] = {anywhere: {END, *findings.nodes}}
    back: dict[object, set[object]] = {}
    for router in findings.routers:
        if not router.targets:
            ways.setdefault(meant.get(router.source, router.source), set()).add(anywhere)
    for source, target, _ in _ways(declared, findings):
        ways.setdefault(meant.get(source, source), set()).add(meant.get(target, target))
    for start, ends in ways.items():
        for end in ends:
            back.setdefault(end, set()).add(start)
    reached = reachable(ways, [START])
    ending = reachable(back, [END])
    for name, node in findings.nodes.items():
        if START in ways and name not in reached:
            suggestion = f"add an edge to '{name}'"
            findings.report("MC111", f"node '{name}' is unreachable", node.place, suggestion)
        if name not in ending:
            suggestion = f"add an edge from '{name}' to END"
            message = f"node '{name}' cannot reach END"
            findings.report("MC112", message, node.place, suggestion)


def _check_updates(findings: Findings) -> None:
    if findings.schema is None:
        return
    channels = findings.schema.channels
    for name, returned in findings.writes.items():
        for key, place in returned.names.items():
            if key not in channels:
                meant = findings.nearest(key, channels)
                findings.report(
                    "MC115",
                    f"node '{name}' returns '{key}', which the state does not have",
                    place,
                    f"did you mean '{meant}'?" if meant else f"declare '{key}' in the state",
                )


def _check_parallel_writers(declared: Declared, findings: Findings) -> None:
    if findings.schema is None:
        return
    writers: dict[str, list[str]] = {
        key: [] for key, channel in findings.schema.channels.items() if channel.reducer is LAST
    }
    for name, returned in findings.writes.items():
        for key in returned.names:
            if key in writers:
                writers[key].append(name)
    edges, routers = followed(declared.edges, findings.routers, declared.exit_points)
    for key, name, others in meetings(edges, routers, writers):
        findings.report(
            "MC116",
            f"node '{name}' may run in the same step as {_listed(others)}, and "
            f"{'both' if len(others) == 1 else 'all'} write '{key}', which has no reducer",
            findings.nodes[name].place,
            f"annotate '{key}' with a reducer, or run the nodes one after the other",
        )


def _listed(names: tuple[str, ...]) -> str:
    shown = [f"'{name}'" for name in names[:3]]
    if len(names) > 3:
        shown.append(f"{len(names) - 3} more")
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
