"""Budgets: limits in tokens and money.

Rules:

- The model is called only if usage plus ``reserve`` is within the limit.
- With ``reserve`` every call's begin is recorded before it is made. A call that began and has no
  end counts as ``reserve``: it was lost by a crash, and may have been billed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

COUNTS = ("input", "output", "lost")
"""The keys of ``used`` that count for a budget; the others are parts of these."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """The most a thread may use, in tokens or US dollars.

    ``reserve`` and ``reserve_usd`` are the most one call can use: set the model's output token
    limit with them. The budget then holds even if the process is killed. ``then="ask"`` asks for
    more, with a ``Grant`` as the answer, instead of stopping.
    """

    tokens: int | None = None
    usd: float | None = None
    reserve: int = 0
    reserve_usd: float = 0.0
    then: Literal["stop", "ask"] = "stop"


class Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """More tokens or dollars for a thread: the answer when a budget is used up. Neither: stop."""

    tokens: Annotated[int, Meta(ge=0)] = 0
    usd: Annotated[float, Meta(ge=0)] = 0.0


class Allowance(msgspec.Struct, frozen=True):
    """A budget's rest, and the part a call must be able to use."""

    tokens: float | None
    usd: float | None
    reserve: int = 0
    reserve_usd: float = 0.0

    @property
    def is_reserved(self) -> bool:
        return bool(self.reserve or self.reserve_usd)

    @property
    def suffices(self) -> bool:
        tokens = self.tokens is None or self.tokens >= (self.reserve or 1)
        return tokens and (self.usd is None or (self.usd > 0 and self.usd >= self.reserve_usd))

    def lost(self, calls: int) -> dict[str, Any]:
        found = {"lost": self.reserve * calls, "usd": self.reserve_usd * calls}
        return {name: count for name, count in found.items() if count}

    def less(self, calls: int) -> Allowance:
        return self._changed(-self.reserve * calls, -self.reserve_usd * calls)

    def plus(self, grant: Grant) -> Allowance:
        return self._changed(grant.tokens, grant.usd)

    def _changed(self, tokens: float, usd: float) -> Allowance:
        return msgspec.structs.replace(
            self,
            tokens=None if self.tokens is None else self.tokens + tokens,
            usd=None if self.usd is None else self.usd + usd,
        )

    def part(self, parts: int) -> dict[str, Any]:
        """Divide it into equal parts; return one as data for a subagent."""
        tokens = None if self.tokens is None else int(max(0, self.tokens)) // parts
        usd = None if self.usd is None else max(0.0, self.usd) / parts
        return {
            "tokens": tokens,
            "usd": usd,
            "reserve": self.reserve,
            "reserve_usd": self.reserve_usd,
        }


def allowance(budget: Budget | None, state: Mapping[str, Any]) -> Allowance:
    """A thread's remaining allowance: the smaller of its budget and its share, plus grants.

    A subagent's share is a part of its parent's rest.
    """
    budget, given = budget or Budget(), dict[str, Any]()
    share: dict[str, Any] = state.get("share") or given
    used: dict[str, Any] = state.get("used") or given
    granted: dict[str, Any] = state.get("granted") or given
    tokens = [limit for limit in (budget.tokens, share.get("tokens")) if limit is not None]
    usd = [limit for limit in (budget.usd, share.get("usd")) if limit is not None]
    spent = sum(used.get(key, 0) for key in COUNTS)
    return Allowance(
        min(tokens) + granted.get("tokens", 0) - spent if tokens else None,
        min(usd) + granted.get("usd", 0.0) - used.get("usd", 0.0) if usd else None,
        max(budget.reserve, share.get("reserve", 0)),
        max(budget.reserve_usd, share.get("reserve_usd", 0.0)),
    )
