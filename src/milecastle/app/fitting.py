"""Whether a thread fits a graph: the manifest that it was saved by, compared with today's."""

from __future__ import annotations

import msgspec

from milecastle.graph.comparison import compare
from milecastle.graph.compiled import CompiledGraph
from milecastle.model.checkpoint import Entry
from milecastle.model.manifest import Manifest

__all__ = ["Fit", "judge_fit"]


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict. ``reasons`` are all reasons against; ``note`` tells what changed, or is ''."""

    reasons: tuple[str, ...] = ()
    note: str = ""

    def __bool__(self) -> bool:
        return not self.reasons


def judge_fit(entry: Entry, stored: bytes | None, graph: CompiledGraph) -> Fit:
    """Whether a thread whose head is ``entry`` can go on with ``graph``.

    ``stored`` is the manifest that the store keeps under the entry's fingerprint.
    """
    if entry.fingerprint == graph.fingerprint:
        return Fit()
    if stored is None:
        return Fit(reasons=("the graph changed and the old one is not on record",))
    difference = compare(Manifest.from_bytes(stored), graph.manifest)
    reasons = difference.reasons_against((*entry.next, *entry.route))
    if reasons:
        return Fit(reasons=tuple(reasons))
    return Fit(note=f"the graph changed: {difference.summary()}")
