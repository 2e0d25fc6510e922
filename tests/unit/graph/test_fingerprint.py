"""Manifest and fingerprint: changed by structure, by nothing else, and the same everywhere."""

# ruff: noqa: UP006, UP007, UP045 - that spelling does not matter is what is tested
from __future__ import annotations

import os
import subprocess
import sys
import typing
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Optional, TypedDict, Union

import msgspec
import msgspec.structs
import pytest

from milecastle import END, START, StateGraph, add, append, last, maximum, merge, minimum, union
from milecastle.errors import CodecError
from milecastle.model.manifest import ChannelInfo, EdgeInfo, Manifest, NodeInfo
from tests.unit.graph import rich_graph
from tests.unit.graph.checking import compiled

BEFORE_TYPES = "b6a594f1b32ad2370cd3408e9351bdd5"
GOLDEN = "b4e99c4f62e6d272c2c23765f6108d11 956209220a279e4de665631e3297636c"
SAME_FILE = Path(rich_graph.__file__)


def test_a_rich_graph_has_the_same_fingerprint_on_every_python() -> None:
    graphs = rich_graph.build().compile(), rich_graph.build_nested().compile()
    assert " ".join(graph.fingerprint for graph in graphs) == GOLDEN


def test_a_manifest_without_nested_types_is_what_it_was_before_there_were_any() -> None:
    """Fails if the parts that were added are written where there is nothing to describe."""
    manifest = rich_graph.build().compile().graph.manifest
    bare = msgspec.structs.replace(manifest, types=msgspec.UNSET)
    assert bare.fingerprint == BEFORE_TYPES
    assert b"subgraph" not in bare.to_bytes()
    assert b"types" not in bare.to_bytes()


def test_nested_types_are_described_field_by_field() -> None:
    """Fails if a kind of type is left out, or if a field's default or mark is."""
    manifest = rich_graph.build_nested().compile().graph.manifest
    types = {
        found.name: {field.name: (field.type, field.optional) for field in found.fields}
        for found in manifest.types or ()
    }
    assert types == {
        "Branch": {
            "tag": ("Tag", False),
            "notes": ("list[str]", True),
            "parts": ("list[Branch]", True),
            "docs": ("dict[str, Doc | None]", True),
            "owner": ("UserId", True),
            "color": ("Color", True),
        },
        "Color": {"RED": ("member", True), "BLUE": ("member", True)},
        "Doc": {"text": ("str", False)},
        "Tag": {
            "label": ("str", False),
            "weight": ("float", True),
            "seen": ("list[int]", True),
        },
    }
    kinds = {found.name: found.kind for found in manifest.types or ()}
    assert kinds == {"Branch": "dict", "Color": "enum", "Doc": "record", "Tag": "record"}
    (node,) = manifest.nodes
    assert node.subgraph == rich_graph.build().compile().graph.manifest


def test_pydantic_models_are_described_too() -> None:
    """Fails if ``model_fields`` are not read."""
    pydantic = pytest.importorskip("pydantic")

    class Item(pydantic.BaseModel):  # type: ignore[misc,name-defined]
        size: int
        colour: Optional[str] = None

    graph = StateGraph(state_of(value=list[Item]))
    graph.add_node("a", step)
    graph.add_edges(START, "a", END)
    manifest = compiled(graph).manifest
    assert manifest.types
    (found,) = manifest.types
    assert [(field.name, field.type, field.optional) for field in found.fields] == [
        ("size", "int", False),
        ("colour", "str | None", True),
    ]


def test_labels_inside_a_subgraph_do_not_make_another_graph() -> None:
    """Fails if only the labels of the outer graph are taken off."""
    manifest = rich_graph.build_nested().compile().graph.manifest
    (node,) = manifest.nodes
    assert node.subgraph
    edges = tuple(msgspec.structs.replace(edge, label="x") for edge in node.subgraph.edges)
    inner = msgspec.structs.replace(node.subgraph, edges=edges)
    renamed = msgspec.structs.replace(
        manifest, nodes=(msgspec.structs.replace(node, subgraph=inner),)
    )
    assert renamed.fingerprint == manifest.fingerprint


