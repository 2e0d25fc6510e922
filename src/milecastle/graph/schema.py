"""The schema: which channels a state has, and the way between plain values and the user's type.

Rules:

- Inside, a state is a plain dict from channel to value. Users meet it in their own type.
- A channel is last-write-wins unless it is annotated with a reducer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, cast

import msgspec

from milecastle.errors import InvalidRequest
from milecastle.graph.fields import Field, Form, UnreadableState, read_fields
from milecastle.graph.reducers import LAST, Reducer
from milecastle.graph.types import fitting_classes, type_name
from milecastle.model.manifest import ChannelInfo

__all__ = ["Channel", "StateSchema", "UnreadableState", "read_schema"]


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    """A field of the state.

    ``classes`` are those whose instances fit (``None``: anything). ``default`` makes the value
    that the channel has before anything was written, if it has one.
    """

    name: str
    annotation: Any
    type_name: str
    reducer: Reducer = LAST
    optional: bool = False
    default: Callable[[], Any] | None = None
    classes: tuple[type, ...] | None = None

    def info(self) -> ChannelInfo:
        """What the manifest says of this channel."""
        return ChannelInfo(self.name, self.type_name, self.reducer.name, self.optional)


class StateSchema(msgspec.Struct, frozen=True):
    """The channels of a state, and the way between a dict of values and the user's type."""

    state_type: Any
    form: Form
    channels: Mapping[str, Channel]
    defaults: Mapping[str, Callable[[], Any]]

    def initial(self) -> dict[str, Any]:
        """The values of a state to which nothing was written yet."""
        return {name: make() for name, make in self.defaults.items()}

    def complete(self, values: dict[str, Any]) -> dict[str, Any]:
        """``values`` with the defaults of channels that are not there (added since, perhaps)."""
        missing = {name: make() for name, make in self.defaults.items() if name not in values}
        return {**missing, **values} if missing else values

    def present(self, values: dict[str, Any]) -> Any:
        """The state as users meet it. A fresh outer object; the values are shared."""
        if self.form == "typed-dict":
            return dict(values)
        if self.form == "pydantic":
            return self.state_type.model_construct(**values)
        return self.state_type(**values)

    def fields_of(self, state: Any) -> dict[str, Any]:
        """The values of an instance of the state's own class."""
        return {name: getattr(state, name) for name in self.channels}

    def read_input(self, given: Any) -> dict[str, Any]:
        """An input as an update: a mapping of channels, or an instance of the state."""
        if self.form != "typed-dict" and isinstance(given, self.state_type):
            return self.fields_of(given)
        state = self.state_type.__name__
        if not isinstance(given, Mapping):
            raise InvalidRequest(f"the input must be a dict or {state}, not {type(given).__name__}")
        update = dict(cast("Mapping[str, Any]", given))
        unknown = [name for name in update if name not in self.channels]
        if unknown:
            raise InvalidRequest(
                f"the input has {', '.join(map(repr, unknown))}, which {state} does not declare; "
                f"it has {', '.join(map(repr, self.channels))}"
            )
        return update

    def missing(self, values: Mapping[str, Any]) -> list[str]:
        """Fields that must have a value before the state can be presented, and have none."""
        if self.form == "typed-dict":
            return []
        return [name for name in self.channels if name not in values]


def read_schema(state_type: Any, local_names: Mapping[str, Any]) -> StateSchema:
    """Read the channels of a class; ``UnreadableState`` says why it cannot be one."""
    form, fields = read_fields(state_type, local_names)
    channels = {field.name: _channel(field) for field in fields}
    defaults = {
        name: channel.default for name, channel in channels.items() if channel.default is not None
    }
    return StateSchema(state_type, form, MappingProxyType(channels), MappingProxyType(defaults))


def _channel(field: Field) -> Channel:
    default = field.reducer.empty if field.default is None else field.default
    return Channel(
        name=field.name,
        annotation=field.annotation,
        type_name=type_name(field.annotation),
        reducer=field.reducer,
        optional=default is not None or not field.required,
        default=default,
        classes=fitting_classes(field.annotation) if field.reducer is LAST else None,
    )
