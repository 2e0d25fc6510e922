"""From bytes to values.

msgpack's own types come back at once; every extension is opened by the reader of its code.
Nothing is imported, and the only code of users' that runs is a ``from_plain`` they registered
or the constructor of a msgspec struct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec.msgpack import Decoder

from milecastle.codec import arrays, codes, scalars
from milecastle.codec.limits import MAX_DEPTH
from milecastle.codec.objects import RecordShape, Shape
from milecastle.codec.plain import SCALARS, is_plain, kind_of
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.tree import has_timestamp
from milecastle.errors import CodecError

__all__ = ["Reader"]

_NAMES: Final = frozenset({str})
_SEQUENCES: Final = frozenset({list, tuple, set, frozenset})


class Reader:
    """Reads values of the registry's types."""

    def __init__(self, registry: TypeRegistry) -> None:
        self._registry = registry
        self._leaves: dict[int, Callable[[memoryview], object]] = {
            **scalars.READERS,
            **arrays.READERS,
        }
        self._nests: dict[int, Callable[[list[Any]], object]] = {
            codes.TUPLE: tuple,
            codes.SET: set,
            codes.FROZENSET: frozenset,
            codes.PAIRS: _pairs,
            codes.RECORD: self._object,
            codes.MODEL: self._object,
            codes.MEMBER: self._part,
            codes.ADAPTED: self._part,
        }
        self._decode: Callable[[bytes | memoryview], Any] = Decoder(ext_hook=self.extension).decode

    def read(self, data: bytes) -> object:
        """The value of ``data``; raises anything at all when no writer wrote it."""
        value = self._decode(data)
        # A level takes a byte at least, and a timestamp has one of 255: the usual small update.
        if len(data) <= MAX_DEPTH and b"\xff" not in data:
            return value
        if not is_plain(value):
            self._check(value, data)
        return value

    def _check(self, value: object, data: bytes) -> None:
        """Refuse what msgpack takes and no writer writes."""
        if len(data) > MAX_DEPTH and self._is_deeper(value, MAX_DEPTH):
            raise CodecError(f"it is nested more than {MAX_DEPTH} levels deep")
        if has_timestamp(data):
            raise CodecError("it holds a msgpack timestamp, which is never written")

    def extension(self, code: int, body: memoryview) -> object:
        """The value of one extension."""
        nest = self._nests.get(code)
        if nest is not None:
            # Opened here and not in the function: each frame counts in deeply nested values.
            parts = self._decode(body)
            if kind_of(parts) is not list:
                raise TypeError("not an array")
            return nest(parts)
        leaf = self._leaves.get(code)
        if leaf is None:
            raise CodecError(f"extension {code} is not known to this version")
        return leaf(body)

    def _object(self, parts: list[Any]) -> object:
        name, *sections = parts
        shape = self._shape(name)
        if not isinstance(shape, RecordShape) or not all(map(_is_section, sections)):
            raise CodecError(f"{shape.name} is not what it was when the value was stored")
        return shape.build(sections)

    def _part(self, parts: list[Any]) -> object:
        name, part = parts
        shape = self._shape(name)
        if isinstance(shape, RecordShape):
            raise CodecError(f"{shape.name} is not what it was when the value was stored")
        return shape.build(part)

    def _shape(self, name: Any) -> Shape:
        if type(name) is not str:
            raise ValueError("not a name")
        try:
            shape = self._registry.find(name)
        except LookupError as error:
            raise CodecError(str(error.args[0])) from None
        if shape is None:
            raise CodecError(
                f"its type {name!a} is not declared by the state, nor registered: import its "
                "module and call milecastle.register_type(...) before reading"
            )
        return shape

    def _is_deeper(self, value: object, room: int) -> bool:
        items = self._items(value)
        if items is None or room == 0:
            return items is not None
        for item in items:  # noqa: SIM110 - runs for each part of what was read
            if type(item) not in SCALARS and self._is_deeper(item, room - 1):
                return True
        return False

    def _items(self, value: Any) -> Iterable[object] | None:
        """What counts as one level below ``value``; None for a leaf."""
        kind = kind_of(value)
        if kind in _SEQUENCES:
            return list[object](value)
        if kind is dict:
            return [*value, *value.values()]
        shape = self._registry.shape_of(kind)
        return shape.parts(value) if isinstance(shape, RecordShape) else None


def _pairs(parts: list[Any]) -> dict[object, object]:
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _is_section(part: Any) -> bool:
    return part is None or (kind_of(part) is dict and _NAMES.issuperset(map(kind_of, part)))