def run(*arguments: str, seed: str = "random") -> str:
    root = Path(__file__).resolve().parents[3]
    source = os.pathsep.join([str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": source}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip()


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_it_is_the_same_in_every_process_whatever_the_hash_seed(seed: str) -> None:
    assert run(str(SAME_FILE), seed=seed) == GOLDEN


def test_a_script_and_the_same_file_imported_agree() -> None:
    module = "tests.unit.graph.rich_graph"
    code = (
        f"from {module} import build as a, build_nested as b; "
        "print(a().compile().fingerprint, b().compile().fingerprint)"
    )
    assert run("-c", code) == run(str(SAME_FILE)) == run("-m", module)


class State(TypedDict):
    topic: str
    count: int


def step(state: Any) -> None:
    return None


def holds(state: Any) -> bool:
    return True


def anything(state: Any) -> str:
    return str(state)


def fingerprint(
    *,
    state: Any = State,
    nodes: tuple[tuple[str, Any, str], ...] = (("a", step, ""), ("b", step, "")),
    edges: tuple[tuple[Any, ...], ...] = ((START, "a"), ("b", END)),
    router: Any = anything,
    targets: Any = ("b", END),
) -> str:
    """The fingerprint of a small graph, of which any part may be another."""
    graph = StateGraph(state)
    for name, function, version in nodes:
        graph.add_node(name, function, version=version)
    for edge in edges:
        graph.add_edge(*edge)
    graph.add_conditional_edges("a", router, targets)
    return compiled(graph).fingerprint


def state_of(**fields: Any) -> Any:
    make: Any = TypedDict
    return make("State", fields)


BASE = (("a", step, ""), ("b", step, ""))
EDGES = ((START, "a"), ("b", END))


@pytest.mark.parametrize(
    "changed",
    [
        {"nodes": (*BASE, ("c", step, "")), "edges": (*EDGES, ("b", "c"), ("c", END))},
        {
            "nodes": (("a", step, ""), ("c", step, "")),
            "edges": ((START, "a"), ("c", END)),
            "targets": ["c", END],
        },
        {"nodes": (("a", step, "2"), ("b", step, ""))},
        {"nodes": (("b", step, ""), ("a", step, ""))},
        {"edges": (*EDGES, ("b", "a"))},
        {"edges": ((START, "a"), (START, "b"), ("b", END))},
        {"edges": ((START, "a"), ("b", END, holds))},
        {"targets": ["b"]},
        {"targets": ["b", "a", END]},
        {"state": state_of(topic=str, count=str)},
        {"state": state_of(topic=str, count=Optional[int])},
        {"state": state_of(topic=str, count=Annotated[int, add])},
        {"state": state_of(topic=str, count=NotRequired[int])},
        {"state": state_of(topic=str, total=int)},
        {"state": state_of(topic=str)},
        {"state": state_of(topic=str, count=int, more=int)},
    ],
)
def test_structure_versions_and_schema_change_it(changed: dict[str, Any]) -> None:
    assert fingerprint(**changed) != fingerprint()


def documented(state: Any) -> None:
    """A node with a docstring, another body and another name."""
    len(state)


async def asynchronous(state: Any) -> None:
    return None


class Renamed(TypedDict):
    """Another class with the same keys."""

    topic: str
    count: int


@pytest.mark.parametrize(
    "changed",
    [
        {"nodes": (("a", documented, ""), ("b", print, ""))},
        {"nodes": (("a", asynchronous, ""), ("b", step, ""))},
        {"router": step},
        {"targets": {"yes": "b", "no": END}},
        {"edges": (*EDGES, (START, "a"))},
        {"state": Renamed},
        {"state": state_of(topic=str, count=Annotated[int, "words"])},
        {"state": state_of(topic=str, count=Annotated[int, last])},
        {"state": state_of(topic="str", count="int")},
    ],
)
def test_bodies_names_of_functions_and_words_do_not(changed: dict[str, Any]) -> None:
    assert fingerprint(**changed) == fingerprint()


def test_renaming_a_predicate_does_not_change_it() -> None:
    def other_name(state: Any) -> bool:
        return False

    one, other = (
        ((START, "a"), ("b", "a", predicate), ("b", END)) for predicate in (holds, other_name)
    )
    assert fingerprint(edges=one) == fingerprint(edges=other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Optional[int], int | None),
        (Union[int, str], str | int),
        (typing.List[int], list[int]),
        (typing.Dict[str, typing.List[int]], dict[str, list[int]]),
        (Literal["a", "b"], Literal["b", "a"]),
    ],
)
def test_the_spelling_of_an_annotation_does_not_change_it(one: Any, other: Any) -> None:
    assert fingerprint(state=state_of(value=one)) == fingerprint(state=state_of(value=other))


def test_every_reducer_is_recognized() -> None:
    reducers = [last, append, merge, add, maximum, minimum, union]
    found = {fingerprint(state=state_of(value=Annotated[Any, reducer])) for reducer in reducers}
    assert len(found) == len(reducers)


MANIFEST = Manifest(
    (NodeInfo("a", "1"), NodeInfo('it\'s "b"\n')),
    (EdgeInfo(START, "a"), EdgeInfo("a", END, "when", "holds")),
    (ChannelInfo("n", "int"), ChannelInfo("log", "list[str]", "append", True)),
)


def test_a_manifest_is_read_back_as_it_was() -> None:
    assert Manifest.from_bytes(MANIFEST.to_bytes()) == MANIFEST
    assert len(MANIFEST.fingerprint) == 32


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"version":"1"', b'"version":1'),
        (b'"version":"1"', b'"version":"1","colour":"red"'),
        (b'"kind":"when"', b'"kind":"never"'),
        (b'"optional":true', b'"optional":null'),
        (b'"name":"n",', b""),
        (b'{"channels"', b'{"more":1,"channels"'),
        (b'"holds"', b'"\xff"'),
        (b"}", b""),
    ],
)
def test_a_manifest_is_read_strictly(old: bytes, new: bytes) -> None:
    data = MANIFEST.to_bytes()
    assert old in data
    with pytest.raises(CodecError, match="the manifest of the graph cannot be decoded"):
        Manifest.from_bytes(data.replace(old, new, 1))
