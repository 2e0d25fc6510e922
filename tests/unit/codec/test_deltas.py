"""Deltas and snapshots: a state rebuilt from its log is the state."""

from __future__ import annotations

from typing import Any

import msgspec.msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milecastle import UnserializableState
from milecastle.codec.bounds import MAX_DEPTH
from milecastle.codec.deltas import (
    LogCodec,
    Operations,
    fold,
    join_lists,
    operations_between,
    replay,
)
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.engine.applying import apply_update
from milecastle.errors import CodecError
from milecastle.graph.schema import Channel, StateSchema, read_schema
from milecastle.model.reducers import BUILTIN

CODEC = LogCodec(ValueCodec(TypeRegistry.for_annotations([])))
CODES = {reducer.name: reducer.code for reducer in BUILTIN}


def states() -> StateSchema:
    from typing import Annotated, TypedDict

    from milecastle import add, append, maximum, merge, minimum, union

    class State(TypedDict, total=False):
        plain: Any
        listed: Annotated[list[int], append]
        merged: Annotated[dict[str, int], merge]
        added: Annotated[int, add]
        highest: Annotated[int, maximum]
        lowest: Annotated[int, minimum]
        united: Annotated[set[int], union]
        own: Annotated[int, max_of]

    return read_schema(State, locals() | {"max_of": max_of})


def max_of(old: int, new: int) -> int:
    return max(old, new)


SCHEMA = states()
INTS = st.integers(-5, 5)
UPDATES = st.fixed_dictionaries(
    {},
    optional={
        "plain": st.one_of(INTS, st.lists(INTS), st.dictionaries(st.text(max_size=2), INTS)),
        "listed": st.lists(INTS, max_size=3),
        "merged": st.dictionaries(st.sampled_from("abc"), INTS, max_size=3),
        "added": INTS,
        "highest": INTS,
        "lowest": INTS,
        "united": st.sets(INTS, max_size=3),
        "own": INTS,
    },
)


