"""Values to bytes and back, exactly.

What goes in comes out with the same types, or is refused with its path. There is no fallback
format: nothing is pickled, nothing is imported by name.
"""

from __future__ import annotations

from typing import Final

from msgspec.msgpack import Encoder

from milecastle.codec.limits import MAX_BYTES
from milecastle.codec.plain import is_plain
from milecastle.codec.reading import Reader
from milecastle.codec.refusal import Refusal
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.stack import on_fresh_stack
from milecastle.codec.tree import find_bad
from milecastle.codec.writing import Writer
from milecastle.errors import CodecError, UnserializableState

__all__ = ["ValueCodec"]

_pack: Final = Encoder().encode


class ValueCodec:
    """Encodes and decodes values of one registry. Safe to share between threads."""

    def __init__(self, registry: TypeRegistry) -> None:
        self._writer = Writer(registry)
        self._reader = Reader(registry)

    def encode(self, value: object, *, path: str = "$") -> bytes:
        """The bytes of ``value``; ``path`` is where it stands, for messages.

        Raises:
            UnserializableState: something in it cannot be stored.
        """
        try:
            if is_plain(value):
                body = _pack(value)
                if len(body) <= MAX_BYTES:
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
                refusal.reason, path=refusal.path(path), type_name=refusal.type_name
            ) from refusal.__cause__

    def decode(self, data: bytes, *, path: str = "$") -> object:
        """The value that these bytes were made of; ``path`` is where it stands, for messages.

        Raises:
            CodecError: they are damaged, too deep, or of a type that is not known.
        """
        try:
            try:
                return self._reader.read(data)
            except RecursionError:
                return on_fresh_stack(lambda: self._reader.read(data))
        except CodecError as error:
            reason, cause = error.message, error.__cause__
        except RecursionError:
            reason, cause = "it is nested too deeply", None
        except Exception:
            reason, cause = "the stored bytes are damaged", None
        place = find_bad(data, self._reader.extension) or "$"
        raise CodecError(f"the value at {path}{place[1:]} cannot be read: {reason}") from cause
