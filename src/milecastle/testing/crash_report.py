"""Outcome of crashing a run everywhere. Contains paths and types, never values."""

from __future__ import annotations

import msgspec

from milecastle.testing.process import CrashPoint

_SHOWN = 10
_PATHS_SHOWN = 5


class Mismatch(msgspec.Struct, frozen=True, kw_only=True):
    """A run that did not end as the undisturbed one.

    ``point`` is where it crashed (``None``: nowhere, the undisturbed run contradicts itself),
    ``kind`` the effect there, ``thread`` the thread left in the store to be looked at. ``paths``
    are the places in the state that differ, ``problems`` other mistakes.
    """

    point: CrashPoint | None
    kind: str
    thread: str
    paths: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = "without any crash"
        if self.point is not None:
            where = f"crash {self.point.when} effect {self.point.effect} ({self.kind})"
        found = [f"the final state differs at {_listed(self.paths)}"] if self.paths else []
        return f"{where}: {'; '.join((*found, *self.problems))}"


def _listed(paths: tuple[str, ...]) -> str:
    more = len(paths) - _PATHS_SHOWN
    return ", ".join(paths[:_PATHS_SHOWN]) + (f" and at {more} more places" if more > 0 else "")


class CrashReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of ``crash_everywhere``.

    ``effects`` is how many the undisturbed run has, ``crashes`` how many were tried, ``repeated``
    in how many crashes a node ran more often than it does undisturbed.
    """

    effects: int
    crashes: int
    repeated: dict[str, int]
    mismatches: tuple[Mismatch, ...] = ()
    hint: str = ""

    def __str__(self) -> str:
        nodes = ", ".join(f"'{node}' in {count}" for node, count in sorted(self.repeated.items()))
        return (
            f"{self.effects} effects, {self.crashes} crashes, {len(self.mismatches)} mismatches; "
            f"ran again: {nodes or 'nothing'}"
        )


class CrashMismatch(AssertionError):
    """A crash changed the outcome. ``report`` has every mismatch."""

    def __init__(self, report: CrashReport) -> None:
        super().__init__(report)
        self.report = report

    def __str__(self) -> str:
        found = self.report.mismatches
        lines = [f"a crash changes the outcome ({self.report})"]
        lines += [f"  {mismatch}" for mismatch in found[:_SHOWN]]
        if len(found) > _SHOWN:
            lines.append(f"  and {len(found) - _SHOWN} more")
        if self.report.hint:
            lines.append(f"  hint: {self.report.hint}")
        return "\n".join(lines)
