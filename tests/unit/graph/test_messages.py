"""Lists that are updated by id: the reducers, and what a log stores of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict, cast

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milecastle import (
    END,
    REMOVE_ALL,
    START,
    DefinitionError,
    ExecutionError,
    InvalidUpdate,
    Remove,
    StateGraph,
    add,
    append,
    initial,
    last,
    merge,
    messages,
    union,
    upsert,
)
from milecastle.codec.deltas import LogCodec, Operations, fold
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.engine.applying import apply_update, apply_updates
from milecastle.errors import CodecError
from milecastle.graph.schema import StateSchema, read_schema

CODEC = LogCodec(ValueCodec(TypeRegistry.for_annotations([])))
APPEND, EDIT = 1, 7


class Chat(TypedDict, total=False):
    log: Annotated[list[Any], messages]


SCHEMA = read_schema(Chat, {})

IDS = st.sampled_from("abcd")


def _item(name: str, n: int) -> Any:
    return {"id": name, "n": n}


ITEMS: st.SearchStrategy[Any] = st.builds(_item, IDS, st.integers(0, 2))
REMOVALS: st.SearchStrategy[Any] = st.builds(Remove, IDS) | st.just(REMOVE_ALL)
UPDATES: st.SearchStrategy[list[Any]] = st.lists(ITEMS | ITEMS | REMOVALS, max_size=5)


def expected(old: list[Any], update: list[Any]) -> list[Any]:
    """The same, item by item, as simply as possible."""
    made = list(old)
    for item in update:
        if item is REMOVE_ALL:
            made = []
        elif isinstance(item, Remove):
            made = [one for one in made if one["id"] != item.id]
        elif item["id"] in [one["id"] for one in made]:
            made = [item if one["id"] == item["id"] else one for one in made]
        else:
            made.append(item)
    return made


def history(updates: list[list[Any]]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The state after each update, and the body that a log stores of it."""
    values: dict[str, Any] = {}
    states: list[dict[str, Any]] = []
    bodies: list[bytes] = []
    for update in updates:
        values = dict(values)
        operations: Operations = []
        apply_update(SCHEMA, values, "node", {"log": update}, operations)
        states.append(values)
        bodies.append(CODEC.encode(operations))
    return states, bodies


@given(updates=st.lists(UPDATES, min_size=1, max_size=10), cut=st.integers(0, 10))
def test_stored_deltas_and_values_fold_to_the_same_list(updates: list[list[Any]], cut: int) -> None:
    """Fails if an id that was removed is replaced again, if edits are applied in another order, or
    if a rollup joins an edit with an append and forgets the positions between."""
    states, bodies = history(updates)
    value: list[Any] = []
    for count, (update, state) in enumerate(zip(updates, states, strict=True), 1):
        value = expected(value, update)
        assert state["log"] == value
        assert CODEC.rebuild(bodies[:count]) == state
    rolled = [*bodies[:cut], CODEC.roll_up(bodies[cut:])] if bodies[cut:] else bodies
    assert CODEC.rebuild(rolled) == states[-1]
    at = min(cut, len(states) - 1)
    snapshot = CODEC.encode_state(states[at])
    assert (
        CODEC.rebuild([snapshot, CODEC.roll_up([CODEC.encode([]), *bodies[at + 1 :]])])
        == (states[-1])
    )


@given(updates=st.lists(UPDATES, min_size=9, max_size=12))
def test_updates_of_many_parallel_tasks_are_applied_in_their_order(
    updates: list[list[Any]],
) -> None:
    """Fails if the updates of a wide step are joined in another order than they are applied in."""
    values: dict[str, Any] = {"log": [{"id": "a", "n": 9}]}
    apply_updates(SCHEMA, values, [(f"task{n}", {"log": u}) for n, u in enumerate(updates)], None)
    flat = [item for update in updates for item in update]
    assert values["log"] == expected([{"id": "a", "n": 9}], flat)


@given(old=st.lists(ITEMS, max_size=4), new=st.lists(ITEMS, max_size=4))
def test_what_a_subgraph_changed_is_an_update(old: list[Any], new: list[Any]) -> None:
    """Fails if removed items, changed items or a new order are not part of it."""
    old, new = expected([], old), expected([], new)
    assert messages(old, messages.added(old, new)) == new


