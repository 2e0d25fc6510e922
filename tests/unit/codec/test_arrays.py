"""NumPy arrays and scalars: plain memory comes back exactly, the rest is refused."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import pytest
from msgspec.msgpack import Ext

from milecastle.codec import codes
from milecastle.errors import CodecError, UnserializableState
from tests.unit.codec.domain import make_codec
from tests.unit.codec.sameness import same_array

numpy: Any = pytest.importorskip("numpy")

CODEC = make_codec()
DTYPES = ["?", "i1", "u1", "<i2", ">i4", "i8", "u8", "f2", "f4", ">f8", "c8", "c16", "S3", "U4"]
TIMES = ["M8", "M8[ns]", "m8[25us]", ">M8[D]"]


def there_and_back(value: Any) -> Any:
    return CODEC.decode(CODEC.encode(value))


@pytest.mark.parametrize("dtype", DTYPES + TIMES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_comes_back_the_same(dtype: str, shape: tuple[int, ...], order: str) -> None:
    size = numpy.dtype(dtype).itemsize
    count = int(numpy.prod(shape))
    raw = bytes(range(1, 200)) * size
    made = numpy.zeros(shape, dtype=dtype, order=order)
    if not dtype.startswith("U"):
        flat = numpy.frombuffer(raw[: size * count], dtype=numpy.dtype(dtype), count=count)
        made[...] = flat.reshape(shape)
    back = there_and_back({"a": [made]})["a"][0]
    assert same_array(back, made)
    assert back.flags.writeable
    assert back.flags.owndata


def test_text_arrays_come_back_the_same() -> None:
    made = numpy.array(["é", "", "abc", "𝄞"])
    assert same_array(there_and_back(made), made)
    empty = numpy.zeros((2,), dtype="U0")
    assert same_array(there_and_back(empty), empty)


def test_a_strided_array_is_stored_in_row_order() -> None:
    made = numpy.arange(24).reshape(4, 6)[::2, ::3]
    back = there_and_back(made)
    assert (back == made).all()
    assert back.flags.c_contiguous


def test_nan_bits_are_preserved() -> None:
    bits = numpy.array([0x7FF0000000000001, 0xFFF8000000000123], dtype="u8")
    assert there_and_back(bits.view("f8")).view("u8").tolist() == bits.tolist()


@pytest.mark.parametrize(
    "make",
    [
        lambda: numpy.float64(-0.0), lambda: numpy.float32("nan"), lambda: numpy.int8(-3),
        lambda: numpy.uint64(2**64 - 1), lambda: numpy.bool_(True), lambda: numpy.complex64(1j),
        lambda: numpy.datetime64("2024-01-01T00:00", "ns"), lambda: numpy.datetime64("NaT"),
        lambda: numpy.timedelta64(5, "D"), lambda: numpy.str_("a\x00"),
        lambda: numpy.str_("\ud800"),
        lambda: numpy.bytes_(b"a\x00"), lambda: numpy.str_(""), lambda: numpy.float16(1.5),
    ],
)  # fmt: skip
def test_a_scalar_comes_back_with_its_type(make: Any) -> None:
    value = make()
    back = there_and_back([value])[0]
    assert type(back) is type(value)
    assert back.dtype == value.dtype
    assert back.tobytes() == value.tobytes()
    assert len(back) == len(value) if isinstance(value, (str, bytes)) else True
    assert type(next(iter(there_and_back({value: 1})))) is type(value)


class Sub(numpy.ndarray): ...  # type: ignore[misc]


class SubFloat(numpy.float64): ...  # type: ignore[misc]


@pytest.mark.parametrize(
    "make",
    [
        lambda: numpy.array([object()]),
        lambda: numpy.array([None, 1], dtype=object),
        lambda: numpy.zeros(2, dtype="i4,f4"),
        lambda: numpy.zeros(2, dtype="V4"),
        lambda: numpy.zeros(2, dtype="longdouble"),
        lambda: numpy.longdouble(1),
        lambda: numpy.void(b"ab"),
        lambda: numpy.zeros(2).view(Sub),
        lambda: numpy.ma.masked_array([1], [True]),
        lambda: SubFloat(1.0),
        lambda: numpy.dtype("i4"),
        lambda: numpy.zeros(1, dtype=numpy.dtype("i4", metadata={"a": 1})),
        lambda: numpy.random.default_rng(),
    ],
)
def test_what_is_not_plain_memory_is_refused(make: Any) -> None:
    with pytest.raises(UnserializableState) as caught:
        CODEC.encode({"a": [make()]})
    assert caught.value.path == "$.a[0]"


@pytest.mark.parametrize(
    "parts",
    [
        ["|O", [1], "C", b"\0" * 8],
        ["O", [1], "C", b"\0" * 8],
        ["i4,f4", [1], "C", b"\0" * 8],
        ["<f8", [2], "C", b"\0" * 8],
        ["<f8", [-1], "C", b"\0" * 8],
        ["<f8", [-1, -1], "C", b"\0" * 8],
        ["<f8", [1], "K", b"\0" * 8],
        ["<f8", [0, 2**62, 2**62], "C", b""],
        ["<f8", [1] * 100, "C", b"\0" * 8],
        ["<f8", "x", "C", b"\0" * 8],
        ["<f8", [1], "C", "text"],
        ["<U1", [1], "C", b"\xff\xff\xff\xff"],
        ["<M8[zz]", [1], "C", b"\0" * 8],
        [1, [1], "C", b""],
        [],
    ],
    ids=str,
)
def test_bytes_that_are_not_an_array_are_refused(parts: list[object]) -> None:
    data = msgspec.msgpack.encode(Ext(codes.ARRAY, msgspec.msgpack.encode(parts)))
    with pytest.raises(CodecError):
        CODEC.decode(data)


def test_without_numpy_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    data = CODEC.encode([numpy.zeros(2)])
    text = CODEC.encode({"s": numpy.str_("x")})
    monkeypatch.delitem(sys.modules, "numpy")
    with pytest.raises(CodecError, match=r"\$\[0\] .*import numpy first"):
        CODEC.decode(data)
    with pytest.raises(CodecError, match="import numpy first"):
        CODEC.decode(text)
    with pytest.raises(UnserializableState):
        make_codec().encode(numpy.zeros(2))
