"""Deltas: the state changes in an entry of the log, and how states are rebuilt from them.

A payload contains operations, each a code, a channel and a value, in one flat list: code 0 sets the
channel, the others are built-in reducers applied to the current value. A snapshot is the same with
every channel set. So a log is self-describing: rebuilding needs no schema and no user code.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
import msgspec.msgpack

from milecastle.codec import envelope
from milecastle.codec.bounds import MAX_CONTAINERS, refuse_excess
from milecastle.codec.envelope import UNBOUND, PayloadPlace, Sealer, Sealers
from milecastle.codec.files import naming_files
from milecastle.codec.plain import kind_of
from milecastle.codec.values import ValueCodec
from milecastle.errors import CodecError, UnserializableState
from milecastle.model.checkpoint import DELTA, ROLLUP, Entry, TaskResult
from milecastle.model.keys import ThreadKey
from milecastle.model.reducers import APPEND, BUILTIN, EDIT, SET, join_edits


def join_lists(bodies: Sequence[bytes]) -> bytes:
    if len(bodies) == 1:
        return bodies[0]
    total = 0
    parts = [b""]
    for body in bodies:
        count, start = list_head(body)
        total += count
        parts.append(body[start:])
    parts[0] = struct.pack(">BI", 0xDD, total)
    return b"".join(parts)


def list_head(body: bytes) -> tuple[int, int]:
    first = body[0] if body else 0
    if first & 0xF0 == 0x90:
        return first & 0x0F, 1
    if first == 0xDC and len(body) >= 3:
        return int.from_bytes(body[1:3]), 3
    if first == 0xDD and len(body) >= 5:
        return int.from_bytes(body[1:5]), 5
    raise CodecError("a payload does not hold a list of operations")


Operations = list[Any]
"""``[code, channel, value, code, channel, value, ...]``."""


def as_operations(values: Mapping[str, Any]) -> Operations:
    operations: Operations = []
    for name, value in values.items():
        operations += (SET, name, value)
    return operations


_REDUCERS = {reducer.code: reducer for reducer in BUILTIN if reducer.code != SET}

_KNOWN = frozenset({SET, *_REDUCERS})

_SET, _NOTHING = msgspec.msgpack.encode(SET), msgspec.msgpack.encode(None)

_EXTEND: dict[int, Callable[[Any, Any], None]] = {
    1: list[Any].extend,
    2: dict[Any, Any].update,
    6: set[Any].update,
}
"""Associative reducers, and how to apply them in place to values that are not shared."""


class LogCodec:
    """Turns operations and states into sealed payloads and back.

    With ``sealers`` payloads are encrypted, and ``for_thread`` returns the codec for it. If the
    values may be files, payloads name those in them.
    """

    def __init__(self, values: ValueCodec, *, sealers: Sealers | None = None) -> None:
        self._values = values
        self._encode = values.encode
        self.has_files = values.has_files
        self._sealers = sealers
        self._use(envelope if sealers is None else UNBOUND)

    def _use(self, sealer: Sealer) -> None:
        self.seal = naming_files(sealer.seal) if self.has_files else sealer.seal
        self.unseal = sealer.unseal
        self.digest = sealer.digest
        self.encrypts = sealer is not envelope

    def for_thread(self, key: ThreadKey, *, new: bool = False) -> LogCodec:
        if self._sealers is None:
            return self
        bound = LogCodec(self._values)
        bound._use(self._sealers.sealer(key, new=new))
        return bound

    def like(self, other: LogCodec) -> LogCodec:
        self.seal, self.unseal, self.digest = other.seal, other.unseal, other.digest
        self.encrypts = other.encrypts
        return self

    def seal_entry(self, body: bytes, entry: Entry) -> bytes:
        return self.seal(
            body,
            PayloadPlace(entry.seq, entry.kind, entry.base_seq, entry.roll_seq, entry.parent_id),
        )

    def unseal_entry(self, entry: Entry, rolled: int) -> bytes:
        """An entry's body. ``rolled`` is the newest rollup or snapshot before it."""
        return self.unseal(
            entry.payload,
            PayloadPlace(entry.seq, entry.kind, entry.base_seq, rolled, entry.parent_id),
        )

    def unseal_chain(self, entries: Sequence[Entry]) -> list[bytes]:
        bodies: list[bytes] = []
        cut = 0
        for entry in entries:
            bodies.append(self.unseal_entry(entry, cut if entry.kind == ROLLUP else entry.roll_seq))
            cut = cut if entry.kind == DELTA else entry.seq
        return bodies

    def unseal_last(self, entries: Sequence[Entry]) -> bytes:
        last = entries[-1]
        cuts = [entry.seq for entry in entries[:-1] if entry.kind != DELTA]
        rolled = cuts[-1] if last.kind == ROLLUP and cuts else last.roll_seq
        return self.unseal_entry(last, rolled)

    def unseal_result(self, result: TaskResult) -> bytes:
        return self.unseal(result.payload, PayloadPlace(result.seq, task=result.task))

    def encode(self, operations: Operations, *, node: str | None = None) -> bytes:
        """Encode a payload body; ``UnserializableState`` names a bad value's node and path."""
        try:
            return self._encode(operations)
        except UnserializableState:
            self._find_culprit(operations, node)
            raise

    def encode_state(self, values: Mapping[str, Any], *, node: str | None = None) -> bytes:
        return self.encode(as_operations(values), node=node)

    def decode(self, body: bytes) -> Operations:
        refuse_excess(body)
        return self._decode(body)

    def _decode(self, body: bytes) -> Operations:
        try:
            found = self._values.decode(body, bounded=False)
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
        return replay({}, self.decode(body))

    def rebuild(self, bodies: Sequence[bytes], *, encoded: str | None = None) -> dict[str, Any]:
        """The values after all these bodies in turn; the first is a snapshot.

        The channel ``encoded`` is left as bytes, if it was set as a whole.
        """
        body, left = _joined(bodies), None
        if encoded is not None:
            body, left = _taken_out(body, encoded)
        values = replay({}, self._decode(body))
        return values if encoded is None or left is None else {**values, encoded: left}

    def roll_up(self, bodies: Sequence[bytes]) -> bytes:
        return self.encode(fold(self._decode(_joined(bodies))))

    def _find_culprit(self, operations: Operations, node: str | None) -> None:
        for _, channel, value in _triples(operations):
            try:
                self._values.encode(value, path=f"$.{channel}")
            except UnserializableState as error:
                raise UnserializableState(
                    error.reason,
                    path=error.path,
                    type_name=error.type_name,
                    node=node,
                    place=error.place,
                ) from error.__cause__

    def _find_damage(self, body: bytes) -> None:
        try:
            parts = msgspec.msgpack.decode(body, type=list[msgspec.Raw])
        except msgspec.DecodeError:
            return
        for channel, value in zip(parts[1::3], parts[2::3], strict=False):
            name = self._values.decode(bytes(channel))
            self._values.decode(bytes(value), path=f"$.{name}")