def test_what_a_subgraph_changed_is_only_that() -> None:
    """Fails if it replaces everything, and with that what parallel nodes add."""
    old = [{"id": "a"}, {"id": "b"}, {"id": "c"}]
    new = [{"id": "a"}, {"id": "c", "new": True}, {"id": "d"}]
    assert messages.added(old, new) == [Remove("b"), *new[1:]]


def test_only_the_update_is_stored() -> None:
    """Fails if the whole list is stored, or an item that is as it was."""
    old = [{"id": str(n)} for n in range(100)]
    update = [*old, {"id": "7", "new": True}, {"id": "x"}, Remove("8"), Remove("gone")]
    operations: Operations = []
    apply_update(SCHEMA, {"log": old}, "node", {"log": update}, operations)
    stored = [100, [[7, {"id": "7", "new": True}], [8]], [{"id": "x"}]]
    assert operations == [EDIT, "log", stored]
    operations = []
    apply_update(SCHEMA, {"log": old}, "node", {"log": ({"id": "x"},)}, operations)
    assert operations == [APPEND, "log", [{"id": "x"}]]


def test_a_rollup_of_edits_is_one_edit() -> None:
    """Fails if every version of a message that was streamed by parts is in a rollup."""
    parts = [[APPEND, "log", ["a"]], [EDIT, "log", [6, [[5, "b"]], []]]]
    parts += [[EDIT, "log", [6, [[5, "c"]], ["d"]]], [EDIT, "log", [7, [[0], [6, "e"]], []]]]
    parts += [[APPEND, "log", ["f"]]]
    assert fold([part for one in parts for part in one]) == [
        EDIT,
        "log",
        [5, [[0]], ["c", "e", "f"]],
    ]
    assert fold([0, "log", [1, 2], EDIT, "log", [2, [[0]], [3]]]) == [0, "log", [2, 3]]


UNFIT: list[Any] = [
    None,
    [],
    [1, []],
    [2, [], []],
    [1, [[1, "x"]], []],
    [1, [[-1]], []],
    [1, [["0"]], []],
    [1, [[0], [0]], []],
    [1, [[]], []],
    [1, 5, []],
    [1, [], "text"],
    [1, [[[0]]], []],
    [1, [[0, "x", "y"]], []],
]


@pytest.mark.parametrize("stored", UNFIT)
def test_a_stored_edit_that_does_not_fit_is_refused(stored: Any) -> None:
    """Fails if damaged or hostile bytes make a list that nobody wrote, or another exception."""
    for before in ([0, "log", ["a"]], [EDIT, "log", [0, [], ["a"]]]):
        with pytest.raises(CodecError):
            CODEC.rebuild([CODEC.encode([*before, EDIT, "log", stored])])
        with pytest.raises(CodecError):
            CODEC.rebuild([CODEC.roll_up([CODEC.encode([*before, EDIT, "log", stored])])])


@dataclass(frozen=True, slots=True)
class Note:
    text: str
    id: str | None = None


class Model(pydantic.BaseModel):
    text: str
    id: str | None = None


class Record(msgspec.Struct, frozen=True):
    text: str
    id: str | None = None


class Plain:
    def __init__(self) -> None:
        self.id: str | None = None


@pytest.mark.parametrize("item", [Note("a"), Model(text="a"), Record("a"), Plain()])
def test_objects_get_ids_in_copies(item: Any) -> None:
    """Fails if the given object is changed, or an id is made again for one that has it."""
    (made,) = messages([], [item])
    assert item.id is None
    assert isinstance(made, type(item))
    assert len(made.id) == 36
    assert messages.prepare([made]) == [made]
    assert messages([made], [made]) == [made]


def test_dicts_get_ids_in_copies() -> None:
    """Fails if the dict that a node returned is changed, or two items get one id."""
    given = [{"role": "user"}, {"role": "user", "id": None}]
    made = messages([], given)
    assert given == [{"role": "user"}, {"role": "user", "id": None}]
    assert len({item["id"] for item in made}) == 2


def test_items_are_identified_by_any_field() -> None:
    """Fails if ``by`` is ignored, or its name is not part of the reducer's name in a manifest."""
    by_path: Any = upsert(by="path", mint=False)
    old = [{"path": "a", "size": 1}, {"path": "b", "size": 1}]
    assert by_path(old, [{"path": "a", "size": 2}, Remove("b")]) == [{"path": "a", "size": 2}]
    assert by_path.reducer.name == "upsert path"
    assert messages.reducer.name == "messages"