def history(updates: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The state after each update, and the body that a log keeps of it."""
    values: dict[str, Any] = {}
    states: list[dict[str, Any]] = []
    bodies: list[bytes] = []
    for update in updates:
        values = dict(values)
        operations: Operations = []
        apply_update(SCHEMA, values, "node", update, operations)
        states.append(values)
        bodies.append(CODEC.encode(operations))
    return states, bodies


@given(updates=st.lists(UPDATES, min_size=1, max_size=12))
def test_rebuilding_from_deltas_equals_the_state(updates: list[dict[str, Any]]) -> None:
    states, bodies = history(updates)
    for count, state in enumerate(states, 1):
        assert CODEC.rebuild(bodies[:count]) == state


@given(updates=st.lists(UPDATES, min_size=1, max_size=6))
def test_a_channel_that_is_left_encoded_is_the_same(updates: list[dict[str, Any]]) -> None:
    """Fails if another channel changes, an older value is left, or a reducer is not applied."""
    states, bodies = history(updates)
    for channel in ("plain", "listed", "added"):
        found = CODEC.rebuild(bodies, encoded=channel)
        if isinstance(found.get(channel), bytes):
            found[channel] = msgspec.msgpack.decode(found[channel])
        assert found == states[-1]


def test_a_channel_that_is_set_is_left_encoded() -> None:
    """Fails if it is decoded, nothing is taken for a value, or a part of the next one goes too."""
    between = CODEC.encode_state({"b": 3, "a": 1, "c": 4})
    assert CODEC.rebuild([between], encoded="a") == {"b": 3, "c": 4, "a": b"\x01"}
    first = CODEC.encode_state({"a": [1, 2], "b": 3})
    second = CODEC.encode_state({"a": [4]})
    assert CODEC.rebuild([first, second], encoded="a") == {"b": 3, "a": b"\x91\x04"}
    assert CODEC.rebuild([first, CODEC.encode_state({"a": None})], encoded="a") == {"b": 3}
    assert CODEC.rebuild([first], encoded="c") == {"a": [1, 2], "b": 3}


def test_a_channel_that_cannot_be_left_encoded_is_decoded() -> None:
    """Fails if a text that is equal to its name, an appended value or damage is taken for it."""
    only_a_text = CODEC.encode_state({"b": "a"})
    assert CODEC.rebuild([only_a_text], encoded="a") == {"b": "a"}
    appended = CODEC.encode([CODES["append"], "a", [2]])
    first = CODEC.encode_state({"a": [1], "b": 3})
    assert CODEC.rebuild([first, appended], encoded="a") == {"a": [1, 2], "b": 3}
    with pytest.raises(CodecError):
        CODEC.rebuild([b"\x93\x00\xa1a\xc1"], encoded="a")


@given(updates=st.lists(UPDATES, min_size=1, max_size=12), cut=st.integers(0, 12))
def test_a_rollup_has_the_effect_of_all_that_it_replaces(
    updates: list[dict[str, Any]], cut: int
) -> None:
    states, bodies = history(updates)
    rolled = [*bodies[:cut], CODEC.roll_up(bodies[cut:])] if bodies[cut:] else bodies
    assert CODEC.rebuild(rolled) == states[-1]


@given(updates=st.lists(UPDATES, min_size=1, max_size=8), cut=st.integers(1, 8))
def test_a_snapshot_replaces_everything_before_it(updates: list[dict[str, Any]], cut: int) -> None:
    states, bodies = history(updates)
    cut = min(cut, len(states))
    snapshot = CODEC.encode_state(states[cut - 1])
    assert CODEC.rebuild([snapshot, *bodies[cut:]]) == states[-1]
    assert CODEC.decode_state(snapshot) == states[cut - 1]


def test_a_rollup_is_as_short_as_it_can_be() -> None:
    append, add = CODES["append"], CODES["add"]
    first: Operations = [0, "n", 1, append, "l", [1], add, "t", 1]
    second: Operations = [0, "n", 2, append, "l", [2], add, "t", 2]
    assert fold(first + second) == [0, "n", 2, append, "l", [1, 2], add, "t", 1, add, "t", 2]
    assert fold([0, "l", [1], append, "l", [2]]) == [0, "l", [1, 2]]


def test_floats_are_added_in_their_own_order() -> None:
    add = CODES["add"]
    numbers = [0.1, 0.2, 0.3, 1e16, 1.0, 1.0]
    total = numbers[0]
    for number in numbers[1:]:
        total += number
    operations: Operations = []
    for number in numbers:
        operations += (add, "t", number)
    assert replay({}, fold(operations))["t"] == total


@pytest.mark.parametrize(
    "value",
    [
        {"not": "a list"},
        [0, "n"],
        ["0", "n", 1],
        [0, 1, 1],
        [99, "n", 1],
        [True, "n", 1],
        None,
    ],
)
def test_bytes_that_are_not_a_list_of_operations_are_refused(value: Any) -> None:
    with pytest.raises(CodecError):
        CODEC.decode(msgspec.msgpack.encode(value))


def test_an_update_that_does_not_fit_the_value_before_it_is_refused() -> None:
    broken: list[Operations] = [
        [0, "x", 1, CODES["append"], "x", [1]],
        [0, "x", [1], CODES["merge"], "x", {}],
        [0, "x", "text", CODES["add"], "x", 1],
        [0, "x", "text", CODES["maximum"], "x", 1],
        [0, "x", {"a": 1}, CODES["maximum"], "x", {"a": 2}],
    ]
    for operations in broken:
        with pytest.raises(CodecError, match="a stored update"):
            CODEC.rebuild([CODEC.encode(operations)])


def test_a_value_that_cannot_be_stored_is_named_with_node_and_path() -> None:
    with pytest.raises(UnserializableState) as caught:
        CODEC.encode([0, "good", 1, 1, "docs", [{"lock": object()}]], node="reader")
    assert (caught.value.path, caught.value.node) == ("$.docs[0].lock", "reader")
    assert caught.value.type_name == "object"


def test_what_only_the_whole_is_too_deep_for_is_refused_as_well() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = [value]
    assert CODEC.encode([0, "x", value[0]])
    with pytest.raises(UnserializableState, match="deep"):
        CODEC.encode([0, "x", value])


def test_a_value_that_cannot_be_read_is_named_with_its_path() -> None:
    unknown = msgspec.msgpack.Ext(99, b"")
    body = msgspec.msgpack.encode([0, "good", 1, 0, "docs", [1, {"here": unknown}]])
    with pytest.raises(CodecError, match=r"the value at \$\.docs\[1\]\[key 0\] cannot be read"):
        CODEC.decode(body)


def test_damage_outside_of_a_value_is_named_as_such() -> None:
    unknown = msgspec.msgpack.Ext(99, b"")
    for damaged in ([unknown], [0, unknown, 1], {"a": unknown}):
        with pytest.raises(CodecError, match=r"the value at \$"):
            CODEC.decode(msgspec.msgpack.encode(damaged))
    with pytest.raises(CodecError):
        CODEC.decode(b"\xc1")


@given(lists=st.lists(st.lists(INTS, max_size=20), min_size=1, max_size=5))
def test_packed_lists_are_joined_without_unpacking(lists: list[list[int]]) -> None:
    joined = join_lists([msgspec.msgpack.encode(items) for items in lists])
    assert msgspec.msgpack.decode(joined) == [item for items in lists for item in items]


@pytest.mark.parametrize("size", [0, 15, 16, 65_535, 65_536])
def test_lists_of_every_size_are_joined(size: int) -> None:
    body = msgspec.msgpack.encode([1] * size)
    assert msgspec.msgpack.decode(join_lists([body, body])) == [1] * (2 * size)


@pytest.mark.parametrize("body", [b"", b"\x80", b"\xdc\x00", b"\xdd\x00\x00\x00", b"\xc0"])
def test_what_is_not_a_packed_list_is_not_joined(body: bytes) -> None:
    with pytest.raises(CodecError, match="does not hold a list"):
        join_lists([body, body])


def test_the_channels_of_the_histories_are_those_of_the_schema() -> None:
    channel: Channel = SCHEMA.channels["own"]
    assert (len(SCHEMA.channels), channel.reducer.code) == (8, 0)


def test_operations_between_two_states_make_one_of_the_other() -> None:
    """Appended, cut and replaced lists, and values that only their bytes tell apart.

    Fails if values are compared by ``==``, or if a list that was cut is only appended to.
    """
    codec = CODEC
    old: dict[str, Any] = {"items": [1, 2, 3], "zero": 0.0, "same": {"a": 1}}
    for items in ([1, 2, 3, 4], [1, 2], [1, 9, 3, 4], [7], [], [1, 2, 3], [True, 2, 3]):
        new = old | {"items": items, "zero": -0.0, "more": "x"}
        operations = operations_between(old, new, codec)
        assert operations is not None
        assert "same" not in operations
        made = codec.rebuild([codec.encode_state(old), codec.encode(operations)])
        assert repr(made) == repr(new)
    assert operations_between(old, {"items": []}, codec) is None
