"""An interrupt: a place at which a run waits for a person, and what it wants to know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["Interrupt"]


class Interrupt(msgspec.Struct, frozen=True, kw_only=True):
    """A run waits here. ``id`` names it when several are open; an old id is never taken for a new.

    ``question`` is what a node asked with ``interrupt()``, ``show`` what it showed with it, and
    ``answer`` the JSON schema of the answers that it takes (``None``: any plain value). All three
    are ``None`` at a node of ``interrupt_before`` or ``interrupt_after``, which takes no answer.
    ``refused`` says why the last answer was not taken, if only the node could tell.
    """

    id: str
    node: str
    question: Any = None
    show: Any = None
    answer: Mapping[str, Any] | None = None
    asks: bool = False
    refused: str | None = None
