"""Manifest and fingerprint: changed by structure, by nothing else, and the same everywhere."""

# ruff: noqa: UP006, UP007, UP045 - that spelling does not matter is what is tested
from __future__ import annotations

import os
import subprocess
import sys
import typing
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Optional, TypedDict, Union

import pytest

from milecastle import (
    END,
    START,
    CodecError,
    StateGraph,
    add,
    append,
    last,
    maximum,
    merge,
    minimum,
    union,
)
from milecastle.model.manifest import ChannelInfo, EdgeInfo, Manifest, NodeInfo
from tests.unit.graph import rich_graph
from tests.unit.graph.checking import compiled

GOLDEN = "b6a594f1b32ad2370cd3408e9351bdd5"
SAME_FILE = Path(rich_graph.__file__)


def test_a_rich_graph_has_the_same_fingerprint_on_every_python() -> None:
    assert rich_graph.build().compile().fingerprint == GOLDEN


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
    code = f"from {module} import build; print(build().compile().fingerprint)"
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


def test_every_reducer_is_told_apart() -> None:
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
    with pytest.raises(CodecError, match="the manifest of the graph does not decode"):
        Manifest.from_bytes(data.replace(old, new, 1))
