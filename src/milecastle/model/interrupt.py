from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from milecastle.support.reading import Brief


class Interrupt(Brief, msgspec.Struct, frozen=True, kw_only=True):
    """A run waits here. ``id`` identifies it if several are open; ids are never reused.

    ``question`` and ``show`` come from ``interrupt()``, and ``answer`` is the JSON schema of valid
    answers (``None``: any plain value). All three are ``None`` at a node of ``interrupt_before`` or
    ``interrupt_after``, which takes no answer. ``refused`` says why the last answer was refused by
    the node. ``until`` is when the question times out. Its ``repr`` omits the question and
    ``show``: both may contain values of the state.
    """

    id: str
    node: str
    question: Any = None
    show: Any = None
    answer: Mapping[str, Any] | None = None
    asks: bool = False
    refused: str | None = None
    until: datetime | None = None

    @property
    def digest(self) -> str:
        """Identifies the question as it is shown: its text, ``show`` and the answer's schema."""
        from hashlib import blake2b

        shown = (self.question, self.show, self.answer)
        return blake2b(msgspec.msgpack.encode(shown, order="sorted"), digest_size=16).hexdigest()

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("id", self.id), ("node", self.node), ("asks", self.asks)]
