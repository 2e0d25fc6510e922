"""Payloads are readable where the very same bytes come back, and base64 where not."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw, UnsetType
from msgspec.msgpack import Ext

from milecastle.codec.deltas import LogCodec
from milecastle.codec.envelope import seal
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.stores.jsonl.shapes import render, restore

keys = st.text("ab\u2028\n\x00") | st.integers(0, 9)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(keys, inner),
    max_leaves=8,
)
operations = st.lists(
    st.tuples(st.integers(0, 8) | st.booleans(), st.text("abc", max_size=3), values), max_size=5
).map(lambda triples: [part for triple in triples for part in triple])


def sealed(body: object) -> bytes:
    return seal(msgspec.msgpack.encode(body))


def changed(payload: bytes, place: int, byte: int) -> bytes:
    """Return the payload with one byte of its body changed, sealed again."""
    body = bytearray(payload[6:])
    body[place % len(body)] = byte
    return seal(bytes(body))


def text_of(part: Raw | UnsetType) -> bytes:
    assert part is not UNSET
    return bytes(part)


@given(operations, st.booleans())
def test_every_payload_comes_back(body: list[Any], whole: bool) -> None:
    payload = sealed(body)
    assert restore(*render(payload, whole=whole)) == payload


@given(st.binary(max_size=60), st.booleans(), st.booleans())
def test_any_bytes_come_back(data: bytes, whole: bool, dressed: bool) -> None:
    payload = b"\x01\x00" + data if dressed else data
    assert restore(*render(payload, whole=whole)) == payload


@given(operations, st.none() | st.tuples(st.integers(0, 99), st.integers(0, 255)))
def test_what_is_known_to_come_back_is_written_as_if_it_was_tried(
    body: list[Any], change: tuple[int, int] | None
) -> None:
    """A whole state is always tried, and one that begins with an append is written as updates."""
    payload = sealed([1, "a", ["b"], *body])
    if change is not None:
        payload = changed(payload, *change)
    if payload[7:8] == b"\x01":
        assert render(payload, whole=False) == render(payload, whole=True)


@pytest.mark.parametrize(
    "value",
    [
        [2**63, 2**64 - 1, -(2**63), 2**53 + 1, True, None],
        ['\u2028\u2029\x00\x1f\x7f"\\', "\ud7ff\ue000\U0010ffff", ""],
        {"": [{"a": [1]}], "b": {"c": {"d": ""}}},
        {"a": {"b": {"c": {"d": {"e": [1]}}}}},
        [1.0, -0.0, 1e300, 5e-324],
    ],
    ids=["numbers", "text", "three levels", "more levels", "floats"],
)
def test_plain_values_are_readable_and_come_back(value: object) -> None:
    for operation in ([0, "a", value], [0, "a", value] * 5, [0, "a", value] * 6):
        payload = sealed(operation)
        rendered = render(payload, whole=False)
        assert json.loads(text_of(rendered[1])) == [["set", "a", value]] * (len(operation) // 3)
        assert restore(*rendered) == payload


@pytest.mark.parametrize(
    "body",
    [
        b"\x93\x00\xa1a\xcd\x00\x05",
        b"\x93\xcc\x00\xa1a\x05",
        b"\x93\x00\xd9\x01a\x05",
        b"\x93\xc3\xa1a\x05",
        b"\x93\xc2\xa1a\x05",
        b"\x93\xc0\xa1a\x05",
        b"\x93\x08\xa1a\x05",
        b"\x93\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00\xa1a\x05",
        b"\x93\x00\x05\x05",
        b"\x93\x00\xc4\x01a\x05",
        b"\x93\x00\xa1a\xca\x3f\x80\x00\x00",
        b"\x93\x00\xa1a\xa3\xed\xa0\x80",
        b"\x93\x00\xa1a\xa1\xff",
        b"\x93\x00\xa1a\x82\xa1b\x01\xa1b\x02",
        b"\x93\x00\xa1a\x81\x01\x02",
        b"\x93\x00\xa1a\xdc\x00\x01\x01",
        b"\x93\x00\xa1a\x05\x00",
        b"\xdc\x00\x03\x00\xa1a\x05",
    ],
    ids=[
        "long number", "long code", "long name", "true as code", "false as code", "no code",
        "unknown code", "float as code", "number as name", "bytes as name", "short float",
        "lone surrogate", "no text", "key twice", "key that is a number", "long list",
        "something after it", "long list of operations",
    ],
)  # fmt: skip
def test_what_would_come_back_in_another_form_is_base64(body: bytes) -> None:
    payload = seal(body)
    for whole in (False, True):
        rendered = render(payload, whole=whole)
        assert rendered[:2] == (UNSET, UNSET)
        assert restore(*rendered) == payload


@pytest.mark.parametrize("place", [0, 1, 2, 5])
def test_a_plain_payload_under_a_broken_seal_is_base64(place: int) -> None:
    payload = bytearray(sealed([0, "a", 1]))
    payload[place] ^= 1
    rendered = render(bytes(payload), whole=False)
    assert rendered[:2] == (UNSET, UNSET)
    assert restore(*rendered) == bytes(payload)


def test_an_update_is_readable() -> None:
    payload = sealed([1, "notes", ["a fact"], 0, "topic", "walls"])
    state, updates, encoded = render(payload, whole=False)
    assert (state, encoded) == (UNSET, UNSET)
    assert text_of(updates) == b'[["append","notes",["a fact"]],["set","topic","walls"]]'


def test_a_state_is_readable() -> None:
    codec = LogCodec(ValueCodec(TypeRegistry()))
    body = codec.encode_state({"topic": "walls", "n": 1, "score": -0.0, "docs": [{"a": None}]})
    state, updates, encoded = render(seal(body), whole=True)
    assert (updates, encoded) == (UNSET, UNSET)
    assert text_of(state) == b'{"topic":"walls","n":1,"score":-0.0,"docs":[{"a":null}]}'


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        b"bytes",
        {1: "one"},
        {None: 1},
        Ext(20, b"\x91\x01"),
        datetime(2026, 1, 1, tzinfo=UTC),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_json_cannot_hold_is_base64(value: object, whole: bool) -> None:
    payload = sealed([0, "channel", value])
    state, updates, encoded = render(payload, whole=whole)
    assert (state, updates) == (UNSET, UNSET)
    assert encoded is not UNSET
    assert restore(UNSET, UNSET, encoded) == payload


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x01\x00",
        sealed([0, "a", 1])[:-1],
        sealed([0, "a"]),
        sealed([True, "a", 1]),
        sealed([1.0, "a", 1]),
        sealed([8, "a", 1]),
        sealed([0, 5, 1]),
        sealed({"a": 1}),
        b"\x02\x00" + sealed([0, "a", 1])[2:],
        b"\x01\x00\x00\x00\x00\x00" + msgspec.msgpack.encode([0, "a", 1]),
        b"\x01\x00abcd" + b"\x91" * 3000,
        sealed([0, "a", "x" * 50_000]),
    ],
)
def test_payload_that_is_not_plain_is_base64(payload: bytes) -> None:
    rendered = render(payload, whole=True)
    assert rendered[:2] == (UNSET, UNSET)
    assert restore(*rendered) == payload


def test_a_channel_that_is_set_twice_is_kept_twice() -> None:
    payload = sealed([0, "a", 1, 0, "a", 2])
    rendered = render(payload, whole=True)
    assert text_of(rendered[1]) == b'[["set","a",1],["set","a",2]]'
    assert restore(*rendered) == payload


def test_nothing_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="all missing"):
        restore(UNSET, UNSET, UNSET)
