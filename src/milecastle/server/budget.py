"""Size budget for stored values in one answer or event.

Rules:

- An answer's values take about ``MOST_VALUES`` bytes together.
- A value is there whole, or a mark is in its place. A state is looked at channel by channel.
- The mark says how many bytes are left out, and which request reads a channel whole.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec
import msgspec.structs

from milecastle.server.redaction import Redact, redacted, texts_of, values_of
from milecastle.views.values import PlainValue, anything, json_size, plain

D = TypeVar("D", bound=msgspec.Struct)

MOST_VALUES: Final = 4 * 1024 * 1024
"""Bytes of values in one answer or event."""

OMITTED: Final = "$omitted"
WHOLE: Final = "/v1/threads/{thread}/state?at={seq}&channel={channel}"
"""The key of the mark, and the template of the address under which a channel is read whole."""

NO_STATE: Final = {OMITTED: {"get": "/v1/threads/{thread}/state?at={seq}"}}
"""The mark in place of a state that was not read."""

_STATE: Final = "state"
_COUNTED: Final = 1 << 40


class ValueBudget:
    """The bytes left for one answer's values.

    ``is_full`` if something had no room: further states are sent as marks. ``get`` is the request
    that reads an omitted value whole.
    """

    def __init__(self, left: int | None = None, get: str = WHOLE) -> None:
        self.left = MOST_VALUES if left is None else left
        self.get = get
        self.is_full = False

    def fit(self, value: Any) -> Any:
        """A value, which is JSON, or a mark if there is no room for it."""
        size = json_size(value, self.left)
        if size > self.left:
            self.is_full = True
            return {OMITTED: {"bytes": json_size(value, _COUNTED), "get": self.get}}
        self.left -= size
        return value

    def cut(self, text: str) -> str:
        found = text if len(text) <= self.left else f"{text[: self.left]}..."
        self.left -= len(found)
        return found

    def fit_state(self, state: Any) -> Any:
        if not isinstance(state, dict):
            return self.fit(state)
        channels: dict[str, Any] = anything(state)
        return {name: self.fit(value) for name, value in channels.items()}


def _texts(value: Any, budget: ValueBudget) -> Any:
    if isinstance(value, str):
        return budget.cut(value)
    items: tuple[str, ...] | None = anything(value)
    return items if items is None else tuple(map(budget.cut, items))


def within(document: D, budget: ValueBudget) -> D:
    changed: dict[str, Any] = {}
    values = values_of(type(document))
    for name in document.__struct_fields__:
        value: Any = getattr(document, name)
        if name in texts_of(type(document)):
            changed[name] = _texts(value, budget)
        elif name in values:
            changed[name] = budget.fit_state(value) if name == _STATE else budget.fit(value)
        elif isinstance(value, msgspec.Struct):
            changed[name] = within(value, budget)
        elif isinstance(value, tuple) and value:
            items: tuple[Any, ...] = anything(value)
            changed[name] = tuple(
                within(item, budget) if isinstance(item, msgspec.Struct) else item for item in items
            )
    return msgspec.structs.replace(document, **changed)


def outgoing(
    document: msgspec.Struct, redact: Redact | None, budget: ValueBudget | None = None
) -> PlainValue:
    """A document as it is sent: redacted, and within a budget, by default an answer's."""
    return PlainValue(_members(within(redacted(document, redact), budget or ValueBudget())))


def _members(document: msgspec.Struct) -> dict[str, Any]:
    values = values_of(type(document))
    found = ((name, getattr(document, name)) for name in document.__struct_fields__)
    return {name: value if name in values else _member(value) for name, value in found}


def _member(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return _members(value)
    if isinstance(value, tuple):
        return [_member(item) for item in anything(value)]
    return plain(value)
