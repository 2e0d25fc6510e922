"""The numbers beside the links of the navigation."""

from __future__ import annotations

from itertools import islice
from typing import Final

from milecastle.server.service import Service
from milecastle.views.listing import asking_threads

__all__ = ["open_questions"]

_COUNTED: Final = 100
"""How many threads are looked at."""


def open_questions(service: Service, tenant: str) -> str:
    """How many questions are open; of many threads, at least how many."""
    asking = [info.questions for info in islice(asking_threads(service.store, tenant), _COUNTED)]
    more = "+" if len(asking) == _COUNTED else ""
    return f"{sum(asking)}{more}" if asking else ""
