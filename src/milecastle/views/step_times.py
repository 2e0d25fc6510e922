"""Task times from a thread's log, for timelines and statistics.

Rules:

- Payloads are read in growing pages up to a bound: a thread with large entries is shown
  without times rather than slowly.
- No state value is decoded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import msgspec.msgpack

from milecastle.app.encryption.keyring import Keyring
from milecastle.codec.deltas import LogCodec
from milecastle.codec.envelope import ENCRYPTED
from milecastle.codec.values import UntypedCodec
from milecastle.engine.reserved_channels import TIMES
from milecastle.errors import CodecError
from milecastle.model.checkpoint import HOLDING, ROLLUP, Entry
from milecastle.model.keys import ThreadKey
from milecastle.model.step_times import DONE, StepTimes
from milecastle.ports.store import Store

_BYTES: Final = 2_000_000
_NAME: Final = msgspec.msgpack.encode(TIMES)


def read_times(
    store: Store,
    key: ThreadKey,
    keyring: Callable[[], Keyring | None],
    first: int,
    last: int,
    *,
    most: int = _BYTES,
) -> Mapping[int, StepTimes]:
    """The steps' stored times from checkpoint ``first`` to ``last``, by checkpoint.

    A step with one task that succeeded at once has none: it ran from the entry before to its own.
    Those after ``most`` bytes of entries, and those that cannot be decrypted, are missing too.
    """
    found: dict[int, StepTimes] = {}
    codec: LogCodec | None = None
    size, page, rolled = 0, 2, 0
    at = first - 1
    while at < last and size <= most:
        entries = store.entries(key, after=at, limit=min(page, last - at))
        if not entries:
            break
        for entry in entries:
            size += len(entry.payload)
            if entry.seq > last:
                return found
            if codec is None:
                codec = entry_codec(key, entry, keyring)
            if codec is None:
                return found
            times = _times(codec, entry, rolled)
            rolled = entry.roll_seq
            if times is not None:
                found[entry.seq] = times
        at, page = entries[-1].seq, page * 2
    return found


def entry_codec(
    key: ThreadKey, entry: Entry, keyring: Callable[[], Keyring | None]
) -> LogCodec | None:
    """A codec for a thread's entries without its graph; ``None`` without its key."""
    if not entry.payload[1] & ENCRYPTED:
        return LogCodec(UntypedCodec())
    sealers = keyring()
    if sealers is None:
        return None
    try:
        return LogCodec(UntypedCodec(), sealers=sealers).for_thread(key)
    except CodecError:  # the keyring lacks the key that wraps the thread's
        return None


def _times(codec: LogCodec, entry: Entry, rolled: int) -> StepTimes | None:
    try:
        body = codec.unseal_entry(entry, rolled if entry.kind == ROLLUP else entry.roll_seq)
        parts = msgspec.msgpack.decode(body, type=list[msgspec.Raw])
        stored = [
            value
            for name, value in zip(parts[1::3], parts[2::3], strict=True)
            if bytes(name) == _NAME
        ]
        if not stored:
            return None
        packed = msgspec.msgpack.decode(stored[-1], type=bytes)
        times = msgspec.msgpack.decode(packed, type=StepTimes)
    except (CodecError, msgspec.MsgspecError, ValueError):
        return None
    step = entry.step + (entry.source in HOLDING)
    return times if times.step == step else None


def nodes_of_times(entry: Entry) -> Sequence[str]:
    """The nodes an entry's times refer to by position."""
    return entry.next if entry.source in HOLDING else entry.nodes


def items_of_times(entry: Entry, times: StepTimes) -> dict[str, int]:
    """Each node's number of items that ended in a step; without nodes that ran once."""
    names = nodes_of_times(entry)
    if times.many is not None:
        counted = {one.node: one.ran - one.failed for one in times.many.nodes}
    else:
        counted = Counter(one.node for one in times.tasks if one.item >= 0 and one.end == DONE)
    return {names[node]: count for node, count in counted.items() if 0 <= node < len(names)}
