"""Values as a pickle for any Python, read by an interpreter limited to data.

Writing: the codec converts a value to msgpack, which is then written opcode by opcode.
Reading: the opcodes become msgpack again, and the codec reads that. So types, limits and errors
are those of the stores, and only one place creates objects.

Rules:

- Only written opcodes are read. There is no memo, so nothing is shared and nothing can
  expand; nothing is imported and nothing is called.
- A global is one of the two functions below or a declared type, by exact name (``__main__`` is the
  module that was run as a script), and nothing else.
- A plain ``pickle.load`` calls ``rebuild`` and ``leaf``. Their names are in files that
  live for years: never rename or move them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import chain
from typing import Any, Final, NamedTuple

from msgspec.msgpack import Decoder, Encoder, Ext

from milecastle.codec import arrays, codes, scalars
from milecastle.codec.bounds import MAX_BYTES, MAX_DEPTH
from milecastle.codec.langchain import message_shape
from milecastle.codec.objects import RecordShape, Shape, is_storable, shape_for
from milecastle.codec.plain import SCALARS, kind_of
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.errors import UnserializableState, UntrustedFile

MAX_PICKLE: Final = 2 * MAX_BYTES
"""Size of a pickle."""

_MAX_CONTAINERS: Final = 1 << 22
"""The maximum number of containers in a pickle: an empty one takes a byte here and many in
memory."""

_MAX_MARKS: Final = 2 * MAX_DEPTH + 16
"""The maximum nesting of containers: an object takes two, its arguments and its fields."""

_HERE: Final = "milecastle.codec.pickles"
_LEAVES: Final = {**scalars.READERS, **arrays.READERS}
_OBJECTS: Final = frozenset({codes.RECORD, codes.MODEL, codes.MEMBER, codes.ADAPTED})

_pack: Final = Encoder().encode
_unpack: Final = Decoder().decode
_double: Final = struct.Struct(">d")
_count: Final = struct.Struct("<I")


def rebuild(cls: type, name: str, *parts: Any) -> object:
    """Rebuild a declared type, for ``pickle.load``; its plain form if unknown."""
    shape: Shape | None = message_shape(cls)
    if shape is None or shape.name != name:
        shape = shape_for(cls, name) if is_storable(cls) else TypeRegistry().find(name)
    if isinstance(shape, RecordShape):
        return shape.build(list(parts))
    return parts[0] if shape is None else shape.build(parts[0])


def leaf(code: int, body: bytes) -> object:
    return _LEAVES[code](memoryview(body))


class PickleCodec:
    """Pickles one registry's values. Safe to share between threads."""

    def __init__(self, registry: TypeRegistry) -> None:
        self._registry = registry
        self._values = ValueCodec(registry)

    def dumps(self, value: object) -> bytes:
        """The pickle of ``value``.

        Raises:
            UnserializableState: something in it cannot be stored; the error has its path.
        """
        data = _Writer(self._registry).write(_unpack(self._values.encode(value)))
        if len(data) > MAX_PICKLE:
            reason = f"it takes {len(data)} bytes; the limit is {MAX_PICKLE}"
            raise UnserializableState(reason, path="$", type_name=type(value).__qualname__)
        return data

    def check(self, value: object, path: str) -> None:
        self._values.encode(value, path=path)

    def loads(self, data: bytes) -> object:
        """The value of a pickle that ``dumps`` wrote.

        Raises:
            UntrustedFile: it contains anything that ``dumps`` does not write. CodecError: a type
            has changed since the value was written.
        """
        return self._values.decode(self._wire(data, self._registry))

    def outline(self, data: bytes) -> object:
        """A pickle's value with ``None`` for every object: readable without the types."""
        return self._values.decode(self._wire(data, None))

    def _wire(self, data: bytes, registry: TypeRegistry | None) -> bytes:
        if len(data) > MAX_PICKLE:
            raise UntrustedFile(f"it is larger than {MAX_PICKLE} bytes")
        try:
            return _pack(_Machine(registry, data).run())
        except (UntrustedFile, MemoryError):
            raise
        except Exception as error:
            # Any error caused by hostile opcodes; its text may contain values, so it is not shown.
            raise UntrustedFile(f"it is malformed ({type(error).__name__})") from None


class _Opcodes(bytes):
    pass


