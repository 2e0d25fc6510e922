"""Bringing a thread over to a changed graph: by a registered migration, or by an explicit word.

Either leaves its mark in the history: the entry with which the run goes on says what was done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import msgspec.structs

from milecastle.app.fitting import Fit, judge_fit
from milecastle.app.threads import Threads, log_codec_for
from milecastle.engine.position import Position, restore
from milecastle.errors import InvalidRequest, ResumeRefused
from milecastle.model.checkpoint import Entry
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Chain

__all__ = ["BroughtOver", "Migrate", "Migration", "bring_over", "foresee"]

Migrate = Callable[[dict[str, Any], tuple[str, ...]], tuple[dict[str, Any], Iterable[str]]]
"""A state and the nodes to run next, as the old graph left them; as this graph should find them."""


class Migration(msgspec.Struct, frozen=True):
    """How threads of one older graph come over. ``types`` are needed to read their states."""

    function: Migrate
    types: tuple[type, ...] = ()


class BroughtOver(msgspec.Struct, frozen=True):
    """Where a thread stands in this graph; ``changed``: not as its log adds up to."""

    position: Position
    note: str = ""
    changed: bool = False


def foresee(threads: Threads, key: ThreadKey, head: Entry) -> Fit:
    """What ``bring_over`` would say of a thread with this head; a migration is not called."""
    fingerprint = head.fingerprint
    if fingerprint != threads.graph.fingerprint and fingerprint in threads.migrations:
        return Fit(note=_note(fingerprint))
    return judge_fit(head, threads.store.manifest(key, fingerprint), threads.graph)


def bring_over(
    threads: Threads, key: ThreadKey, chain: Chain, *, accept: bool = False
) -> BroughtOver:
    """The position of a thread in this graph; ``ResumeRefused`` says why there is none."""
    entry, graph = chain.entries[-1], threads.graph
    if entry.fingerprint == graph.fingerprint:
        return BroughtOver(threads.restore(chain))
    migration = threads.migrations.get(entry.fingerprint)
    if migration is not None:
        return _migrated(threads, key, chain, migration)
    fit = judge_fit(entry, threads.store.manifest(key, entry.fingerprint), graph)
    gone = [name for name in (*entry.next, *entry.route) if name not in graph.nodes]
    if not fit and (gone or not accept):
        advice = _advice(entry.fingerprint, bool(gone))
        raise ResumeRefused(key.thread, fit.reasons, advice=advice)
    position = threads.restore(chain)
    if fit:
        return BroughtOver(position, fit.note)
    values = {
        name: value for name, value in position.values.items() if name in graph.schema.channels
    }
    position = msgspec.structs.replace(position, values=values)
    return BroughtOver(position, f"accepted by word: {'; '.join(fit.reasons)}", changed=True)


def _advice(fingerprint: str, gone: bool) -> str:
    migrate = f"app.migrate({fingerprint!r}, ...) brings threads of that graph over"
    return migrate if gone else f"{migrate}; resume(..., accept_changes=True) goes on all the same"


def _migrated(threads: Threads, key: ThreadKey, chain: Chain, migration: Migration) -> BroughtOver:
    entry, graph = chain.entries[-1], threads.graph
    codec = log_codec_for(graph, types=migration.types).like(threads.codec)
    old = restore(chain, codec)
    values, next = migration.function(dict(old.values), entry.next or entry.route)
    nodes = tuple(next)
    unknown = [name for name in nodes if name not in graph.nodes]
    if unknown:
        names = ", ".join(map(repr, unknown))
        raise InvalidRequest(
            f"the migration of thread '{key.thread}' leads to {names}, which is no node"
        )
    position = Position(
        values=graph.schema.complete(graph.schema.read_input(values)),
        entry=msgspec.structs.replace(entry, next=nodes, route=()),
        was_seen=old.was_seen,
        hidden=old.hidden if nodes == entry.next else {},
        settled=old.settled,
    )
    return BroughtOver(position, _note(entry.fingerprint), changed=True)


def _note(fingerprint: str) -> str:
    return f"migrated from {fingerprint[:8]}"
