"""What calls return reads like the state, and prints nothing of it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import pytest
from pydantic import BaseModel

import milecastle
from milecastle import (
    END,
    START,
    App,
    Checkpoint,
    CheckpointStore,
    Event,
    Result,
    Snapshot,
    StateGraph,
    interrupt,
)
from milecastle.app.runs.streams import StreamMode
from milecastle.records import Interrupt

MODES: tuple[StreamMode, ...] = ("updates", "state", "events")
SECRET = "tell-nobody"


class Note(TypedDict):
    text: str
    size: int


@dataclass
class NoteClass:
    text: str = ""
    size: int = 0


class NoteModel(BaseModel):
    text: str = ""
    size: int = 0


def measuring(form: type[Any]) -> App[Any]:
    graph = StateGraph(form, name="measuring")

    @graph.node
    def measure(state: Any) -> dict[str, Any]:
        text: str = state["text"] if form is Note else state.text
        return {"size": len(text)}

    graph.add_edges(START, "measure", END)
    return graph.compile(store="memory://")


def read_in_every_way(form: type[Any]) -> list[Any]:
    """A result, a snapshot and a checkpoint of the same state."""
    app = measuring(form)
    result = app.invoke({"text": SECRET}, thread="a")
    stored = CheckpointStore(app.store).get_latest(milecastle.ThreadKey("default", "a"))
    found: list[Any] = [result, app.state("a")]
    return [*found, stored] if form is Note else found


@pytest.mark.parametrize("form", [Note, NoteClass, NoteModel])
def test_result_snapshot_and_checkpoint_are_mappings_of_the_state(form: type[Any]) -> None:
    """Seen to fail with only ``__getitem__`` defined: ``in``, ``dict`` and ``list`` raised
    ``KeyError: 0``.
    """
    expected = {"text": SECRET, "size": len(SECRET)}
    for found in read_in_every_way(form):
        assert "size" in found
        assert "nothing" not in found
        assert dict(found) == expected
        assert {**found} == expected
        assert list(found) == list(found.keys()) == ["text", "size"]
        assert list(found.values()) == list(expected.values())
        assert dict(found.items()) == expected
        assert len(found) == 2
        assert found["text"] == found.get("text") == SECRET
        assert found.get("nothing") is None
        assert found.get("nothing", 7) == 7
        assert isinstance(found, Mapping)
        with pytest.raises(KeyError):
            found["nothing"]


def test_result_equals_a_dict_with_the_same_items() -> None:
    """Seen to fail without ``StateReader.__eq__``."""
    app = measuring(Note)
    result = app.invoke({"text": "ab"}, thread="a")
    assert result == {"text": "ab", "size": 2}
    assert result != {"text": "ab", "size": 3}
    assert result != "ab"
    assert app.state("a") == app.state("a")
    assert app.state("a") != app.state("a", at=1)
    for same in (copy.copy(result), pickle.loads(pickle.dumps(result))):
        assert same == result
    assert result != app.state("a")


def test_result_can_be_the_input_of_another_run_and_the_update_of_a_node() -> None:
    """As people do who call one graph in the node of another."""
    inner = measuring(Note)
    graph = StateGraph(Note)

    @graph.node
    def call(state: Note) -> Result[Note]:
        return inner.invoke(state, thread="inner")

    graph.add_edges(START, "call", END)
    first = graph.compile().invoke({"text": "abc"})
    assert first["size"] == 3
    assert inner.invoke(dict(first), thread="b")["size"] == 3


def test_no_value_of_the_state_is_in_a_repr() -> None:
    """Seen to fail with the ``repr`` that msgspec gives a struct."""
    graph = StateGraph(Note)

    @graph.node
    def ask(state: Note) -> dict[str, Any]:
        return {"size": interrupt(f"size of {state['text']}?", show=state["text"], answer=int)}

    graph.add_edges(START, "ask", END)
    app = graph.compile(store="memory://")
    result = app.invoke({"text": SECRET}, thread="letters")
    events = [event for mode in MODES for event in app.stream({"text": SECRET}, mode=mode)]
    shown: list[Any] = [result, *result.interrupts, *read_in_every_way(Note), *events]
    assert {type(found) for found in shown} == {Result, Interrupt, Snapshot, Checkpoint, Event}
    for found in shown:
        assert SECRET not in repr(found)
        assert SECRET not in str(found.__rich_repr__())
    assert "status='interrupted'" in repr(result)
    assert "thread='letters'" in repr(result)
    assert "keys=('text',)" in repr(result)
    assert result.interrupts[0].id in repr(result)
    assert "node='ask'" in repr(result.interrupts[0])


def test_an_app_and_a_graph_print_names_and_counts() -> None:
    """Seen to fail with the default ``<App object at 0x...>``."""
    graph = StateGraph(Note, name="letters")
    assert repr(graph) == "StateGraph('letters', nodes=[], edges=0)"

    @graph.node(name="open")
    def open_note(state: Note) -> Note:
        return {"text": SECRET, "size": 0}

    graph.add_edges(START, "open", END)
    assert repr(graph) == "StateGraph('letters', nodes=['open'], edges=2)"
    app = graph.compile()
    assert repr(app) == f"App('letters', nodes=1, no store, fingerprint {app.fingerprint[:8]})"
    assert "MemoryStore" in repr(graph.compile(store="memory://"))


def test_an_event_is_read_like_a_dict() -> None:
    """Seen to fail with only ``__getitem__``: ``"node" in event`` raised ``KeyError: 0``."""
    (event,) = measuring(Note).stream({"text": SECRET}, thread="a")
    assert "node" in event
    assert "nothing" not in event
    assert dict(event)["node"] == "measure"
    assert list(event) == list(event.keys())


def test_every_public_class_that_is_read_by_key_is_read_in_all_ways() -> None:
    """Without ``__iter__`` and ``__contains__`` Python tries 0, 1, 2 as keys.

    Seen to fail with ``StateReader.__contains__`` and ``__iter__`` removed.
    """
    public = [getattr(milecastle, name) for name in milecastle.__all__]
    keyed = [cls for cls in public if isinstance(cls, type) and hasattr(cls, "__getitem__")]
    assert {Result, Snapshot, Checkpoint} <= set(keyed)
    for cls in keyed:
        assert hasattr(cls, "__iter__"), cls
        assert hasattr(cls, "__contains__"), cls
