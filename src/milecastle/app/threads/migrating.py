"""Migrating a thread to a changed graph: by a registered migration, or by ``accept_changes``.

The history records either, in the entry with which the run continues. The
subgraph threads are migrated in the same way, by migrations registered with the app.
A thread is not resumed if a subgraph it is running cannot be.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import msgspec.structs

from milecastle.app.threads.children import children_at, root_of
from milecastle.app.threads.compatibility import Compatibility, judge_compatibility
from milecastle.app.threads.log import Migration, Threads, log_codec_for
from milecastle.engine.position import Position, place_of, restore
from milecastle.engine.renaming import task_renamed
from milecastle.errors import CodecError, InvalidRequest, ResumeRefused
from milecastle.graph.comparison import Renames
from milecastle.model.checkpoint import Entry
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Chain
from milecastle.support.printable import quoted


class BroughtOver(msgspec.Struct, frozen=True):
    """A thread's position in this graph; ``changed``: it differs from its log.

    ``renames`` were applied to it.
    ``released`` are tasks whose subgraphs are migrated: their waits are determined again.
    """

    position: Position
    note: str = ""
    changed: bool = False
    released: tuple[str, ...] = ()
    renames: Renames = Renames()


def foresee(
    threads: Threads, key: ThreadKey, head: Entry, chain: Chain | None = None
) -> Compatibility:
    """Judge a thread, and the subgraphs it is running, for which its chain is read."""
    fit = _own_fit(threads, key, head)
    inside = [found.fit() for found in _inside(threads, key, head, chain)]
    unfit = [found for found in (fit, *inside) if not found]
    if not unfit:
        return fit
    return Compatibility(
        reasons=tuple(reason for found in unfit for reason in found.reasons),
        advice="; ".join(dict.fromkeys(found.advice for found in unfit)),
        acceptable=all(found.acceptable for found in unfit),
    )


def _own_fit(threads: Threads, key: ThreadKey, entry: Entry) -> Compatibility:
    fingerprint = entry.fingerprint
    if fingerprint == threads.graph.fingerprint:
        return judge_compatibility(entry, None, threads.graph)
    if fingerprint in threads.migrations:
        return Compatibility(note=_note(fingerprint))
    return judge_compatibility(entry, threads.store.manifest(key, fingerprint), threads.graph)


class _Inside(msgspec.Struct, frozen=True):
    task: str
    node: str
    threads: Threads
    key: ThreadKey
    chain: Chain

    def fit(self) -> Compatibility:
        fit = foresee(self.threads, self.key, self.chain.entries[-1], self.chain)
        reasons = tuple(f"in subgraph '{self.node}': {reason}" for reason in fit.reasons)
        return msgspec.structs.replace(fit, reasons=reasons)

    def is_migrated(self) -> bool:
        fingerprint = self.chain.entries[-1].fingerprint
        if fingerprint == self.threads.graph.fingerprint:
            return False
        inside = _inside(self.threads, self.key, self.chain.entries[-1], self.chain)
        return fingerprint in self.threads.migrations or any(one.is_migrated() for one in inside)


def _inside(
    threads: Threads, key: ThreadKey, entry: Entry, chain: Chain | None
) -> Iterator[_Inside]:
    nodes = threads.graph.nodes
    if entry.fingerprint == threads.graph.fingerprint:
        return  # which covers those of its subgraphs
    own = _own_fit(threads, key, entry)
    renamed = own.renames.nodes
    for name in entry.next:
        now = renamed.get(name, name)
        subgraph = nodes[now].subgraph if now in nodes else None
        if subgraph is None:
            continue
        chain = chain or threads.store.read(key, entry.seq)
        if chain is None:
            return  # deleted meanwhile
        for task, child in children_at(threads.store, key, place_of(chain), name):
            found = threads.store.read(child)
            if found is not None:
                yield _Inside(task, name, threads.below(subgraph.graph), child, found)


def bring_over(
    threads: Threads, key: ThreadKey, chain: Chain, *, accept: bool = False
) -> BroughtOver:
    """A thread's position in this graph.

    Raises ``ResumeRefused`` with the reasons if there is none.
    """
    entry, graph = chain.entries[-1], threads.graph
    fit = foresee(threads, key, entry, chain)
    if not fit and not (accept and fit.acceptable):
        raise ResumeRefused(root_of(key).thread, fit.reasons, advice=fit.advice)
    if entry.fingerprint == graph.fingerprint:
        return BroughtOver(_fitting(threads, key, threads.restore(chain)))
    migration = threads.migrations.get(entry.fingerprint)
    if migration is not None:
        return _migrated(threads, key, chain, migration)
    own = _own_fit(threads, key, entry)
    if own:
        position = threads.restore(chain, own.renames)
        migrated = [one.task for one in _inside(threads, key, entry, chain) if one.is_migrated()]
        fitting = _fitting(threads, key, position)
        released = tuple(task_renamed(task, own.renames) for task in migrated)
        return BroughtOver(
            fitting, own.note, changed=bool(own.renames), released=released, renames=own.renames
        )
    position = threads.not_hosted(_without_lost_fields(threads, key, chain))
    values = {
        name: value for name, value in position.values.items() if name in graph.schema.channels
    }
    position = msgspec.structs.replace(position, values=values)
    return BroughtOver(position, f"changes accepted: {'; '.join(own.reasons)}", changed=True)


def _without_lost_fields(threads: Threads, key: ThreadKey, chain: Chain) -> Position:
    codec = log_codec_for(threads.graph, files=threads.codec.has_files, drops=True)
    try:
        return restore(chain, codec.like(threads.codec), threads.graph.schema)
    except CodecError as error:
        raise ResumeRefused(
            root_of(key).thread,
            [f"the stored state cannot be read: {error.message}"],
            advice=f"app.migrate({chain.entries[-1].fingerprint!r}, ..., types=[...]) reads it "
            "with the former classes",
        ) from error


def _fitting(threads: Threads, key: ThreadKey, position: Position) -> Position:
    schema = threads.graph.schema
    reasons = schema.misfits(position.values)
    refused = None if reasons else schema.refusal_of(position.values)
    if refused is not None:
        reasons = [f"{schema.state_type.__name__} refuses it with {type(refused).__name__}"]
    if reasons:
        thread = root_of(key).thread
        raise ResumeRefused(
            thread,
            [f"the stored state does not match: {reason}" for reason in reasons],
            advice=f"fork('{thread}', at=...) continues from an earlier checkpoint, and "
            f"update_state('{thread}', ...) sets a value of a wrong type",
        ) from refused
    return position


def _migrated(threads: Threads, key: ThreadKey, chain: Chain, migration: Migration) -> BroughtOver:
    entry, graph = chain.entries[-1], threads.graph
    files = threads.codec.has_files
    codec = log_codec_for(graph, types=migration.types, files=files).like(threads.codec)
    old = restore(chain, codec)
    values, next = migration.function(dict(old.values), entry.next or entry.route)
    nodes = tuple(next)
    unknown = [name for name in nodes if name not in graph.nodes]
    if unknown:
        raise InvalidRequest(
            f"the migration of thread '{key.thread}' leads to {quoted(*unknown)}, which is not a "
            "node"
        )
    position = Position(
        values=graph.schema.complete(graph.schema.read_input(values)),
        entry=msgspec.structs.replace(entry, next=nodes, route=()),
        was_seen=old.was_seen,
        reserved=old.reserved if nodes == entry.next else {},
        settled=old.settled,
        settled_id=old.settled_id,
        config=old.config,
    )
    fitting = _fitting(threads, key, position)
    return BroughtOver(fitting, _note(entry.fingerprint), changed=True)


def _note(fingerprint: str) -> str:
    return f"migrated from {fingerprint[:8]}"
