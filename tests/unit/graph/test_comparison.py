"""Comparing manifests: what changed, and which threads it touches."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from milecastle.graph.comparison import compare
from milecastle.model.manifest import (
    END,
    START,
    ChannelInfo,
    EdgeInfo,
    EdgeKind,
    Manifest,
    NodeInfo,
)

NO_VALUE = (
    "was added and is required, but the thread has no value for it: mark it NotRequired or give "
    "it a default"
)
TOPIC = ChannelInfo("topic", "str")
NOTES = ChannelInfo("notes", "list[str]", "append", True)


def manifest(
    ways: str,
    *channels: ChannelInfo,
    versions: dict[str, str] | None = None,
    kinds: dict[str, EdgeKind] | None = None,
) -> Manifest:
    """``"^ab ac c$"``: from START over a to b, from a to c, from c to END."""
    ends = {"^": START, "$": END}
    names = dict.fromkeys(name for name in ways if name not in "^$ ")
    edges = [
        EdgeInfo(
            ends.get(one, one), ends.get(other, other), (kinds or {}).get(one + other, "fixed")
        )
        for way in ways.split()
        for one, other in pairwise(way)
    ]
    nodes = tuple(NodeInfo(name, (versions or {}).get(name, "")) for name in names)
    return Manifest(nodes, tuple(edges), channels or (TOPIC,))


CHAIN = manifest("^abcd$")


def refused(old: Manifest, new: Manifest, *pending: str) -> list[str]:
    return compare(old, new).reasons_against(pending)


def test_the_same_graph_differs_in_nothing() -> None:
    difference = compare(CHAIN, CHAIN)
    assert not difference
    assert difference.summary() == "nothing changed"
    assert difference.reasons_against(["a", "b"]) == []


def test_a_label_makes_no_difference() -> None:
    old = Manifest((NodeInfo("a"),), (EdgeInfo(START, "a", "when", "one"),), (TOPIC,))
    new = Manifest((NodeInfo("a"),), (EdgeInfo(START, "a", "when", "other"),), (TOPIC,))
    assert not compare(old, new)
    assert compare(old, new).summary() == "nothing changed"


@pytest.mark.parametrize(
    ("old", "new", "summary"),
    [
        (
            CHAIN,
            manifest("^abcd$ de$"),
            "node 'e' added, edge d -> e added, edge e -> __end__ added",
        ),
        (
            CHAIN,
            manifest("^abc$"),
            (
                "node 'd' removed, edge c -> __end__ added, edge c -> d removed, "
                "edge d -> __end__ removed"
            ),
        ),
        (
            CHAIN,
            manifest("^abxd$"),
            (
                "node 'c' renamed to 'x', edge b -> x added, edge x -> d added, "
                "edge b -> c removed, edge c -> d removed"
            ),
        ),
        (CHAIN, manifest("^abcd$", versions={"b": "2"}), "node 'b' has another version"),
        (CHAIN, manifest("^abcd$ ac"), "edge a -> c added"),
        (manifest("^abcd$ ac"), CHAIN, "edge a -> c removed"),
        (CHAIN, manifest("^abcd$", kinds={"ab": "when"}), "edge a -> b has another kind"),
        (CHAIN, manifest("^abcd$", TOPIC, NOTES), "key 'notes' added"),
        (manifest("^abcd$", TOPIC, NOTES), CHAIN, "key 'notes' removed"),
        (CHAIN, manifest("^abcd$", ChannelInfo("title", "str")), "key 'topic' renamed to 'title'"),
        (
            CHAIN,
            manifest("^abcd$", ChannelInfo("topic", "int")),
            "key 'topic' changed from str to int",
        ),
        (
            CHAIN,
            manifest("^abcd$", ChannelInfo("topic", "str", "add")),
            "key 'topic' changed from str to str with reducer add",
        ),
        (
            CHAIN,
            manifest("^abcd$", ChannelInfo("topic", "str", "last", True)),
            "key 'topic' is optional now",
        ),
        (
            manifest("^abcd$", ChannelInfo("topic", "str", "last", True)),
            CHAIN,
            "key 'topic' is required now",
        ),
        (manifest("^a$ ^b$"), manifest("^b$ ^a$"), "order changed"),
    ],
)
def test_the_summary_says_what_changed(old: Manifest, new: Manifest, summary: str) -> None:
    assert compare(old, new).summary() == summary
    assert compare(old, new)


def test_rename_is_distinguished_from_a_removal_and_an_addition() -> None:
    renamed = compare(CHAIN, manifest("^abxd$"))
    assert dict(renamed.renamed_nodes) == {"c": "x"}
    assert (renamed.added_nodes, renamed.removed_nodes) == ((), ())
    moved = compare(CHAIN, manifest("^abd$ ax$"))
    assert (moved.added_nodes, moved.removed_nodes) == (("x",), ("c",))
    assert not moved.renamed_nodes


def test_two_of_one_shape_are_renamed_in_order() -> None:
    difference = compare(manifest("^a$ ^b$"), manifest("^x$ ^y$"))
    assert dict(difference.renamed_nodes) == {"a": "x", "b": "y"}
    keys = compare(
        manifest("^a$", ChannelInfo("one", "int"), ChannelInfo("two", "int")),
        manifest("^a$", ChannelInfo("uno", "int"), ChannelInfo("due", "int")),
    )
    assert dict(keys.channels.renamed) == {"one": "uno", "two": "due"}


def test_a_node_that_would_run_next_and_is_gone_is_refused() -> None:
    new = manifest("^acd$")
    assert refused(CHAIN, new, "b") == ["node 'b' would run next but was removed"]
    renamed = manifest("^axcd$")
    assert refused(CHAIN, renamed, "b") == [
        "node 'b' would run next but was removed (renamed to 'x'? then declare renamed_from='b')"
    ]


def test_a_node_that_lies_ahead_and_is_gone_is_refused() -> None:
    assert refused(CHAIN, manifest("^abd$"), "a") == [
        "node 'c' is ahead of the thread and was removed"
    ]
    assert refused(CHAIN, manifest("^abxd$"), "a") == [
        "node 'c' is ahead of the thread and was removed"
    ]
    assert refused(CHAIN, manifest("^abd$"), START) == [
        "node 'c' is ahead of the thread and was removed"
    ]


def test_a_node_that_lies_behind_may_go() -> None:
    assert refused(CHAIN, manifest("^bcd$"), "b") == []
    assert refused(CHAIN, manifest("^acd$"), "c", "d") == []
    assert refused(CHAIN, manifest("^xbcd$"), "b") == []


def test_in_a_loop_everything_lies_ahead() -> None:
    loop = manifest("^abca b$")
    assert refused(loop, manifest("^aba b$"), "b") == [
        "node 'c' is ahead of the thread and was removed"
    ]


def test_an_edge_that_lies_ahead_and_is_gone_is_refused() -> None:
    old = manifest("^abcd$ bd")
    assert refused(old, CHAIN, "a") == [
        "the edge from 'b' to 'd' is ahead of the thread and was removed"
    ]
    assert refused(old, CHAIN, "b") == [
        "the edge from 'b' to 'd' is ahead of the thread and was removed"
    ]
    assert refused(old, CHAIN, "c") == []


def test_a_thread_whose_next_step_leads_elsewhere_is_not_silently_finished() -> None:
    assert refused(manifest("^ab$"), manifest("^a$ ^b$"), "a") == [
        "the edge from 'a' to 'b' is ahead of the thread and was removed"
    ]


def test_a_node_put_into_the_way_is_a_detour() -> None:
    assert refused(CHAIN, manifest("^abxcd$"), "a") == []
    assert refused(CHAIN, manifest("^abxycd$"), "b") == []
    assert refused(CHAIN, manifest("^abcdx$"), "d") == []
    assert refused(manifest("^aa a$"), manifest("^axa a$"), "a") == []


def test_new_path_that_does_not_arrive_is_not_a_detour() -> None:
    assert refused(CHAIN, manifest("^abx$ ^cd$"), "b") == [
        "the edge from 'b' to 'c' is ahead of the thread and was removed"
    ]
    by_an_old_node = manifest("^acb$")
    assert refused(manifest("^ab$ ac$"), by_an_old_node, "a") == [
        "the edge from 'a' to 'b' is ahead of the thread and was removed",
        "the edge from 'c' to '__end__' is ahead of the thread and was removed",
    ]


def test_what_was_only_added_strands_nobody() -> None:
    wider = manifest("^abcd$ ax$ yd ay", TOPIC, NOTES)
    for name in "abcd":
        assert refused(CHAIN, wider, name) == []
    assert refused(CHAIN, manifest("^abcd$", versions={"a": "2"}), "a") == []
    assert refused(CHAIN, manifest("^abcd$", kinds={"ab": "router"}), "a") == []


def test_a_state_key_that_is_gone_renamed_or_retyped_is_refused() -> None:
    two = manifest("^a$", TOPIC, ChannelInfo("count", "int"))
    one = manifest("^a$", TOPIC)
    assert refused(two, one) == ["state key 'count' was removed"]
    assert refused(two, manifest("^a$", TOPIC, ChannelInfo("total", "int"))) == [
        "state key 'count' was removed (renamed to 'total'?)"
    ]
    assert refused(two, manifest("^a$", TOPIC, ChannelInfo("count", "float"))) == [
        "state key 'count' was int and is now float"
    ]
    assert refused(two, manifest("^a$", TOPIC, ChannelInfo("count", "int", "add"))) == [
        "state key 'count' was int and is now int with reducer add"
    ]


def test_a_key_that_is_added_must_be_optional() -> None:
    required = manifest("^a$", TOPIC, ChannelInfo("count", "int"))
    assert refused(manifest("^a$", TOPIC), required) == [f"state key 'count' {NO_VALUE}"]
    optional = manifest("^a$", TOPIC, ChannelInfo("count", "int", "last", True))
    assert refused(manifest("^a$", TOPIC), optional) == []
    assert refused(required, optional) == []
    assert refused(optional, required) == []


def test_every_reason_is_given() -> None:
    new = manifest("^ad$", ChannelInfo("title", "int"))
    assert refused(CHAIN, new, "b", "b") == [
        "state key 'topic' was removed",
        f"state key 'title' {NO_VALUE}",
        "node 'b' would run next but was removed",
        "node 'c' is ahead of the thread and was removed",
    ]


def test_a_thread_that_ended_is_touched_by_its_state_alone() -> None:
    assert refused(CHAIN, manifest("^x$")) == []


def test_large_manifests_are_compared_at_once() -> None:
    def chain(prefix: str, every: int = 1) -> Manifest:
        names = [START, *(f"{prefix}{number}" for number in range(0, 2_000, every)), END]
        edges = tuple(map(EdgeInfo, names, names[1:]))
        return Manifest(tuple(map(NodeInfo, names[1:-1])), edges, (TOPIC,))

    start = time.process_time()
    assert len(compare(chain("a"), chain("b")).reasons_against(["a0"])) == 2_000
    assert compare(chain("a", every=2), chain("a")).reasons_against(["a0"]) == []
    assert time.process_time() - start < 10
