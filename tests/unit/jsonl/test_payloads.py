"""Payloads are readable where the very same bytes come back, and base64 where not."""

from __future__ import annotations

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
from milecastle.stores.jsonl.payloads import render, restore

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
def test_what_json_cannot_hold_is_base64(value: object) -> None:
    payload = sealed([0, "channel", value])
    state, updates, encoded = render(payload, whole=True)
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
        sealed([7, "a", 1]),
        sealed([0, 5, 1]),
        sealed({"a": 1}),
        b"\x02\x00" + sealed([0, "a", 1])[2:],
        b"\x01\x00\x00\x00\x00\x00" + msgspec.msgpack.encode([0, "a", 1]),
        b"\x01\x00abcd" + b"\x91" * 3000,
        sealed([0, "a", "x" * 50_000]),
    ],
)
def test_what_is_no_plain_payload_is_base64(payload: bytes) -> None:
    rendered = render(payload, whole=True)
    assert rendered[:2] == (UNSET, UNSET)
    assert restore(*rendered) == payload


def test_a_channel_that_is_set_twice_is_kept_twice() -> None:
    payload = sealed([0, "a", 1, 0, "a", 2])
    rendered = render(payload, whole=True)
    assert text_of(rendered[1]) == b'[["set","a",1],["set","a",2]]'
    assert restore(*rendered) == payload


def test_nothing_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="neither"):
        restore(UNSET, UNSET, UNSET)
