"""States read without the graph's code, as far as that goes.

Plain data reads by itself. A channel that holds a type of the user's needs the code: it is left
out and named, and the rest is shown.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec
import msgspec.msgpack

from milecastle.app.application import App
from milecastle.app.threads import log_codec_for
from milecastle.cli.session import Session
from milecastle.cli.values import anything
from milecastle.codec.deltas import LogCodec, Operations, replay
from milecastle.codec.envelope import ENCRYPTED
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.engine.desk import open_interrupts
from milecastle.engine.hidden import split
from milecastle.engine.position import restore
from milecastle.errors import CodecError, EncryptionError, InvalidRequest, NoKeyring
from milecastle.graph.compiled import CompiledGraph
from milecastle.model.checkpoint import SNAPSHOT
from milecastle.model.interrupt import Interrupt
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Chain

__all__ = ["KEYS_NEEDED", "Decoded", "codec_of", "decode", "read_chain", "values_of"]

KEYS_NEEDED: Final = "on the command line: MILECASTLE_KEYS and MILECASTLE_KEY_STORE, or --app"


class Decoded(NamedTuple):
    """The values of a state. ``undecoded`` names channels that need the code, and why.

    ``interrupts`` are the questions that are open there.
    """

    values: dict[str, Any]
    undecoded: dict[str, str]
    interrupts: tuple[Interrupt, ...] = ()


def codec_of(
    session: Session, key: ThreadKey, chain: Chain, graph: CompiledGraph | None = None
) -> LogCodec:
    """The codec of a thread, with its key if it is encrypted.

    Without a graph it is that of plain data and of types that were registered.
    """
    keyring = session.keyring() if chain.entries[-1].payload[1] & ENCRYPTED else None
    if graph is not None:
        return log_codec_for(graph, keyring).for_thread(key)
    return LogCodec(ValueCodec(TypeRegistry.for_annotations(())), sealers=keyring).for_thread(key)


def read_chain(session: Session, key: ThreadKey, seq: int) -> Chain:
    """What rebuilds a checkpoint, which must be there."""
    chain = session.store().read(key, seq)
    if chain is None:
        raise InvalidRequest(f"thread '{key.thread}' has no checkpoint {seq}")
    return chain


def decode(session: Session, key: ThreadKey, chain: Chain) -> Decoded:
    """The state at the end of a chain; the code is loaded only if it is needed."""
    codec = codec_of(session, key, chain)
    try:
        found = restore(chain, codec)
    except NoKeyring as error:
        error.add_note(KEYS_NEEDED)
        raise
    except EncryptionError:
        raise
    except CodecError:
        if session.app_reference is None:
            return _in_part(chain, codec)
        graph = session.app().graph
        found = restore(chain, codec_of(session, key, chain, graph), graph.schema)
    return Decoded(found.values, {}, open_interrupts(found.hidden, found.place))


def values_of(app: App[Any], state: Any) -> dict[str, Any]:
    """A state in the user's own type as values by channel."""
    if isinstance(state, dict):
        return dict(anything(state))
    return app.graph.schema.fields_of(state)


def _in_part(chain: Chain, log: LogCodec) -> Decoded:
    codec = ValueCodec(TypeRegistry.for_annotations(()))
    undecoded: dict[str, str] = {}
    operations: Operations = []
    newest = max(at for at, entry in enumerate(chain.entries) if entry.kind == SNAPSHOT)
    for entry in chain.entries[newest:]:
        body = log.unseal(entry.payload, entry.seq, entry.kind)
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
    split(values)
    return Decoded(values, undecoded)


def _without(operations: Operations, channels: dict[str, str]) -> Operations:
    kept: Operations = []
    for at in range(0, len(operations), 3):
        if operations[at + 1] not in channels:
            kept += operations[at : at + 3]
    return kept
