"""The numbers beside the links of the navigation."""

from __future__ import annotations

from typing import Final

from milecastle.server.service import Service
from milecastle.views.listing import asking_page

__all__ = ["open_questions"]

_COUNTED: Final = 100
_LOOKED_AT: Final = 1000
"""How many threads are counted, and how many are looked at for that."""


def open_questions(service: Service, tenant: str) -> str:
    """How many questions are open; of many threads, at least how many."""
    page = asking_page(service.store, tenant, None, None, limit=_COUNTED, most=_LOOKED_AT)
    count = sum(info.questions for info in page.infos)
    return f"{count}{'+' if page.next else ''}" if count else ""
