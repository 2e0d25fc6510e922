"""Checking a whole graph: every problem at once, each with its code, place and suggestion.

========  ==========================================================
MC110     an edge, router or interrupt names a node that is not there
MC111     a node that nothing leads to
MC112     a node from which no way leads to an end
MC113     two nodes with one name
MC114     a router returns a node that it did not declare
MC115     a node returns a key that the state does not have
MC116     two parallel writers of a channel that has no reducer
MC117     no entry point
MC118     a function that cannot be a node
MC119     an edge that is never tried
MC120     a class that cannot be a state
MC121     a name that a node cannot have
MC122     an edge into START or out of END
MC123     a router whose targets are not known
MC124     a subgraph whose state does not fit
MC125     a key that a state cannot have
========  ==========================================================

A mistake is reported once: what only follows from it (a misspelt target leaves a node without a
way to it) is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from milecastle.graph.builder import Declared, NodeDeclaration
from milecastle.graph.edges import PlainEdge, Router
from milecastle.graph.findings import Findings
from milecastle.graph.node_reading import read_declared
from milecastle.graph.parallel import meetings
from milecastle.graph.reducers import LAST
from milecastle.graph.schema import UnreadableState, read_schema
from milecastle.graph.source import Returned, returned_names
from milecastle.graph.targets import with_targets
from milecastle.model.manifest import END, START
from milecastle.model.problem import Place, Problem

__all__ = ["examine"]


def examine(
    declared: Declared, interrupts: Iterable[str] = (), place: Place | None = None
) -> Findings:
    """Read everything that was declared and collect every problem, in source order.

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
                f"the state has the key '{name}'; such names are kept for what is not state",
                declared.place,
                "give it a name without the underscores around it",
            )


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
                "give it a name of its own: add_node('my_name', function)",
            )
        else:
            read_declared(declaration, declared.local_names, findings)


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
                f"the router '{router.label}' of '{router.source}' does not say where it leads",
                router.place,
                "list its targets as the third argument, or annotate it with a Literal",
            )


def _check_returned(router: Router, returned: Returned, findings: Findings) -> None:
    for name, place in returned.names.items():
        if name not in router.targets:
            meant = findings.nearest(name, router.targets)
            findings.report(
                "MC114",
                f"the router '{router.label}' of '{router.source}' returns '{name}', which is "
                "not among its targets",
                place,
                f"did you mean '{meant}'?" if meant else f"add '{name}' to its targets",
            )


def _check_ends(declared: Declared, findings: Findings) -> None:
    entered = False
    for source, target, place in _ways(declared, findings):
        entered = entered or source == START
        if source == END:
            message, suggestion = "an edge leads out of END", "nothing comes after the end"
            findings.report("MC122", message, place, suggestion)
        if target == START:
            message, suggestion = "an edge leads into START", "lead back to the first node instead"
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
    """Report unknown names; what each was probably meant to be."""
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
            findings.report("MC110", f"{what} names '{name}', which is no node", place, suggestion)
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
                "MC110", f"an interrupt names '{name}', which is no node", place, suggestion
            )


def _check_order_of_edges(declared: Declared, findings: Findings) -> None:
    conditional = {edge.source for edge in declared.edges if edge.when is not None}
    always: dict[str, PlainEdge] = {}
    for edge in declared.edges:
        before = always.get(edge.source)
        if before is not None:
            findings.report(
                "MC119",
                f"the edge from '{edge.source}' to '{edge.target}' is never tried: the one to "
                f"'{before.target}' before it always holds",
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
    reached = _closure(START, ways)
    ending = _closure(END, back)
    for name, node in findings.nodes.items():
        if START in ways and name not in reached:
            suggestion = f"add an edge to '{name}'"
            findings.report("MC111", f"nothing leads to node '{name}'", node.place, suggestion)
        if name not in ending:
            suggestion = f"add an edge from '{name}' to END"
            message = f"no way leads from node '{name}' to an end"
            findings.report("MC112", message, node.place, suggestion)


def _closure(start: object, ways: Mapping[object, set[object]]) -> set[object]:
    seen = {start}
    waiting = [start]
    while waiting:
        for target in ways.get(waiting.pop(), ()):
            if target not in seen:
                seen.add(target)
                waiting.append(target)
    return seen


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
    for key, name, others in meetings(declared.edges, findings.routers, writers):
        findings.report(
            "MC116",
            f"node '{name}' may run in the same step as {_listed(others)}, and "
            f"{'both' if len(others) == 1 else 'all'} write '{key}', which has no reducer",
            findings.nodes[name].place,
            f"annotate '{key}' with a reducer, or let the nodes run one after the other",
        )


def _listed(names: tuple[str, ...]) -> str:
    shown = [f"'{name}'" for name in names[:3]]
    if len(names) > 3:
        shown.append(f"{len(names) - 3} more")
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