@pytest.mark.parametrize(
    ("reducer", "update", "message"),
    [
        (messages, {"role": "user"}, "messages takes a list of items, not dict: wrap it in []"),
        (messages, ["text"], "an item of type str has no 'id'"),
        (messages, [Remove(None)], "an item of type Remove has no 'id'"),
        (upsert("path", mint=False), [{"size": 1}], "an item of type dict has no 'path'"),
        (upsert("path"), "text", "upsert path takes a list of items, not str"),
    ],
)
def test_what_cannot_be_identified_is_refused(reducer: Any, update: Any, message: str) -> None:
    """Fails if it is stored without an id, or ``Remove(None)`` removes something."""

    schema = schema_of(reducer)
    with pytest.raises(InvalidUpdate) as caught:
        apply_update(schema, {"log": []}, "node", {"log": update}, [])
    assert message in str(caught.value)


def test_a_list_of_another_type_is_stored_whole() -> None:
    """Fails if an edit is stored for a tuple, which a log would not read as a list."""
    operations: Operations = []
    apply_update(SCHEMA, {"log": ({"id": "a"},)}, "node", {"log": [{"id": "b"}]}, operations)
    assert operations == [0, "log", [{"id": "a"}, {"id": "b"}]]


class Stripped:
    """A custom reducer that says its delta."""

    def __call__(self, old: list[str], update: list[str]) -> list[str]:
        raise AssertionError("it is not called")

    def delta(self, old: list[str], update: list[str]) -> Any:
        if update == ["clear"]:
            return last, []
        return append, tuple(text.strip() for text in update)


def state_of(reducer: Any) -> Any:
    made: Any = TypedDict
    return made("State", {"log": Annotated[Any, reducer, initial(list)]})


def schema_of(reducer: Any) -> StateSchema:
    return read_schema(state_of(reducer), {})


def test_a_custom_reducer_can_say_its_delta() -> None:
    """Fails if its result is stored instead, or the state is not what the stored delta makes."""
    schema, values = schema_of(Stripped()), {"log": ["a"]}
    operations: Operations = []
    apply_update(schema, values, "node", {"log": [" b "]}, operations)
    assert (values["log"], operations) == (["a", "b"], [APPEND, "log", ["b"]])
    apply_update(schema, values, "node", {"log": ["clear"]}, operations)
    assert (values["log"], operations[3:]) == ([], [0, "log", []])


class Own:
    """A custom reducer with any ``delta``."""

    def __init__(self, delta: Callable[[Any, Any], Any]) -> None:
        self.delta = delta

    def __call__(self, old: Any, update: Any) -> Any:
        return old


DELTAS: list[Callable[[Any, Any], Any]] = [
    lambda old, update: update,
    lambda old, update: (sorted, update),
    lambda old, update: (merge, {}),
    lambda old, update: (union, update),
    lambda old, update: (append, "text"),
]


@pytest.mark.parametrize("delta", DELTAS)
def test_a_delta_that_cannot_be_replayed_fails_the_run(delta: Callable[[Any, Any], Any]) -> None:
    """Fails if a log gets an operation that another reader cannot apply."""
    graph = StateGraph(state_of(Own(delta)))
    graph.add_node("work", lambda state: {"log": ["x"]})
    graph.add_edges(START, "work", END)
    with pytest.raises(ExecutionError, match="the reducer"):
        graph.compile().invoke({})


def test_initial_lets_a_reducer_see_the_first_update() -> None:
    """Fails if the first update is taken as the value."""

    def total(old: int, update: int) -> int:
        return old + 2 * update

    class State(TypedDict):
        twice: Annotated[int, total, initial(int)]
        plain: Annotated[str, initial(lambda: "start")]
        once: Annotated[int, add]

    graph = StateGraph(State)
    graph.add_node("work", lambda state: {})
    graph.add_edges(START, "work", END)
    state = graph.compile().invoke({"twice": 4, "once": 1}).state
    assert state == {"twice": 8, "plain": "start", "once": 1}


def test_initial_is_refused_where_a_default_belongs() -> None:
    """Fails if it is ignored, so that the field would have two start values."""

    @dataclass
    class State:
        log: Annotated[list[int], append, initial(list)]

    graph = StateGraph(State)
    graph.add_node("work", lambda state: {})
    graph.add_edges(START, "work", END)
    with pytest.raises(DefinitionError, match="use a default"):
        graph.compile()
    with pytest.raises(TypeError, match="initial takes a function, not list"):
        initial(cast("Any", []))
