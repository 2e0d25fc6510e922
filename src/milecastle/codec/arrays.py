"""NumPy arrays and scalars.

NumPy is used when the program has imported it and is never imported from here. Only element
types in plain memory are stored: no objects, no records, no platform-sized floats.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from typing import Any, Final

from msgspec.msgpack import Decoder, Encoder, Ext

from milecastle.codec import codes
from milecastle.codec.plain import kind_of
from milecastle.codec.refusal import Refusal
from milecastle.errors import CodecError

_encode: Final = Encoder().encode
_decode: Final = Decoder(list[Any]).decode

_PLAIN_DTYPE: Final = re.compile(
    r"\|b1|[|<>][iu][1248]|[<>]f[248]|[<>]c(8|16)|\|S\d{1,9}|[<>]U\d{1,8}"
    r"|[<>][mM]8(\[\d{0,9}[a-zA-Z]{1,2}\])?"
)
_HIGHEST_CODE_POINT: Final = 0x10FFFF


def writer_for(kind: type) -> Callable[[Any], Ext] | None:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if kind is numpy.ndarray:
        return _write_array
    if issubclass(kind, numpy.generic) and numpy.dtype(numpy.dtype(kind).str).type is kind:
        return _write_scalar
    return None


def _dtype_text(dtype: Any, kind: type) -> str:
    text: str = dtype.str
    if dtype.metadata or dtype.names or not _PLAIN_DTYPE.fullmatch(text):
        raise Refusal(
            f"its dtype kind '{dtype.kind}' of {dtype.itemsize} bytes is not portable plain "
            "memory; convert it with .astype(...) or .tolist()",
            kind,
        )
    return text


def _write_array(value: Any) -> Ext:
    dtype = _dtype_text(value.dtype, kind_of(value))
    order = "C" if value.flags.c_contiguous or not value.flags.f_contiguous else "F"
    return Ext(codes.ARRAY, _encode([dtype, list(value.shape), order, value.tobytes(order)]))


def _write_scalar(value: Any) -> Ext:
    kind: str = value.dtype.kind
    if kind == "S":
        parts = ["S", bytes(value)]
    elif kind == "U":
        parts = ["U", value.encode("utf-8", "surrogatepass")]
    else:
        parts = [_dtype_text(value.dtype, kind_of(value)), value.tobytes()]
    return Ext(codes.ARRAY_SCALAR, _encode(parts))


def _numpy() -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        raise CodecError("it is a NumPy value, but numpy is not imported: import numpy first")
    return numpy


def _build(text: str, shape: list[int], order: str, data: bytes) -> Any:
    numpy = _numpy()
    if not _PLAIN_DTYPE.fullmatch(text) or order not in ("C", "F"):
        raise ValueError("not a plain dtype")
    dtype = numpy.dtype(text)
    if math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError("the shape does not match the data")
    view = numpy.ndarray(tuple(shape), dtype=dtype, buffer=data, order=order)
    if dtype.kind == "U" and data:
        points = numpy.frombuffer(data, dtype=f"{text[0]}u4")
        if points.max() > _HIGHEST_CODE_POINT:
            raise ValueError("not text")
    return view.copy(order=order)


def _read_array(body: memoryview) -> Any:
    text, shape, order, data = _decode(body)
    return _build(text, shape, order, data)


def _read_scalar(body: memoryview) -> Any:
    text, data = _decode(body)
    if text == "S":
        return _numpy().bytes_(data)
    if text == "U":
        return _numpy().str_(str(data, "utf-8", "surrogatepass"))
    return _build(text, [], "C", data)[()]


READERS: Final[dict[int, Callable[[memoryview], object]]] = {
    codes.ARRAY: _read_array,
    codes.ARRAY_SCALAR: _read_scalar,
}
