"""Findings: what an examination of a graph has read so far, and the problems that it met."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import msgspec

from milecastle.graph.edges import Router
from milecastle.graph.nodes import Node
from milecastle.graph.schema import StateSchema
from milecastle.graph.source import Returned
from milecastle.model.problem import Place, Problem

__all__ = ["Findings"]

_GUESSES = 20
"""Guessing what was meant is slow in a large graph, and after some guesses nobody reads them."""


class Findings(msgspec.Struct):
    """What was read, and the problems. ``routers`` are those declared, with their targets."""

    schema: StateSchema | None = None
    nodes: dict[str, Node] = {}
    routers: list[Router] = []
    writes: dict[str, Returned] = {}
    problems: list[Problem] = []
    guesses: int = 0

    def report(self, code: str, message: str, place: Place | None, suggestion: str) -> None:
        """Add a problem."""
        self.problems.append(Problem(code, message, place, suggestion))

    def nearest(self, name: str, known: Iterable[str]) -> str | None:
        """Which of the known names was probably meant."""
        self.guesses += 1
        if self.guesses > _GUESSES:
            return None
        return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)
