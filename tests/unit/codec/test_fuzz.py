"""Random and mutated bytes decode or raise `CodecError`; nothing else ever happens.

``MILECASTLE_FUZZ`` sets the number of tries; 1000000 is the long form.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from milecastle.codec.envelope import seal, unseal
from milecastle.codec.values import ValueCodec
from milecastle.errors import CodecError, FormatTooNew
from tests.unit.codec.domain import Colour, Doc, Mode, Pair, Point, Right, make_codec

# So that bytes of arrays reach NumPy where it is installed.
with contextlib.suppress(ImportError):
    importlib.import_module("numpy")

TRIES = int(os.environ.get("MILECASTLE_FUZZ", "6000"))
CORPUS: list[object] = [
    None, [1, 2.5, "x", b"y", {"k": [True, None]}], (1, ("a", {2, 3})), frozenset({1, "b"}),
    {(1, 2): "pair", None: 2**80}, "\ud800", bytearray(b"z"), 1j, Decimal("1.10"),
    UUID(int=7), datetime(2024, 1, 2, tzinfo=UTC), time(1, 2), date(2024, 1, 2),
    timedelta(3), Colour.RED, Right.READ | Right.WRITE, Mode(5), Doc("t", (1,), ["a"]),
    Point(1.0, Doc("u")), Pair({1}, [Colour.BLUE]), [Doc(str(n), n) for n in range(20)],
]  # fmt: skip


def mutated(data: bytes, chance: random.Random) -> bytes:
    """``data`` with a few bytes changed, cut out, doubled or put in."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(changed) + 1)
        kind = chance.randrange(4)
        if kind == 0 and place < len(changed):
            changed[place] = chance.randrange(256)
        elif kind == 1:
            del changed[place : place + chance.randint(1, 4)]
        elif kind == 2:
            changed[place:place] = changed[place : place + chance.randint(1, 8)]
        else:
            changed[place:place] = chance.randbytes(chance.randint(1, 3))
    return bytes(changed)


def fuzz(codec: ValueCodec, tries: int, seed: int) -> tuple[int, int]:
    """How many of ``tries`` byte strings decoded, and how many were refused."""
    chance = random.Random(seed)
    corpus = [codec.encode(value) for value in CORPUS]
    decoded = refused = 0
    for number in range(tries):
        if number % 4 == 0:
            data = chance.randbytes(chance.randint(0, 40))
        else:
            data = mutated(chance.choice(corpus), chance)
        try:
            codec.decode(data)
            decoded += 1
        except CodecError:
            refused += 1
    return decoded, refused


def test_fuzzed_bytes_decode_or_raise_a_codec_error() -> None:
    decoded, refused = fuzz(make_codec(), TRIES, seed=2024)
    assert decoded + refused == TRIES
    assert decoded > TRIES // 50
    assert refused > TRIES // 50


def test_fuzzed_payloads_are_unsealed_or_refused() -> None:
    chance = random.Random(5)
    payloads = [seal(b"abc"), seal(b"words " * 2000)]
    for _ in range(TRIES // 4):
        with pytest.raises((CodecError, FormatTooNew)):
            unseal(mutated(chance.choice(payloads), chance) + b"!")


def test_what_decodes_can_be_stored_again() -> None:
    codec = make_codec()
    chance = random.Random(11)
    corpus = [codec.encode(value) for value in CORPUS]
    for _ in range(TRIES // 10):
        try:
            value = codec.decode(mutated(chance.choice(corpus), chance))
        except CodecError:
            continue
        assert codec.encode(codec.decode(codec.encode(value))) == codec.encode(value)
