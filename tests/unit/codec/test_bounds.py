"""What stored bytes become is bounded, and the same on both ways."""

from __future__ import annotations

import struct
from collections.abc import Callable
from fractions import Fraction
from time import process_time
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.msgpack import Decoder, Encoder, Ext

from milecastle.codec import bounds, codes, envelope
from milecastle.codec.bounds import MAX_BYTES, MAX_EQUAL_HASHES
from milecastle.codec.deltas import LogCodec
from milecastle.codec.envelope import PayloadPlace
from milecastle.codec.pickles import PickleCodec
from milecastle.codec.plain import kind_of
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.errors import CodecError, UnserializableState
from tests.unit.codec.domain import Point, make_codec

CODEC = make_codec()
LOG = LogCodec(ValueCodec(TypeRegistry()))
_pack, _open = Encoder().encode, Decoder().decode
PRIME = 2**61 - 1
"""Python's hash of an int is its remainder by this."""


@pytest.mark.parametrize("item", [b"\x80", b"\x90", b"\xc0", b"\xa0", b"\x92\xc0\xc0"])
def test_small_payload_does_not_become_gigabytes(item: bytes) -> None:
    """Tried: no ``refuse_excess``; some hundred bytes take gigabytes and half a minute."""
    count = (MAX_BYTES - 16) // len(item)
    body = b"\x93\x00\xa1x\xdd" + struct.pack(">I", count) + item * count
    payload = envelope.frame(*envelope.compress(body))
    assert len(payload) < 20_000
    with pytest.raises(CodecError, match=r"more than \d+ (containers|items)"):
        LOG.decode(LOG.unseal(payload, PayloadPlace(1)))
    with pytest.raises(CodecError, match=r"the value at \$\.x cannot be read: it has more"):
        CODEC.decode(body, path="$.x")


LEAVES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=300),
    st.binary(max_size=300),
    st.uuids(),
    st.decimals(allow_nan=False),
)
KEYS: st.SearchStrategy[Any] = st.one_of(st.text(max_size=40), st.integers(), st.tuples(LEAVES))
VALUES: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=20),
        st.dictionaries(KEYS, inner, max_size=20),
        st.tuples(inner, inner),
        st.frozensets(LEAVES, max_size=5),
        st.builds(Point, st.floats(allow_nan=False), inner),
    ),
)


def counted(part: Any) -> tuple[int, int]:
    """Containers and items, by decoding."""
    if isinstance(part, Ext):
        if bytes([part.code]) not in bounds._NESTS:  # pyright: ignore[reportPrivateUsage]
            return 0, 0
        return counted(_open(part.data))
    if kind_of(part) not in (list, dict):
        return 0, 0
    inner: list[Any] = [*part.keys(), *part.values()] if kind_of(part) is dict else part
    found = [counted(item) for item in inner]
    return 1 + sum(each[0] for each in found), len(inner) + sum(each[1] for each in found)


@given(value=VALUES)
def test_containers_and_items_are_counted_as_they_are(value: Any) -> None:
    """Tried: one wrong size in a table, and bodies of extensions skipped."""
    body = CODEC.encode(value)
    assert bounds._count(body) == counted(_open(body))  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("size", [31, 32, 255, 256, 65_535, 65_536])
@pytest.mark.parametrize("kind", [bytes, str])
def test_containers_after_a_long_text_are_counted(size: int, kind: type) -> None:
    """Fails if a length of two or four bytes is read wrong: what follows would not be counted."""
    long = bytes(size) if kind is bytes else "\x00" * size
    value: list[Any] = [long, [1, 2], long, {"key": 1}]
    body = CODEC.encode(value)
    assert bounds._count(body) == (3, 8)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("size", [1, 3, 16, 255, 256, 65_535, 65_536])
def test_containers_after_an_extension_are_counted(size: int) -> None:
    """Fails if the length of an extension is read wrong, in one byte, two or four."""
    body = _pack([Ext(codes.INT, bytes(size)), [1, 2]])
    assert bounds._count(body) == (2, 4)  # pyright: ignore[reportPrivateUsage]


@given(data=st.binary(max_size=300))
def test_counting_whatever_bytes_ends(data: bytes) -> None:
    """Hostile lengths lead nowhere."""
    bounds._count(data)  # pyright: ignore[reportPrivateUsage]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that are reached quickly, in both ways."""
    for module in ("bounds", "values", "deltas"):
        monkeypatch.setattr(f"milecastle.codec.{module}.MAX_CONTAINERS", 100)
    monkeypatch.setattr("milecastle.codec.bounds.MAX_ITEMS", 1000)


