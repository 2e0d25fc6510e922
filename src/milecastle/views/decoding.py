"""Decode states without the graph's code.

Plain data needs none. An object of a user's class is read as its type's name and its fields. A
channel that still cannot be read (NumPy arrays) is omitted and listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
import msgspec.msgpack

from milecastle.app.encryption.keyring import Keyring
from milecastle.app.threads.log import log_codec_for
from milecastle.codec.bounds import refuse_excess
from milecastle.codec.deltas import LogCodec, Operations, list_head, replay
from milecastle.codec.envelope import ENCRYPTED
from milecastle.codec.values import UntypedCodec
from milecastle.engine.position import Position, restore
from milecastle.engine.reserved_channels import CONFIG, NAMES, SENDS, split
from milecastle.engine.status import NOTHING, Waits, waits_at
from milecastle.engine.waiting import open_interrupts
from milecastle.errors import CodecError, EncryptionError, InvalidRequest, NoKeyring
from milecastle.graph.structure import CompiledGraph
from milecastle.model.checkpoint import DELTA, SNAPSHOT
from milecastle.model.interrupt import Interrupt
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Chain, Store

KEYS_NEEDED: Final = "on the command line: MILECASTLE_KEYS and MILECASTLE_KEY_STORE, or --app"


class Decoded(NamedTuple):
    """A state's values and open questions.

    ``undecoded`` maps channels that need the code to the reasons. ``tasks`` are the next step's
    nodes, each with its number of tasks.
    """

    values: dict[str, Any]
    undecoded: dict[str, str]
    interrupts: tuple[Interrupt, ...] = ()
    tasks: Mapping[str, int] = MappingProxyType({})
    waits: Waits = NOTHING


def read_chain(store: Store, key: ThreadKey, seq: int) -> Chain:
    chain = store.read_state(key, seq)
    if chain is None:
        raise InvalidRequest(f"thread '{key.thread}' has no checkpoint {seq}")
    return chain


def decode(
    key: ThreadKey, chain: Chain, graph: CompiledGraph | None, keyring: Callable[[], Keyring | None]
) -> Decoded:
    """The state at a chain's end; without a graph, without types.

    ``keyring`` is called if the thread is encrypted.
    """
    codec = _codec(key, chain, graph, keyring)
    schema = graph.schema if graph else None
    # The items of one node are only counted. Those of several are decoded, for their names.
    counted = SENDS if len(chain.entries[-1].next) < 2 else None
    try:
        found = restore(chain, codec, schema, encoded=counted)
    except NoKeyring as error:
        error.add_note(KEYS_NEEDED)
        raise
    except EncryptionError:
        raise
    except CodecError:
        if graph is not None:
            raise
        return _in_part(chain, codec)
    interrupts = open_interrupts(found.reserved, found.place)
    return Decoded(found.values, {}, interrupts, _tasks(found), waits_at(found.reserved))


def _codec(
    key: ThreadKey, chain: Chain, graph: CompiledGraph | None, keyring: Callable[[], Keyring | None]
) -> LogCodec:
    sealers = keyring() if chain.entries[-1].payload[1] & ENCRYPTED else None
    if graph is not None:
        return log_codec_for(graph, sealers).for_thread(key)
    return LogCodec(UntypedCodec(), sealers=sealers).for_thread(key)


def changed_channels(
    key: ThreadKey, chain: Chain, keyring: Callable[[], Keyring | None]
) -> tuple[str, ...]:
    """The channels a chain's last entry updates; empty if it includes earlier updates."""
    if chain.entries[-1].kind != DELTA:
        return ()
    body = _codec(key, chain, None, keyring).unseal_last(chain.entries)
    refuse_excess(body)
    names = msgspec.msgpack.decode(body, type=list[msgspec.Raw])[1::3]
    found = [str(UntypedCodec().decode(bytes(name))) for name in names]
    return tuple(name for name in dict.fromkeys(found) if name not in NAMES)


def item_input(
    key: ThreadKey,
    chain: Chain,
    graph: CompiledGraph | None,
    keyring: Callable[[], Keyring | None],
    node: str,
    index: int,
) -> Mapping[str, Any] | None:
    """The input a fan-out sent to an item, at the checkpoint before its step, or ``None``.

    The item sees it as an update to that checkpoint's state.
    """
    found = restore(chain, _codec(key, chain, graph, keyring), graph.schema if graph else None)
    sends: list[Any] = found.reserved.get(SENDS) or []
    sent = (
        update
        for name, update in zip(sends[::2], sends[1::2], strict=True)
        if name == node and update is not None
    )
    return next(islice(sent, index, None), None)


def _tasks(found: Position) -> Mapping[str, int]:
    sends: bytes | list[Any] | None = found.reserved.get(SENDS)
    if isinstance(sends, bytes):
        return {name: list_head(sends)[0] // 2 for name in found.next}
    return Counter(sends[::2] if sends else found.next)


def _in_part(chain: Chain, log: LogCodec) -> Decoded:
    codec = UntypedCodec()
    undecoded: dict[str, str] = {}
    operations: Operations = []
    newest = max(at for at, entry in enumerate(chain.entries) if entry.kind == SNAPSHOT)
    for body in log.unseal_chain(chain.entries[newest:]):
        refuse_excess(body)
        parts = msgspec.msgpack.decode(body, type=list[msgspec.Raw])
        for code, name, value in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            channel = str(codec.decode(bytes(name)))
            try:
                read = codec.decode(bytes(value), path=f"$.{channel}")
            except CodecError as error:
                undecoded.setdefault(channel, error.message)
                continue
            operations += (codec.decode(bytes(code)), channel, read)
    values = replay({}, _without(operations, undecoded))
    waits = waits_at(split(values))
    values.pop(CONFIG, None)
    return Decoded(values, undecoded, waits=waits)


def _without(operations: Operations, channels: dict[str, str]) -> Operations:
    kept: Operations = []
    for at in range(0, len(operations), 3):
        if operations[at + 1] not in channels:
            kept += operations[at : at + 3]
    return kept
