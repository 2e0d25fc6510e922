"""Values to bytes and back, exactly.

A value is restored with the same types, or is refused with its path. There is no fallback
format: nothing is pickled, nothing is imported by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from msgspec.msgpack import Decoder, Encoder, Ext

from milecastle.codec import arrays, codes, scalars
from milecastle.codec.bounds import (
    EQUAL_HASHES,
    MAX_BYTES,
    MAX_CONTAINERS,
    MAX_DEPTH,
    excess_of,
    has_equal_hashes,
    refuse_excess,
    refuse_odd_keys,
)
from milecastle.codec.objects import AdaptedShape, MemberShape, RecordShape, Shape
from milecastle.codec.plain import SCALARS, is_plain, kind_of
from milecastle.codec.refusal import Refusal, find_bad, has_timestamp, hint_for, key_position
from milecastle.codec.registry import TypeRegistry
from milecastle.errors import CodecError, UnserializableState
from milecastle.model.file import File
from milecastle.support.printable import path_segment

T = TypeVar("T")


def on_fresh_stack(call: Callable[[], T]) -> T:
    """Return or raise the outcome of ``call``, from a separate thread.

    Nested values are written and read by nested calls. How much of the stack the caller has used
    must not decide whether a value can be stored.
    """
    from threading import Thread

    results: list[T] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = Thread(target=target, name="milecastle-codec", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


_Write: TypeAlias = Callable[[Any, int], object]
_Section: TypeAlias = "dict[str, Any] | None"

_pack: Final = Encoder().encode


class ValueWriter:
    """Writes values of the registry's types.

    Each level is one call with ``room``, how many levels may still follow. Types msgpack
    lacks become an extension whose body is msgpack again: never a dict with special keys, so no
    user's dict can be mistaken for one.
    """

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
        body = self._packed(self._wire(value, MAX_DEPTH), type(value))
        reason = excess_of(body)
        if reason is not None:
            raise Refusal(reason, type(value))
        return body

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
        if kind is File and not self._registry.has_files:
            raise Refusal("a file needs an object storage: pass objects=, with store=", kind)
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
        _refuse_equal_hashes(value)
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
            at = len(values)
            refusal.within(path_segment(list(value)[at]), key_position(at))
            raise
        if SCALARS.issuperset(map(type, keys)):
            return dict(zip(value, values, strict=True))
        _refuse_equal_hashes(value)
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
            refusal.within(path_segment(name))
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
    if room == 0:
        reason = f"it is nested more than {MAX_DEPTH} levels deep, or contains itself"
        raise Refusal(reason, type(value))
    return room - 1


def _refuse_equal_hashes(members: Collection[object]) -> None:
    if has_equal_hashes(members):
        raise Refusal(EQUAL_HASHES, type(members))


_NAMES: Final = frozenset({str})
_SEQUENCES: Final = frozenset({list, tuple, set, frozenset})


class ValueReader:
    """Reads values of the registry's types.

    msgpack's types come back at once; every extension is opened by its code's reader. Nothing
    is imported, and the only user code running is a registered ``from_plain`` or the constructor
    of a msgspec struct.
    """

    def __init__(self, registry: TypeRegistry) -> None:
        self._registry = registry
        self._leaves: dict[int, Callable[[memoryview], object]] = {
            **scalars.READERS,
            **arrays.READERS,
        }
        self._nests: dict[int, Callable[[list[Any]], object]] = {
            codes.TUPLE: tuple,
            codes.SET: lambda parts: set(_comparable(parts)),
            codes.FROZENSET: lambda parts: frozenset(_comparable(parts)),
            codes.PAIRS: lambda parts: dict(zip(_comparable(parts[::2]), parts[1::2], strict=True)),
            codes.RECORD: self._object,
            codes.MODEL: self._object,
            codes.MEMBER: self._part,
            codes.ADAPTED: self._part,
        }
        self._decode: Callable[[bytes | memoryview], Any] = Decoder(ext_hook=self.extension).decode

    def read(self, data: bytes) -> object:
        refuse_odd_keys(data)
        value = self._decode(data)
        # A level takes a byte at least, and a timestamp has one of 255: the usual small update.
        if len(data) <= MAX_DEPTH and b"\xff" not in data:
            return value
        if is_plain(value):
            return value
        if len(data) > MAX_DEPTH and self._is_deeper(value, MAX_DEPTH):
            raise CodecError(f"it is nested more than {MAX_DEPTH} levels deep")
        if has_timestamp(data):
            raise CodecError("it holds a msgpack timestamp, which milecastle never writes")
        return value

    def extension(self, code: int, body: memoryview) -> object:
        nest = self._nests.get(code)
        if nest is not None:
            # Opened here and not in the function: each frame counts in deeply nested values.
            parts = self._decode(body)
            if kind_of(parts) is not list:
                raise TypeError("not an array")
            return nest(parts)
        leaf = self._leaves.get(code)
        if leaf is None:
            raise CodecError(f"extension {code} is unknown to this version")
        return leaf(body)

    def _object(self, parts: list[Any]) -> object:
        name, *sections = parts
        shape = self._shape(name)
        if (
            not isinstance(shape, RecordShape)
            or len(sections) != shape.width
            or not all(map(_is_section, sections))
        ):
            raise CodecError(f"{shape.name} has changed since the value was stored")
        return shape.build(sections)

    def _part(self, parts: list[Any]) -> object:
        name, part = parts
        shape = self._shape(name)
        if isinstance(shape, RecordShape):
            raise CodecError(f"{shape.name} has changed since the value was stored")
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
                f"its type {name!a} is neither declared by the state nor registered: import its "
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
        kind = kind_of(value)
        if kind in _SEQUENCES:
            return list[object](value)
        if kind is dict:
            return [*value, *value.values()]
        shape = self._registry.shape_of(kind)
        return shape.parts(value) if isinstance(shape, RecordShape) else None


def _comparable(members: list[Any]) -> list[Any]:
    if has_equal_hashes(members):
        raise CodecError(EQUAL_HASHES)
    return members


def _is_section(part: Any) -> bool:
    return part is None or (kind_of(part) is dict and _NAMES.issuperset(map(kind_of, part)))


class ValueCodec:
    """Encodes and decodes one registry's values. Safe to share between threads."""

    def __init__(self, registry: TypeRegistry) -> None:
        self.has_files = registry.has_files
        self._writer = ValueWriter(registry)
        self._reader = ValueReader(registry)

    def encode(self, value: object, *, path: str = "$") -> bytes:
        """The bytes of ``value``; ``path`` is its location, for messages.

        Raises:
            UnserializableState: something in it cannot be stored.
        """
        try:
            if is_plain(value):
                body = _pack(value)
                size = len(body)
                if size <= MAX_BYTES and (size <= MAX_CONTAINERS or excess_of(body) is None):
                    return body
        except (OverflowError, UnicodeEncodeError, RecursionError):
            pass  # A large int, a lone surrogate, or a stack that is nearly full.
        return self._write(value, path)

    def _write(self, value: object, path: str) -> bytes:
        try:
            try:
                return self._writer.write(value)
            except RecursionError:
                return on_fresh_stack(lambda: self._writer.write(value))
        except Refusal as refusal:
            raise UnserializableState(
                refusal.reason,
                path=refusal.path(path),
                type_name=refusal.type_name,
                place=refusal.path(path, shown=True),
            ) from refusal.__cause__

    def decode(self, data: bytes, *, path: str = "$", bounded: bool = True) -> object:
        """The value of these bytes; ``path`` is its location, for messages.

        ``bounded=False`` is for bodies counted one by one and then joined.

        Raises:
            CodecError: they are damaged, exceed a limit, or have an unknown type.
        """
        if bounded:
            refuse_excess(data, path)
        try:
            try:
                return self._reader.read(data)
            except RecursionError:
                return on_fresh_stack(lambda: self._reader.read(data))
        except CodecError as error:
            reason, cause = error.message, error.__cause__
        except RecursionError:
            reason, cause = "it is nested too deeply", None
        except MemoryError:
            raise  # which says nothing of the bytes
        except Exception:
            reason, cause = "the stored bytes are damaged", None
        place = find_bad(data, self._reader.extension) or "$"
        raise CodecError(f"the value at {path}{place[1:]} cannot be read: {reason}") from cause