TOO_MUCH: list[tuple[Any, str]] = [
    ([[] for _ in range(100)], "100 containers"),
    ([() for _ in range(100)], "100 containers"),
    ({str(n): {} for n in range(100)}, "100 containers"),
    ([Point(1.0, n) for n in range(50)], "100 containers"),
    (list(range(1001)), "1000 items"),
    ({n: n for n in range(501)}, "1000 items"),
]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("value", "says"), TOO_MUCH)
def test_what_could_not_be_read_is_refused_when_written(value: Any, says: str) -> None:
    """Plain data and objects alike. Tried: the check on one way only."""
    with pytest.raises(UnserializableState, match=says):
        CODEC.encode(value)
    enough: Any = value[:-1] if kind_of(value) is list else {}
    assert CODEC.decode(CODEC.encode(enough)) == enough


@pytest.mark.usefixtures("small")
def test_chain_whose_entries_were_taken_is_read() -> None:
    """Each entry is counted alone: the sum of many may be more. Tried: the joined body counted."""
    bodies = [LOG.encode([0, "x", [0] * 900]), *(LOG.encode([1, "x", [1] * 900]) for _ in range(3))]
    assert len(LOG.rebuild(bodies)["x"]) == 3600
    with pytest.raises(CodecError, match="items"):
        LOG.rebuild([*bodies, _pack([1, "x", [1] * 1001])])


COLLIDING: dict[str, Callable[[int], Any]] = {
    "ints": lambda n: Ext(codes.INT, ((n + 16) * PRIME).to_bytes(16, "big", signed=True)),
    "uuids": lambda n: Ext(codes.UUID, ((n + 1) * PRIME).to_bytes(16, "big")),
    "tuples": lambda n: Ext(
        codes.TUPLE, _pack([Ext(codes.INT, ((n + 16) * PRIME).to_bytes(16, "big", signed=True))])
    ),
}


@pytest.mark.parametrize("key", COLLIDING.values(), ids=COLLIDING.keys())
@pytest.mark.parametrize("form", ["set", "frozenset", "pairs", "map", "map in a tuple"])
def test_equal_hashes_do_not_keep_the_reader_busy(key: Callable[[int], Any], form: str) -> None:
    """Tried: no ``_comparable``, no ``refuse_odd_keys``: minutes, quadratic in the keys."""
    members = [key(n) for n in range(6000)]
    pairs = [part for member in members for part in (member, None)]
    packed = b"".join(_pack(part) for part in pairs)
    large = b"\xde" + struct.pack(">H", 6000) + packed
    body = {
        "set": lambda: _pack(Ext(codes.SET, _pack(members))),
        "frozenset": lambda: _pack(Ext(codes.FROZENSET, _pack(members))),
        "pairs": lambda: _pack(Ext(codes.PAIRS, _pack(pairs))),
        "map": lambda: large,
        "map in a tuple": lambda: _pack(Ext(codes.TUPLE, b"\x91" + large)),
    }[form]()
    began = process_time()
    with pytest.raises(CodecError, match=r"equal hashes|extension as a key"):
        CODEC.decode(body)
    assert process_time() - began < 10


def test_equal_hashes_do_not_keep_the_reader_of_portable_files_busy() -> None:
    """A pickle has its own opcodes for sets and dicts, and the same reader behind them."""
    numbers = b"".join(
        b"\x8a\x10" + ((n + 16) * PRIME).to_bytes(16, "little", signed=True) for n in range(6000)
    )
    began = process_time()
    for body in (b"\x8f(" + numbers + b"\x90", b"(" + numbers + b"\x91", b"}(" + numbers + b"u"):
        with pytest.raises(CodecError, match="equal hashes"):
            PickleCodec(TypeRegistry()).loads(b"\x80\x04" + body + b".")
    assert process_time() - began < 10


def test_equal_hashes_are_refused_when_written_and_a_few_are_taken() -> None:
    """The verdict is the same on both ways. Tried: no check in the writer.

    Fails if the last that is taken is refused: one has the hash, and as many equal it.
    """
    few = {(n + 16) * PRIME for n in range(MAX_EQUAL_HASHES + 1)}
    assert CODEC.decode(CODEC.encode(few)) == few
    assert CODEC.decode(CODEC.encode(dict.fromkeys(few))) == dict.fromkeys(few)
    many = few | {1_000_000 * PRIME}
    for value in (many, frozenset(many), dict.fromkeys(many)):
        with pytest.raises(UnserializableState, match="equal hashes"):
            CODEC.encode({"v": value})
    assert CODEC.decode(CODEC.encode({UUID(int=n) for n in range(5000)}))
    assert hash(Fraction(PRIME)) == 0


def test_running_out_of_memory_is_not_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried: ``except Exception`` alone; the message was that the stored bytes are damaged."""
    codec = make_codec()

    def full(data: bytes) -> object:
        raise MemoryError

    monkeypatch.setattr(codec._reader, "read", full)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(MemoryError):
        codec.decode(_pack([1]))
    pickles = PickleCodec(TypeRegistry())
    data = pickles.dumps([1])
    monkeypatch.setattr("milecastle.codec.pickles._Machine.run", full)
    with pytest.raises(MemoryError):
        pickles.loads(data)
