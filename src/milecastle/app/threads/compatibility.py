from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from milecastle.graph.comparison import Renames, compare
from milecastle.graph.structure import CompiledGraph
from milecastle.model.checkpoint import Entry
from milecastle.model.manifest import START, Manifest

_OTHER_NODE: Final = (
    "CheckpointStore.put(..., next=...) appends a checkpoint with other nodes, and "
    "fork(..., at=...) continues from an earlier one"
)


class Compatibility(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict.

    ``reasons`` lists everything preventing a resume; ``note`` describes the changes, or is ''.
    ``advice`` explains how to proceed, and ``acceptable`` tells if ``accept_changes`` resumes
    anyway. ``renames`` are declared by the graph, and applied when it is resumed.
    """

    reasons: tuple[str, ...] = ()
    note: str = ""
    advice: str = ""
    acceptable: bool = True
    renames: Renames = Renames()

    def __bool__(self) -> bool:
        return not self.reasons


def judge_compatibility(entry: Entry, stored: bytes | None, graph: CompiledGraph) -> Compatibility:
    """Judge if a thread whose head is ``entry`` can be resumed with ``graph``.

    ``stored`` is the manifest the store has under the entry's fingerprint.
    """
    if entry.fingerprint == graph.fingerprint:
        unknown = _unknown(entry, graph, {})
        return (
            Compatibility(reasons=unknown, advice=_OTHER_NODE, acceptable=False)
            if unknown
            else Compatibility()
        )
    if not entry.fingerprint and not entry.next and not entry.route:
        return Compatibility(note="the state was put without a graph")  # its values are compared
    if stored is None:
        reason = "the graph changed, and the old one is not recorded"
        return _misfit(entry, [reason], acceptable=not _unknown(entry, graph, {}))
    difference = compare(Manifest.from_bytes(stored), graph.manifest)
    unknown = _unknown(entry, graph, difference.declared.nodes)
    reasons = difference.reasons_against((*entry.next, *entry.route)) or unknown
    if reasons:
        return _misfit(entry, reasons, acceptable=not unknown and difference.is_readable)
    note = f"the graph changed: {difference.summary()}"
    return Compatibility(note=note, renames=difference.declared)


def _unknown(entry: Entry, graph: CompiledGraph, renamed: Mapping[str, str]) -> tuple[str, ...]:
    pending = (renamed.get(name, name) for name in (*entry.next, *entry.route))
    gone = [name for name in pending if name not in graph.nodes and name != START]
    return tuple(f"node '{name}' would run next, but the graph has no such node" for name in gone)


def _misfit(entry: Entry, reasons: Sequence[str], *, acceptable: bool) -> Compatibility:
    advice = f"app.migrate({entry.fingerprint!r}, ...) migrates threads of that graph"
    if acceptable:
        advice += "; resume(..., accept_changes=True) resumes it anyway"
    return Compatibility(reasons=tuple(reasons), advice=advice, acceptable=acceptable)
