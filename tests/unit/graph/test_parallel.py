"""Meetings: exactly the nodes that some run could bring into one step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from milecastle.graph.edges import PlainEdge, Router
from milecastle.graph.parallel import meetings
from milecastle.model.manifest import END, START

NAMES = "abcdef"


def holds(state: Any) -> bool:
    return True


def pairs(edges: Sequence[PlainEdge], routers: Sequence[Router] = ()) -> set[str]:
    """Every pair of nodes that may meet, each pair asked for separately."""
    groups = {one + other: [one, other] for one, other in combinations(NAMES, 2)}
    return {key for key, _, _ in meetings(edges, routers, groups)}


def edges(text: str) -> list[PlainEdge]:
    """``"ab ac?"``: from a to b, and to c if a predicate holds; ``^`` and ``$`` are the ends."""
    ends = {"^": START, "$": END}
    return [
        PlainEdge(ends.get(way[0], way[0]), ends.get(way[1], way[1]), holds if "?" in way else None)
        for way in text.split()
    ]


def router(source: str, targets: str, *together: str) -> Router:
    return Router(
        source=source,
        function=holds,
        targets={name: name for name in targets},
        together=tuple(map(frozenset, together)),
    )


def test_a_chain_brings_nobody_together() -> None:
    assert pairs(edges("^a ab bc c$")) == set()


def test_siblings_meet_and_so_do_those_that_follow_them() -> None:
    assert pairs(edges("^a ab ac bd ce df ef f$")) == {"bc", "de"}


def test_arms_of_different_length_meet_step_by_step() -> None:
    assert pairs(edges("^a ab ac bd df cf f$")) == {"bc", "df"}


def test_a_loop_meets_whatever_runs_beside_it() -> None:
    assert pairs(edges("^a ^b aa? a$? bc cd d$")) == {"ab", "ac", "ad"}


def test_of_predicates_one_is_taken() -> None:
    assert pairs(edges("^a ab? ac? a$ b$ c$")) == set()


def test_of_a_routers_targets_one_is_taken_unless_it_returns_several() -> None:
    plain = edges("^a b$ c$ d$")
    assert pairs(plain, [router("a", "bcd")]) == set()
    assert pairs(plain, [router("a", "bcd", "bc")]) == {"bc"}
    assert pairs(plain, [router("a", "bcd", "bc", "cd")]) == {"bc", "cd"}
    assert pairs(plain, [router("a", "bcd", "bcd")]) == {"bc", "bd", "cd"}


def test_a_router_beside_an_edge_takes_both() -> None:
    assert pairs(edges("^a ab b$ c$ d$"), [router("a", "cd")]) == {"bc", "bd"}


def test_a_node_never_meets_itself_or_the_end() -> None:
    assert pairs(edges("^a ab ac bd cd d$ a$")) == {"bc"}


def test_everybody_who_meets_is_named_and_nobody_twice_without_need() -> None:
    fan = edges("^a ab ac ad b$ c$ d$")
    assert list(meetings(fan, (), {"k": ["b", "c", "d"]})) == [("k", "b", ("c", "d"))]
    mixed = [router("a", "bcde", "be", "ce", "cd")]
    found = list(meetings(edges("^a b$ c$ d$ e$"), mixed, {"k": list("bcde")}))
    assert found == [("k", "b", ("e",)), ("k", "c", ("d",))]
    crossed = [router("a", "bcde", "bc", "be", "de")]
    found = list(meetings(edges("^a b$ c$ d$ e$"), crossed, {"k": list("bcde")}))
    assert found == [("k", "b", ("c", "e")), ("k", "d", ("e",))]


def test_a_group_of_one_meets_nobody() -> None:
    assert list(meetings(edges("^a ^b a$ b$"), (), {"k": ["a"], "l": []})) == []


@st.composite
def structures(draw: st.DrawFn) -> tuple[list[PlainEdge], list[Router]]:
    source = st.sampled_from([START, *NAMES])
    target = st.sampled_from([*NAMES, END])
    plain = st.builds(PlainEdge, source, target, st.sampled_from([None, None, holds]))
    some = st.frozensets(st.sampled_from(NAMES), min_size=1, max_size=3)

    def make(source: str, targets: frozenset[str], several: bool) -> Router:
        names = "".join(sorted(targets))
        return router(source, names, *([names] if several else []))

    routers = draw(st.lists(st.builds(make, source, some, st.booleans()), max_size=3))
    return draw(st.lists(plain, max_size=12)), routers


def brute_force(edges: list[PlainEdge], routers: list[Router]) -> set[str]:
    """Pairs by the definition: walk over pairs of nodes until nothing is new."""
    ways: dict[str, set[str]] = {}
    found: set[tuple[str, str]] = set()
    for source in [START, *NAMES]:
        own = [edge for edge in edges if edge.source == source]
        conditional = any(edge.when for edge in own)
        choices = [{e.target for e in own}] if conditional else [{e.target} for e in own]
        for each in (each for each in routers if each.source == source):
            choices.append(set(each.targets))
            found |= {(a, b) for group in each.together for a in group for b in group}
        ways[source] = set[str]().union(*choices)
        for one, other in combinations(choices, 2):
            found |= {(a, b) for a in one for b in other} | {(b, a) for a in one for b in other}
    waiting = list(found)
    while waiting:
        a, b = waiting.pop()
        if a != b:
            new = {(c, d) for c in ways.get(a, ()) for d in ways.get(b, ())} - found
            found |= new
            waiting += new
    return {a + b for a, b in found if a < b and END not in (a, b)}


@given(structures())
def test_meetings_are_those_of_the_definition(given: tuple[list[PlainEdge], list[Router]]) -> None:
    assert pairs(*given) == brute_force(*given)