_TYPE = "$type"


class UntypedObject(Mapping[str, Any]):
    """``{"$type": name, ...}`` with the object's fields.

    A member of an enum, or of a type with user functions, has one field: ``value``. It has
    a hash, because the object may have been in a set.
    """

    def __init__(self, name: str, fields: Mapping[str, Any]) -> None:
        self._fields = {_TYPE: name} | dict(fields) | {_TYPE: name}

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __hash__(self) -> int:
        return hash(self._fields[_TYPE])


class UntypedCodec(ValueCodec):
    """Decodes values of any type: those registered as they are, others untyped.

    Nothing is imported or called, and values read untyped are never written again.
    """

    def __init__(self) -> None:
        registry = TypeRegistry.for_annotations(())
        super().__init__(registry)
        self._reader = _UntypedReader(registry)


class _UntypedReader(ValueReader):
    def _object(self, parts: list[Any]) -> object:
        if self._is_known(parts[0]):
            return super()._object(parts)
        name, values, *more = parts
        extra = more[0] if more else None  # of a model; its private attributes are not shown
        return UntypedObject(name, (extra or {}) | values)

    def _part(self, parts: list[Any]) -> object:
        if self._is_known(parts[0]):
            return super()._part(parts)
        name, part = parts
        return UntypedObject(name, {"value": part})

    def _is_known(self, name: Any) -> bool:
        return type(name) is not str or self._registry.find(name) is not None

    def _items(self, value: Any) -> Iterable[object] | None:
        if kind_of(value) is UntypedObject:
            return list(value.values())
        return super()._items(value)
