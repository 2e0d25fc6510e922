"""Replies' prices, by the package ``genai-prices`` if it is installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from milecastle.agents.messages import ChatMessage


def has_prices() -> bool:
    from importlib.util import find_spec

    return find_spec("genai_prices") is not None


def price_of(reply: ChatMessage) -> float:
    """A reply's price in US dollars, by its ``model`` and ``usage``.

    Raises:
        LookupError: the model is not known.
    """
    from genai_prices import Usage, calc_price

    usage: Mapping[str, Any] = reply.get("usage") or {}
    counts = Usage(
        input_tokens=usage.get("input", 0),
        output_tokens=usage.get("output", 0),
        cache_read_tokens=usage.get("cache_read", 0),
        cache_write_tokens=usage.get("cache_write", 0),
    )
    return float(calc_price(counts, model_ref=str(reply.get("model"))).total_price)
