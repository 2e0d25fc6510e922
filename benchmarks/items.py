"""The work of a fan-out that every peer does for each item."""

from __future__ import annotations

from typing import Any


def work(number: int) -> dict[str, Any]:
    """The function that is called for each item."""
    return {"number": number, "square": number * number, "text": f"item {number}"}
