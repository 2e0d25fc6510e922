"""Cells: databases of one store that workers may serve separately."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from milecastle.model.keys import ThreadKey


class Cells(Protocol):
    """A store's databases, of which a worker may serve some."""

    @property
    def names(self) -> Sequence[str]:
        """The databases whose threads this store's claims are about."""
        ...

    def of(self, key: ThreadKey) -> str:
        """The database that has a thread, as far as this process knows."""
        ...

    def serving(self, names: Sequence[str]) -> object:
        """The same store, whose claims and workers are those of these databases only.

        Threads everywhere are read and written as before. ``InvalidRequest`` for an unknown name.
        """
        ...
