"""Manifests that the drawing tests share."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

from milecastle.model.manifest import END, START, EdgeInfo, Manifest, NodeInfo

HOSTILE = (
    "<script>alert(1)</script>",
    "\"double\" & 'single'",
    "]]> -->",
    "%%{init: {}}%%",
    "end",
    "a\x00b\x1b\nc\u202ed\ud800e\uffff",
    "\u540d\u524d" * 30,
    "",
    "x" * 500,
)


def manifest(*edges: EdgeInfo, names: str = "") -> Manifest:
    """A manifest of these edges whose nodes are named, or found in the edges."""
    found = [name for edge in edges for name in (edge.source, edge.target)]
    nodes = names.split() or [name for name in dict.fromkeys(found) if name not in (START, END)]
    return Manifest(tuple(map(NodeInfo, nodes)), edges, ())


def path(*names: str) -> tuple[EdgeInfo, ...]:
    """Fixed edges from each name to the next."""
    return tuple(map(EdgeInfo, names, names[1:]))


CHAIN = manifest(*path(START, "research", "review", "publish", END))

AGENT = manifest(
    *path(START, "agent"),
    EdgeInfo("agent", "tools", "router", "route"),
    EdgeInfo("agent", END, "router", "route"),
    *path("tools", "agent"),
)

REVIEW = manifest(
    *path(START, "write", "review"),
    EdgeInfo("review", "publish", "when", "approved"),
    EdgeInfo("review", "fix", "when", "rejected"),
    EdgeInfo("review", "review", "when", "undecided"),
    *path("fix", "write"),
    *path("publish", END),
)

FAN = manifest(
    *path(START, "split"),
    *(EdgeInfo("split", name) for name in "abcde"),
    *(EdgeInfo(name, "join") for name in "abcde"),
    *path("join", END),
)

HOSTILE_GRAPH = manifest(
    EdgeInfo(START, HOSTILE[0]),
    *(EdgeInfo(a, b, "when", b) for a, b in pairwise(HOSTILE)),
    EdgeInfo(HOSTILE[-1], HOSTILE[1], "router", HOSTILE[0]),
    EdgeInfo(HOSTILE[-1], END),
)


_NAMES = st.integers(0, 9999).map("node_{}".format)


@st.composite
def manifests(draw: st.DrawFn, most: int = 60, names: st.SearchStrategy[str] = _NAMES) -> Manifest:
    """Random graphs: cycles, self loops, parallel edges, labels and unreachable nodes."""
    nodes = draw(st.lists(names, min_size=1, max_size=most, unique=True))
    nodes = [name for name in nodes if name not in (START, END)] or ["only"]
    edge = st.builds(
        EdgeInfo,
        st.sampled_from([START, *nodes]),
        st.sampled_from([*nodes, END]),
        st.sampled_from(["fixed", "when", "router"]),
        st.sampled_from(["", "", "yes", "a_longer_label"]),
    )
    edges = draw(st.lists(edge, max_size=2 * most))
    return Manifest(tuple(map(NodeInfo, nodes)), tuple(edges), ())