class _Writer:
    def __init__(self, registry: TypeRegistry) -> None:
        self._registry = registry
        self._out = bytearray()
        self._todo: list[object] = []
        self._containers = 0
        self._writers: dict[type, Callable[[Any], None]] = {
            _Opcodes: self._put,
            type(None): lambda _: self._put(b"N"),
            bool: lambda value: self._put(b"\x88" if value else b"\x89"),
            int: self._int,
            float: lambda value: self._put(b"G" + _double.pack(value)),
            str: self._text,
            bytes: lambda value: self._sized(b"B", value),
            list: lambda value: self._items(b"](", value, b"e"),
            dict: lambda value: self._items(b"}(", [*chain.from_iterable(value.items())], b"u"),
            Ext: lambda value: self._extension(value.code, value.data),
        }

    def write(self, wire: object) -> bytes:
        self._put(b"\x80\x04")
        self._todo = [_Opcodes(b"."), wire]
        while self._todo:
            part = self._todo.pop()
            self._writers[type(part)](part)
        return bytes(self._out)

    def _put(self, data: bytes) -> None:
        self._out += data

    def _sized(self, opcode: bytes, body: bytes) -> None:
        self._put(opcode + _count.pack(len(body)) + body)

    def _text(self, value: str) -> None:
        self._sized(b"X", value.encode("utf-8", "surrogatepass"))

    def _int(self, value: int) -> None:
        if 0 <= value < 256:
            self._put(b"K" + value.to_bytes(1, "little"))
            return
        size = value.bit_length() // 8 + 1
        body = value.to_bytes(size, "little", signed=True)
        if size < 256:
            self._put(b"\x8a" + size.to_bytes(1, "little") + body)
        else:
            self._sized(b"\x8b", body)

    def _items(self, opening: bytes, items: list[Any], closing: bytes) -> None:
        self._containers += 1
        if self._containers > _MAX_CONTAINERS:
            reason = f"it has more than {_MAX_CONTAINERS} containers, too many for one file"
            raise UnserializableState(reason, path="$", type_name="dict")
        self._put(opening)
        self._todo.append(_Opcodes(closing))
        self._todo.extend(reversed(items))

    def _extension(self, code: int, body: bytes) -> None:
        if code == codes.INT:
            self._int(int.from_bytes(body, "big", signed=True))
        elif code == codes.STR:
            self._sized(b"X", body)
        elif code in _NESTS:
            opening, closing = _NESTS[code]
            self._items(opening, _unpack(body), closing)
        elif code in _OBJECTS:
            self._object(_unpack(body))
        else:
            self._global(_HERE, "leaf")
            self._items(b"(", [code, body], b"tR")

    def _object(self, parts: list[Any]) -> None:
        shape = self._registry.find(parts[0])
        if shape is None:
            raise LookupError("the codec wrote a type that is not in the registry")
        self._global(_HERE, "rebuild")
        self._put(b"(")
        self._global(shape.cls.__module__, shape.cls.__qualname__)
        self._items(b"", parts, b"tR")

    def _global(self, module: str, name: str) -> None:
        self._text(module)
        self._text(name)
        self._put(b"\x93")


_NESTS: Final = {
    codes.TUPLE: (b"(", b"t"),
    codes.SET: (b"\x8f(", b"\x90"),
    codes.FROZENSET: (b"(", b"\x91"),
    codes.PAIRS: (b"}(", b"u"),
}


class _Name(NamedTuple):
    module: str
    name: str


class _Open(NamedTuple):
    code: int | None


