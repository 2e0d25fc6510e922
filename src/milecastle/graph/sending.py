from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")


class Send(msgspec.Struct, frozen=True):
    """Run ``node`` once in the next step, with ``update`` applied to the state it receives.

    Several, also to one node, run in parallel; each is a separate task.
    """

    node: str
    update: Mapping[str, Any] = {}


Goto = str | Send | Sequence[str | Send]


class Command(msgspec.Struct, Generic[T], frozen=True):
    """An update together with the next nodes; ``goto`` replaces the node's edges.

    Annotate the node with ``Command[Literal["a", "b"]]``, or declare it with
    ``goto=["a", "b"]``, so the graph knows where it may lead.
    """

    update: Any = None
    goto: Goto = ()
    resume: Any = None

    def __post_init__(self) -> None:
        if self.resume is not None:
            raise TypeError("to answer a question, write app.resume(thread, answer=...)")


class Beyond(msgspec.Struct, frozen=True):
    """Continue as if this node had run: the result when a map's list is empty."""

    node: str


class Map(msgspec.Struct, frozen=True):
    node: str
    over: str | Callable[[Any], Sequence[Any]]
    item: str

    def __call__(self, state: Any) -> list[Send] | Beyond:
        over = self.over
        members: Sequence[Any]
        if callable(over):
            members = over(state)
        else:
            given: Any = state
            members = given[over] if isinstance(state, Mapping) else getattr(given, over)
        return [Send(self.node, {self.item: member}) for member in members] or Beyond(self.node)
