"""Whether a thread is compatible with a graph: compares its saved manifest with the current one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from milecastle.graph.comparison import compare
from milecastle.graph.structure import CompiledGraph
from milecastle.model.checkpoint import Entry
from milecastle.model.manifest import Manifest


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict.

    ``reasons`` lists everything that prevents a resume; ``note`` says what changed, or is ''.
    ``advice`` says what to do about the reasons, and ``acceptable`` whether ``accept_changes``
    resumes anyway.
    """

    reasons: tuple[str, ...] = ()
    note: str = ""
    advice: str = ""
    acceptable: bool = True

    def __bool__(self) -> bool:
        return not self.reasons


def judge_fit(entry: Entry, stored: bytes | None, graph: CompiledGraph) -> Fit:
    """Whether a thread whose head is ``entry`` can be resumed with ``graph``.

    ``stored`` is the manifest that the store has under the entry's fingerprint.
    """
    if entry.fingerprint == graph.fingerprint:
        return Fit()
    if stored is None:
        return _misfit(entry, graph, ["the graph changed, and the old one is not recorded"])
    difference = compare(Manifest.from_bytes(stored), graph.manifest)
    reasons = difference.reasons_against((*entry.next, *entry.route))
    if reasons:
        return _misfit(entry, graph, reasons)
    return Fit(note=f"the graph changed: {difference.summary()}")


def _misfit(entry: Entry, graph: CompiledGraph, reasons: Sequence[str]) -> Fit:
    gone = [name for name in (*entry.next, *entry.route) if name not in graph.nodes]
    advice = f"app.migrate({entry.fingerprint!r}, ...) migrates threads of that graph"
    if not gone:
        advice += "; resume(..., accept_changes=True) resumes it anyway"
    return Fit(reasons=tuple(reasons), advice=advice, acceptable=not gone)
