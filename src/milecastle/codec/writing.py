"""From values to what msgpack encodes, for values that are not plain.

Each level is one call with ``room``, the number of levels that may still follow. Everything
that msgpack lacks becomes an extension whose body is msgpack again: never a dict with special
keys, so no dict of the user's can be mistaken for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, TypeAlias

from msgspec.msgpack import Encoder, Ext

from milecastle.codec import arrays, codes, scalars
from milecastle.codec.limits import MAX_BYTES, MAX_DEPTH
from milecastle.codec.objects import AdaptedShape, MemberShape, RecordShape
from milecastle.codec.plain import SCALARS
from milecastle.codec.refusal import Refusal, hint_for, key_segment
from milecastle.codec.registry import TypeRegistry

__all__ = ["Writer"]

_Write: TypeAlias = Callable[[Any, int], object]
_Section: TypeAlias = "dict[str, Any] | None"

_pack: Final = Encoder().encode


class Writer:
    """Writes values of the registry's types."""

    def __init__(self, registry: TypeRegistry) -> None:
        self._registry = registry
        self._leaves = dict(scalars.WRITERS)
        self._nests: dict[type, _Write] = {
            list: self._list,
            dict: self._dict,
            tuple: self._tuple,
            set: partial(self._set, codes.SET),
            frozenset: partial(self._set, codes.FROZENSET),
        }

    def write(self, value: object) -> bytes:
        """The bytes of ``value``.

        Raises:
            Refusal: something in it cannot be stored.
        """
        return self._packed(self._wire(value, MAX_DEPTH), type(value))

    def _wire(self, value: object, room: int) -> object:
        kind = type(value)
        leaf = self._leaves.get(kind)
        if leaf is not None:
            return leaf(value)
        nest = self._nests.get(kind)
        if nest is not None:
            return nest(value, room)
        self._learn(kind)
        return self._wire(value, room)

    def _packed(self, wire: object, kind: type) -> bytes:
        body = _pack(wire)
        if len(body) > MAX_BYTES:
            raise Refusal(f"it takes {len(body)} bytes; the limit is {MAX_BYTES}", kind)
        return body

    def _learn(self, kind: type) -> None:
        """Find out, once for each type, how it is written."""
        try:
            shape = self._registry.shape_of(kind)
        except LookupError as error:
            raise Refusal(str(error.args[0]), kind) from None
        if isinstance(shape, RecordShape):
            self._nests[kind] = partial(self._object, shape)
        elif isinstance(shape, AdaptedShape):
            self._nests[kind] = partial(self._adapted, shape)
        elif shape is not None:
            self._leaves[kind] = partial(self._member, shape)
        else:
            write = arrays.writer_for(kind)
            if write is None:
                raise Refusal(hint_for(kind), kind)
            self._leaves[kind] = write

    def _list(self, value: list[object], room: int) -> list[object]:
        return self._items(value, _inside(value, room))

    def _items(self, items: Iterable[object], room: int) -> list[object]:
        wired: list[object] = []
        add = wired.append
        try:
            for item in items:
                add(self._wire(item, room))
        except Refusal as refusal:
            refusal.within(f"[{len(wired)}]")
            raise
        return wired

    def _tuple(self, value: tuple[object, ...], room: int) -> Ext:
        items = self._items(value, _inside(value, room))
        return Ext(codes.TUPLE, self._packed(items, tuple))

    def _set(self, code: int, value: set[object] | frozenset[object], room: int) -> Ext:
        room = _inside(value, room)
        try:
            items = [self._wire(item, room) for item in value]
        except Refusal as refusal:
            refusal.within("{item}")
            raise
        return Ext(code, self._packed(sorted(items, key=_pack), type(value)))

    def _dict(self, value: dict[object, object], room: int) -> object:
        room = _inside(value, room)
        keys = [self._key(key, room) for key in value]
        values: list[object] = []
        add = values.append
        try:
            for item in value.values():
                add(self._wire(item, room))
        except Refusal as refusal:
            refusal.within(key_segment(list(value)[len(values)]))
            raise
        if SCALARS.issuperset(map(type, keys)):
            return dict(zip(value, values, strict=True))
        pairs = [part for pair in zip(keys, values, strict=True) for part in pair]
        return Ext(codes.PAIRS, self._packed(pairs, dict))

    def _key(self, key: object, room: int) -> object:
        try:
            return self._wire(key, room)
        except Refusal as refusal:
            refusal.within("{key}")
            raise

    def _object(self, shape: RecordShape, value: object, room: int) -> Ext:
        room = _inside(value, room)
        wired: list[object] = [shape.name]
        # A loop, not a comprehension: each frame counts when objects are nested deeply.
        for section in shape.sections(value):
            wired.append(self._section(section, room))  # noqa: PERF401
        return Ext(shape.code, self._packed(wired, shape.cls))

    def _section(self, section: _Section, room: int) -> object:
        if section is None:
            return None
        wired: dict[str, object] = {}
        name = ""
        try:
            for name, value in section.items():
                wired[name] = self._wire(value, room)
        except Refusal as refusal:
            refusal.within(key_segment(name))
            raise
        return wired

    def _member(self, shape: MemberShape, value: object) -> Ext:
        return Ext(shape.code, _pack([shape.name, self._wire(shape.take(value), 0)]))

    def _adapted(self, shape: AdaptedShape, value: object, room: int) -> Ext:
        room = _inside(value, room)
        try:
            wired = self._wire(shape.take(value), room)
        except Refusal as refusal:
            refusal.within(".to_plain()")
            raise
        return Ext(shape.code, self._packed([shape.name, wired], shape.cls))


def _inside(value: object, room: int) -> int:
    """The room that remains inside a container."""
    if room == 0:
        reason = f"it is nested more than {MAX_DEPTH} levels deep, or contains itself"
        raise Refusal(reason, type(value))
    return room - 1