class _Machine:
    """Turns opcodes into msgpack's data model. It holds only data.

    Without a registry every object becomes ``None``.
    """

    def __init__(self, registry: TypeRegistry | None, data: bytes) -> None:
        self._registry = registry
        self._data = memoryview(data)
        self._at = 0
        self._stack: list[Any] = []
        self._outer: list[list[Any]] = []
        self._containers = 0
        self._opcodes: dict[int, Callable[[], None]] = {
            ord("N"): lambda: self._stack.append(None),
            0x88: lambda: self._stack.append(True),
            0x89: lambda: self._stack.append(False),
            ord("K"): lambda: self._stack.append(self._take(1)[0]),
            0x8A: lambda: self._int(self._take(1)[0]),
            0x8B: lambda: self._int(self._size()),
            ord("G"): lambda: self._stack.append(_double.unpack(self._take(8))[0]),
            ord("X"): self._text,
            ord("B"): lambda: self._stack.append(bytes(self._take(self._size()))),
            ord("]"): lambda: self._stack.append(_LIST),
            ord("}"): lambda: self._stack.append(_DICT),
            0x8F: lambda: self._stack.append(_SET),
            ord("("): self._mark,
            ord("e"): lambda: self._close(_LIST),
            ord("u"): lambda: self._close(_DICT),
            0x90: lambda: self._close(_SET),
            0x91: self._frozenset,
            ord("t"): self._tuple,
            0x93: self._global,
            ord("R"): self._call,
        }

    def run(self) -> object:
        if bytes(self._take(2)) != b"\x80\x04":
            raise UntrustedFile("it does not start with the expected header")
        while (opcode := self._take(1)[0]) != ord("."):
            step = self._opcodes.get(opcode)
            if step is None:
                raise UntrustedFile(f"opcode 0x{opcode:02x} is never written by milecastle")
            step()
        (value,) = self._stack
        if self._outer or self._at != len(self._data):
            raise UntrustedFile("it does not end with the expected marker")
        return _settled(value)

    def _take(self, size: int) -> memoryview:
        end = self._at + size
        if end > len(self._data):
            raise UntrustedFile("its recorded length exceeds its actual length")
        taken, self._at = self._data[self._at : end], end
        return taken

    def _size(self) -> int:
        size: int = _count.unpack(self._take(4))[0]
        return size

    def _int(self, size: int) -> None:
        value = int.from_bytes(self._take(size), "little", signed=True)
        self._stack.append(scalars.WRITERS[int](value))

    def _text(self) -> None:
        text = str(self._take(self._size()), "utf-8", "surrogatepass")
        self._stack.append(scalars.WRITERS[str](text))

    def _mark(self) -> None:
        self._containers += 1
        if self._containers > _MAX_CONTAINERS or len(self._outer) >= _MAX_MARKS:
            raise UntrustedFile("it is nested too deeply, or has too many parts")
        self._outer.append(self._stack)
        self._stack = []

    def _opened(self) -> list[Any]:
        items, self._stack = self._stack, self._outer.pop()
        return items

    def _close(self, kind: _Open) -> None:
        items = [_settled(item) for item in self._opened()]
        if self._stack.pop() is not kind:
            raise UntrustedFile("a container is filled before it was opened")
        if kind is _DICT:
            self._stack.append(_pairs(items))
        else:
            self._stack.append(items if kind is _LIST else Ext(codes.SET, _pack(items)))

    def _frozenset(self) -> None:
        items = [_settled(item) for item in self._opened()]
        self._stack.append(Ext(codes.FROZENSET, _pack(items)))

    def _tuple(self) -> None:
        # As it is, until it is known whether it holds the arguments of a call.
        items = self._opened()
        self._stack.append(tuple(x if kind_of(x) is _Name else _settled(x) for x in items))

    def _global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if type(name) is not str or type(module) is not str:
            raise UntrustedFile("a global has no name")
        self._stack.append(_Name(module, name))

    def _call(self) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        if function == _REBUILD:
            self._stack.append(self._object(*arguments))
        elif function == _LEAF:
            code, body = arguments
            if code not in _LEAVES or type(body) is not bytes:
                raise UntrustedFile("a scalar has an unknown kind")
            self._stack.append(Ext(code, body))
        else:
            raise UntrustedFile("it asks for a function call")

    def _object(self, named: _Name, name: str, *parts: object) -> Ext | None:
        if type(named) is not _Name or type(name) is not str:
            raise UntrustedFile("an object has no type")
        if self._registry is None:
            return None
        try:
            shape = self._registry.find(name)
        except LookupError:
            shape = None
        if shape is None or not _is_name_of(named, shape.cls):
            raise UntrustedFile(
                f"its type {f'{named.module}.{named.name}'!a} is neither declared by the state "
                "nor registered: import its module and call milecastle.register_type(...) first"
            )
        return Ext(shape.code, _pack([name, *map(_settled, parts)]))


_LIST: Final = _Open(None)
_DICT: Final = _Open(codes.PAIRS)
_SET: Final = _Open(codes.SET)
_REBUILD: Final = _Name(_HERE, "rebuild")
_LEAF: Final = _Name(_HERE, "leaf")


def _settled(value: Any) -> object:
    kind = kind_of(value)
    if kind is tuple:
        return Ext(codes.TUPLE, _pack([_settled(item) for item in value]))
    if kind is _Name or kind is _Open:
        raise UntrustedFile("a name is where a value should be")
    return value


def _pairs(items: list[Any]) -> object:
    keys, values = items[::2], items[1::2]
    pairs = list(zip(keys, values, strict=True))
    if SCALARS.issuperset(map(type, keys)):
        return dict(pairs)
    return Ext(codes.PAIRS, _pack(items))


def _is_name_of(named: _Name, cls: type) -> bool:
    return named.name == cls.__qualname__ and (
        named.module == cls.__module__ or "__main__" in (named.module, cls.__module__)
    )