def _joined(bodies: Sequence[bytes]) -> bytes:
    for body in bodies:
        if len(body) > MAX_CONTAINERS:
            refuse_excess(body)
    return join_lists(bodies)


def _taken_out(body: bytes, channel: str) -> tuple[bytes, bytes | None]:
    """A body without the operations setting a channel, and the value of the last one.

    ``None`` if there is none, or it sets the channel to nothing. A body that cannot be taken apart
    comes back whole: decoding it says why.
    """
    name = msgspec.msgpack.encode(channel)
    if name not in body or list_head(body)[0] > MAX_CONTAINERS:
        return body, None
    try:
        parts = msgspec.msgpack.decode(body, type=list[msgspec.Raw])
    except msgspec.DecodeError:
        return body, None
    found = [at for at, part in enumerate(parts[1::3]) if bytes(part) == name]
    if not found or any(bytes(parts[3 * at]) != _SET for at in found) or len(parts) % 3:
        return body, None
    value = bytes(parts[3 * found[-1] + 2])
    for at in reversed(found):
        del parts[3 * at : 3 * at + 3]
    rest = struct.pack(">BI", 0xDD, len(parts)) + b"".join(parts)
    return rest, None if value == _NOTHING else value


def _triples(operations: Operations) -> Iterator[tuple[int, str, Any]]:
    parts = iter(operations)
    return zip(parts, parts, parts, strict=True)


def replay(values: dict[str, Any], operations: Operations) -> dict[str, Any]:
    """Apply operations to ``values`` in place; they must not be shared."""
    for code, channel, value in _triples(operations):
        if code == EDIT.code:
            values[channel] = _reduce(code, values.get(channel, []), value)
        elif code == SET or channel not in values:
            values[channel] = value
        else:
            values[channel] = _reduce(code, values[channel], value)
    return values


def _reduce(code: int, old: Any, update: Any) -> Any:
    extend = _EXTEND.get(code)
    if extend is None:
        try:
            return _REDUCERS[code].function(old, update)
        except (TypeError, ValueError) as error:
            raise CodecError(
                f"a stored update does not match the value before it: {error}"
            ) from error
    if type(old) is not type(update):
        raise CodecError("a stored update has a different type from the value before it")
    extend(old, update)
    return old


def fold(operations: Operations) -> Operations:
    """A shorter list with the same effect: overwritten values are dropped, appends are joined.

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
        elif before and (code == EDIT.code or before[-3] == EDIT.code):
            before[-3], before[-1] = _edited(before[-3], before[-1], code, value)
        else:
            before += (code, channel, value)
    return [part for channel in kept.values() for part in channel]


def _edited(first: int, old: Any, second: int, update: Any) -> tuple[int, Any]:
    try:
        if second == APPEND.code:
            length, changes, tail = old
            return EDIT.code, [length, changes, APPEND.function(tail, update)]
        if first == SET:
            return SET, EDIT.function(old, update)
        length, _, _ = update
        edits: Any = old if first == EDIT.code else [length - len(old), [], old]
        return EDIT.code, join_edits(edits, update)
    except (TypeError, ValueError) as error:
        raise CodecError(f"a stored update does not match the one before it: {error}") from error


def operations_between(
    old: Mapping[str, Any], new: Mapping[str, Any], codec: LogCodec
) -> Operations | None:
    """Operations from one state to the other; ``None`` if a channel is gone.

    Values are the same if their bytes are: ``0.0`` and ``-0.0`` differ.
    """
    if not old.keys() <= new.keys():
        return None
    operations: Operations = []
    for name, value in new.items():
        if name not in old:
            operations += [SET, name, value]
        elif _differs(old[name], value, codec):
            operations += _change(name, old[name], value, codec)
    return operations


def _change(name: str, old: Any, new: Any, codec: LogCodec) -> Operations:
    if kind_of(old) is not list or kind_of(new) is not list:
        return [SET, name, new]
    was: list[Any] = old
    items: list[Any] = new
    pairs = zip(was, items, strict=False)
    same = next(
        (at for at, (one, other) in enumerate(pairs) if _differs(one, other, codec)),
        min(len(was), len(items)),
    )
    if same == len(was):
        return [APPEND.code, name, items[same:]]
    if same == 0:
        return [SET, name, items]
    return [EDIT.code, name, [len(was), [[at] for at in range(same, len(was))], items[same:]]]


def _differs(old: Any, new: Any, codec: LogCodec) -> bool:
    return codec.encode_state({"value": old}) != codec.encode_state({"value": new})
