"""Deltas: what an entry of the log says about the state, and how states are rebuilt from them.

A payload holds operations, each a code, a channel and a value, in one flat list: code 0 sets
the channel, the others are built-in reducers applied to what is there. A snapshot is the same
with every channel set. So a log explains itself: rebuilding needs no schema and no user code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
import msgspec.msgpack

from milecastle.codec import envelope
from milecastle.codec.packing import join_lists
from milecastle.codec.plain import kind_of
from milecastle.codec.sealing import UNBOUND, Sealer, Sealers
from milecastle.codec.values import ValueCodec
from milecastle.errors import CodecError, UnserializableState
from milecastle.graph.reducers import BUILTIN, SET
from milecastle.model.keys import ThreadKey

__all__ = ["LogCodec", "Operations", "fold", "replay"]

Operations = list[Any]
"""``[code, channel, value, code, channel, value, ...]``."""

_REDUCERS = {reducer.code: reducer for reducer in BUILTIN if reducer.code != SET}

_KNOWN = frozenset({SET, *_REDUCERS})

_EXTEND: dict[int, Callable[[Any, Any], None]] = {
    1: list[Any].extend,
    2: dict[Any, Any].update,
    6: set[Any].update,
}
"""Reducers that are associative, and how to do them in place on values that nobody else holds."""


class LogCodec:
    """Turns operations and states into sealed payloads and back.

    With ``sealers`` payloads are encrypted, and ``for_thread`` gives the codec that does it.
    """

    def __init__(self, values: ValueCodec, *, sealers: Sealers | None = None) -> None:
        self._values = values
        self._encode = values.encode
        self._sealers = sealers
        self._use(envelope if sealers is None else UNBOUND)

    def _use(self, sealer: Sealer) -> None:
        self.seal = sealer.seal
        self.unseal = sealer.unseal
        self.digest = sealer.digest

    def for_thread(self, key: ThreadKey, *, new: bool = False) -> LogCodec:
        """The codec for one thread; ``new`` says that the thread begins with what it seals."""
        if self._sealers is None:
            return self
        bound = LogCodec(self._values)
        bound._use(self._sealers.sealer(key, new=new))
        return bound

    def like(self, other: LogCodec) -> LogCodec:
        """The types of this codec with the seals of another."""
        self.seal, self.unseal, self.digest = other.seal, other.unseal, other.digest
        return self

    def encode(self, operations: Operations, *, node: str | None = None) -> bytes:
        """The body of a payload; ``UnserializableState`` names node and path of a bad value."""
        try:
            return self._encode(operations)
        except UnserializableState:
            self._find_culprit(operations, node)
            raise

    def encode_state(self, values: Mapping[str, Any], *, node: str | None = None) -> bytes:
        """The body of a snapshot, or of an update before any reducer saw it."""
        operations: Operations = []
        for name, value in values.items():
            operations += (SET, name, value)
        return self.encode(operations, node=node)

    def decode(self, body: bytes) -> Operations:
        """The operations of a body; strict."""
        try:
            found = self._values.decode(body)
        except CodecError:
            self._find_damage(body)
            raise
        if kind_of(found) is not list:
            raise CodecError("a payload does not hold a list of operations")
        operations = cast("Operations", found)
        codes = operations[::3]
        names = operations[1::3]
        if len(operations) % 3 or set(map(type, codes)) - {int} or set(map(type, names)) - {str}:
            raise CodecError("a payload holds something that is not an operation")
        if not _KNOWN.issuperset(codes):
            raise CodecError("a payload holds an operation that this version does not know")
        return operations

    def decode_state(self, body: bytes) -> dict[str, Any]:
        """What ``encode_state`` wrote."""
        return replay({}, self.decode(body))

    def rebuild(self, bodies: Sequence[bytes]) -> dict[str, Any]:
        """The values after all these bodies in turn; the first is a snapshot."""
        return replay({}, self.decode(join_lists(bodies)))

    def roll_up(self, bodies: Sequence[bytes]) -> bytes:
        """One body with the effect of all these in turn, and as short as it can be."""
        return self.encode(fold(self.decode(join_lists(bodies))))

    def _find_culprit(self, operations: Operations, node: str | None) -> None:
        for _, channel, value in _triples(operations):
            try:
                self._values.encode(value, path=f"$.{channel}")
            except UnserializableState as error:
                raise UnserializableState(
                    error.reason, path=error.path, type_name=error.type_name, node=node
                ) from error.__cause__

    def _find_damage(self, body: bytes) -> None:
        """Decode one value after the other, so that the error names the channel."""
        try:
            parts = msgspec.msgpack.decode(body, type=list[msgspec.Raw])
        except msgspec.DecodeError:
            return
        for channel, value in zip(parts[1::3], parts[2::3], strict=False):
            name = self._values.decode(bytes(channel))
            self._values.decode(bytes(value), path=f"$.{name}")


def _triples(operations: Operations) -> Iterator[tuple[int, str, Any]]:
    parts = iter(operations)
    return zip(parts, parts, parts, strict=True)


def replay(values: dict[str, Any], operations: Operations) -> dict[str, Any]:
    """Apply operations to ``values`` in place. The values must belong to nobody else."""
    for code, channel, value in _triples(operations):
        if code == SET or channel not in values:
            values[channel] = value
        else:
            values[channel] = _reduce(code, values[channel], value)
    return values


def _reduce(code: int, old: Any, update: Any) -> Any:
    extend = _EXTEND.get(code)
    if extend is None:
        try:
            return _REDUCERS[code].function(old, update)
        except TypeError as error:
            raise CodecError(
                f"a stored update does not fit the value before it: {error}"
            ) from error
    if type(old) is not type(update):
        raise CodecError("a stored update is of another type than the value before it")
    extend(old, update)
    return old


def fold(operations: Operations) -> Operations:
    """A shorter list with the same effect: what is overwritten goes, appends are joined.

    The operations must have been decoded for this call: their values are changed in place.
    """
    kept: dict[str, Operations] = {}
    for code, channel, value in _triples(operations):
        if code == SET:
            kept[channel] = [code, channel, value]
            continue
        before = kept.setdefault(channel, [])
        if before and code in _EXTEND and before[-3] in (code, SET):
            _reduce(code, before[-1], value)
        else:
            before += (code, channel, value)
    return [part for channel in kept.values() for part in channel]
