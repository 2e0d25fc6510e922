"""The checkpoints that wrote a conversation's messages, found without decoding any state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec.msgpack

from milecastle.app.encryption.keyring import Keyring
from milecastle.codec.bounds import refuse_excess
from milecastle.codec.values import UntypedCodec
from milecastle.errors import CodecError
from milecastle.model.checkpoint import DELTA, ROLLUP
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Store
from milecastle.views.step_times import entry_codec
from milecastle.views.values import anything

_ENTRIES: Final = 200
_BYTES: Final = 4_000_000


def checkpoints_of_messages(
    store: Store,
    key: ThreadKey,
    keyring: Callable[[], Keyring | None],
    channel: str,
    last: int,
) -> Mapping[str, int]:
    """Map each message's id to the checkpoint that wrote it.

    The newest 200 entries up to ``last`` are read, at most 4 MB: a message written before them, or
    that cannot be decrypted here, is missing.
    """
    after = max(0, last - _ENTRIES)
    entries = [one for one in store.entries(key, after=after, limit=_ENTRIES) if one.seq <= last]
    found: dict[str, int] = {}
    size = rolled = 0
    codec = entry_codec(key, entries[0], keyring) if entries else None
    for entry in entries:
        size += len(entry.payload)
        if codec is None or size > _BYTES:
            break
        try:
            body = codec.unseal_entry(entry, rolled if entry.kind == ROLLUP else entry.roll_seq)
            refuse_excess(body)
            parts = msgspec.msgpack.decode(body, type=list[msgspec.Raw])
        except (CodecError, msgspec.MsgspecError):
            break
        rolled = entry.roll_seq
        if entry.kind != DELTA and after:  # it repeats what was written before
            continue
        for name, value in zip(parts[1::3], parts[2::3], strict=True):
            if msgspec.msgpack.decode(name) == channel:
                for id in _ids(bytes(value)):
                    found.setdefault(id, entry.seq)
    return found


def _ids(value: bytes) -> list[str]:
    try:
        messages: Any = UntypedCodec().decode(value)
    except CodecError:
        return []
    listed: list[Any] = anything(messages) if isinstance(messages, list) else [messages]
    ids = [anything(one).get("id") for one in listed if isinstance(one, Mapping)]
    return [id for id in ids if isinstance(id, str)]
