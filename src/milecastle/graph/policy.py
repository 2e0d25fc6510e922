"""How a node is run: what its declaration may say besides its function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from milecastle.model.policies import Retry, Timeout

__all__ = ["PLAIN", "NodePolicy"]


class NodePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What was declared of a node.

    ``limit`` is how many tasks of this node run at once. ``on_error`` names the node that runs
    instead of what comes next when this one has failed for good. ``defer`` waits until no other
    node is left to run. ``goto`` are the nodes that a ``Command`` may lead to. ``give`` and
    ``take`` lead into a subgraph and out of it.
    """

    version: str = ""
    inline: bool = False
    retry: Retry | None = None
    timeout: Timeout | None = None
    limit: int | None = None
    on_error: str | None = None
    defer: bool = False
    goto: tuple[str, ...] = ()
    give: Callable[[Any], Any] | None = None
    take: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise TypeError(f"limit= must be at least 1, not {self.limit}")
        for function in (self.give, self.take):
            if function is not None and not callable(function):
                raise TypeError("give= and take= are functions of the state")

    @property
    def is_simple(self) -> bool:
        """Whether the node is run once and either returns or fails."""
        return self.retry is None and self.timeout is None and self.on_error is None


PLAIN: Final = NodePolicy()
