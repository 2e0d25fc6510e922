"""Which parts of a payload are large, and that taking apart and restoring changes nothing."""

from __future__ import annotations

from typing import Any

import msgspec.msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from milecastle.codec.envelope import frame, frame_objects, names_objects, seal
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.errors import CodecError
from milecastle.stores.offloading.large_values import large_parts
from milecastle.stores.offloading.payloads import (
    ObjectReference,
    put_together,
    references,
    restore,
    sealed_references,
    take_apart,
)

codec = ValueCodec(TypeRegistry())


def packed_parts(value: object, threshold: int) -> list[bytes]:
    body = codec.encode(value)
    return [body[start:end] for start, end in large_parts(body, threshold)]


LARGE = b"x" * 100


@pytest.mark.parametrize(
    "value",
    [
        [0, "document", LARGE],
        [0, "state", {"a": 1, "document": LARGE}],
        [0, "docs", [1, 2, [LARGE], 4]],
        [0, "docs", (1, LARGE)],
        [0, "docs", {(1, 2): LARGE}],
        [0] * 20 + [LARGE],
        {str(number): number for number in range(20)} | {"document": LARGE},
        [[0] * 70_000, LARGE],
        [{str(number): 0 for number in range(70_000)}, LARGE],
    ],
)
def test_smallest_large_value_is_found_in_every_container(value: object) -> None:
    """Fails if one kind of container is taken for a leaf: then more than the value is cut out."""
    found = packed_parts(value, 90)
    assert codec.encode(LARGE) in found


def test_text_bytes_and_extensions_are_leaves() -> None:
    for leaf in ("t" * 100, LARGE, 1 << 2000, "\ud800" * 100):
        assert packed_parts([0, "value", leaf], 50) == [codec.encode(leaf)]


def test_list_of_small_items_is_one_value() -> None:
    numbers = list(range(1000))
    assert packed_parts([0, "n", 1, 0, "numbers", numbers], 500) == [codec.encode(numbers)]


def test_bytes_that_are_not_packed_are_one_value() -> None:
    """Fails if what cannot be split raises, or is left out."""
    for data in (b"\xdd\xff\xff\xff\xffshort" * 9, b"\xc7", b"\x92\x01", b"", b"\xc9\x00\x00"):
        expected = [(0, len(data))] if len(data) > 1 else []
        assert large_parts(data, 1) == expected


values = st.recursive(
    st.none() | st.integers() | st.text() | st.binary(max_size=300) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(), inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.tuples(st.integers()), inner)
    ),
    max_leaves=30,
)


def round_trip(payload: bytes, threshold: int) -> dict[str, bytes]:
    """What became an object; what is restored is the same."""
    stored: dict[str, bytes] = {}

    def put(value: bytes) -> ObjectReference:
        name = str(len(stored))
        stored[name] = value
        return ObjectReference(name, len(value))

    parts = take_apart(payload, threshold)
    if parts is None:
        return stored
    small = put_together(parts, put)
    assert names_objects(small)
    assert {reference.name for reference in references(small)} == stored.keys()
    assert restore(small, lambda reference: stored[reference.name]) == payload
    return stored


@given(st.lists(values, max_size=9), st.integers(1, 400), st.booleans())
def test_what_is_taken_apart_is_restored_byte_for_byte(
    operations: list[Any], threshold: int, is_repeated: bool
) -> None:
    """Fails if the ranges overlap or leave a byte out."""
    body = codec.encode(operations * (40 if is_repeated else 1))
    stored = round_trip(seal(body), threshold)
    assert all(len(value) > threshold for value in stored.values())
    assert stored or len(body) <= threshold


@given(st.binary(max_size=500), st.integers(1, 300))
@example(b"\x01\x04" + bytes(9), 300)
@example(b"\x01\x01" + bytes(400), 5)
@example(b"\x01\x01\x00\x00\x00\x00" + b"\x28\xb5\x2f\xfd" + bytes(40), 5)
def test_any_bytes_are_restored(payload: bytes, threshold: int) -> None:
    """Fails if a payload that looks like one with references is stored as it is."""
    round_trip(payload, threshold)
    round_trip(frame(0, payload), threshold)
    round_trip(frame(2, payload), threshold)
    round_trip(frame_objects(payload), threshold)


def test_value_is_shared_whatever_is_around_it() -> None:
    """Fails if large values are cut out with their neighbours."""
    one = round_trip(seal(codec.encode([0, "a", 1, 0, "document", LARGE * 100])), 1000)
    other = round_trip(seal(codec.encode([0, "document", LARGE * 100, 0, "b", "more"])), 1000)
    assert list(one.values()) == list(other.values()) == [codec.encode(LARGE * 100)]


def test_what_is_between_large_values_is_large_too() -> None:
    many = [number for index in range(300) for number in (0, f"c{index}", index)]
    stored = round_trip(frame(0, codec.encode([*many, 0, "document", bytes(5000)])), 400)
    assert len(stored) == 2


def test_only_encrypted_payloads_have_unshared_references() -> None:
    def put(value: bytes) -> ObjectReference:
        return ObjectReference("name", len(value))

    sealed, plain = frame(2, LARGE), frame(0, LARGE)
    for payload, expected in ((sealed, ["name"]), (plain, [])):
        parts = take_apart(payload, 10)
        assert parts is not None
        found = sealed_references(put_together(parts, put))
        assert [reference.name for reference in found] == expected
    assert sealed_references(b"") == references(b"") == []


def test_damaged_references_are_refused() -> None:
    good = frame_objects(msgspec.msgpack.encode([0, [["name", 1]]]))
    assert references(good) == [ObjectReference("name", 1)]
    for damaged in (good[:-1] + b"!", frame_objects(b"\xc0")):
        with pytest.raises(CodecError):
            references(damaged)
