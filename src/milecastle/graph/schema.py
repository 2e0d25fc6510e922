"""The schema: which channels a state has, and the way between plain values and the user's type.

Rules:

- Internally a state is a plain dict from channel to value. Users get it in their own type.
- Reading constructs nothing: ``view`` runs no user code.
- An invalid state is refused before its step is committed.
- A channel is last-write-wins unless it is annotated with a reducer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET

from milecastle.errors import InvalidRequest
from milecastle.graph.state_types import (
    Field,
    Form,
    construct,
    fitting_classes,
    put_together,
    read_fields,
    runs_code,
    type_name,
)
from milecastle.graph.type_names import misfit_of
from milecastle.model.manifest import ChannelInfo, Manifest
from milecastle.model.reducers import LAST, Reducer
from milecastle.support.printable import path_segment, quoted

_Declared = Mapping[str, tuple[str, tuple[type, ...] | None]]
"""By channel: the name of its type, and the classes of its values (``None``: anything)."""

_KEEPS_TYPE: Final = frozenset({"last", "append", "merge", "union"})
"""Reducers whose result is of the declared type."""


def misfits_of(declared: _Declared, values: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for name, value in values.items():
        if name not in declared:
            known = ", ".join(map(repr, declared))
            found.append(f"${path_segment(name)} is not a key of the state, which has {known}")
            continue
        type_name, classes = declared[name]
        if classes is not None and not isinstance(value, classes):
            found.append(f"$.{name} is {type(value).__name__}, but it is declared as {type_name}")
    return found


def recorded_misfits(manifest: Manifest, values: Mapping[str, Any]) -> list[str]:
    declared: _Declared = {channel.name: (channel.type, None) for channel in manifest.channels}
    types = {found.name: found for found in manifest.types or ()}
    reasons = misfits_of(declared, values)
    for channel in manifest.channels:
        if channel.name in values and channel.reducer in _KEEPS_TYPE:
            found = misfit_of(values[channel.name], channel.type, types, f"$.{channel.name}")
            if found is not None:
                path, kind, wanted = found
                reasons.append(f"{path} is {kind}, but it is declared as {wanted}")
    return reasons


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    """A state field.

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
    former: tuple[str, ...] = ()
    inbox: str | None = None

    @property
    def held_classes(self) -> tuple[type, ...] | None:
        if self.reducer is LAST:
            return self.classes
        empty, declared = self.reducer.empty, fitting_classes(self.annotation)
        if not self.reducer.code or empty not in (list, dict, set) or declared is None:
            return None
        return (*declared, empty)

    def info(self) -> ChannelInfo:
        former = self.former or UNSET
        return ChannelInfo(self.name, self.type_name, self.reducer.name, self.optional, former)


class InputSchema(msgspec.Struct, frozen=True):
    name: str
    annotations: Mapping[str, Any]
    required: tuple[str, ...]

    def refuse_misfit(self, update: Mapping[str, Any]) -> None:
        missing = [name for name in self.required if name not in update]
        if missing:
            raise InvalidRequest(f"the input lacks {quoted(*missing)}, which {self.name} requires")
        unknown = [name for name in update if name not in self.annotations]
        if unknown:
            raise InvalidRequest(
                f"the input has {quoted(*unknown)}, which {self.name} does not declare; "
                f"it has {', '.join(map(repr, self.annotations))}"
            )


class StateSchema(msgspec.Struct, frozen=True):
    """A state's channels, and the way between a dict of values and the user's type.

    ``is_guarded`` says constructing a state runs user code, which may refuse it. ``prepares``
    are the channels whose reducers complete updates before they are stored. ``input`` declares the
    required input, and ``output`` the keys a result shows. Neither is part of the manifest: a
    paused thread is past its input. ``inboxes`` are channels by the topics of their messages.
    """

    state_type: Any
    form: Form
    channels: Mapping[str, Channel]
    defaults: Mapping[str, Callable[[], Any]]
    is_guarded: bool
    prepares: tuple[str, ...] = ()
    input: InputSchema | None = None
    output: tuple[str, ...] | None = None
    inboxes: Mapping[str, str] = {}

    def initial(self) -> dict[str, Any]:
        return {name: make() for name, make in self.defaults.items()} if self.defaults else {}

    def complete(self, values: dict[str, Any]) -> dict[str, Any]:
        missing = {name: make() for name, make in self.defaults.items() if name not in values}
        return {**missing, **values} if missing else values

    def present(self, values: dict[str, Any]) -> Any:
        """The state in the user's type. A new outer object; the values are shared."""
        if self.form == "typed-dict":
            return dict(values)
        return construct(self.state_type, self.form, values)

    def view(self, values: dict[str, Any]) -> Any:
        """The state for reading a thread: runs no user code."""
        if self.form == "typed-dict":
            return dict(values)
        return put_together(self.state_type, self.form, values)

    def refusal_of(self, values: dict[str, Any]) -> Exception | None:
        """The error the state's own code raises for these values, if any."""
        if self.is_guarded:
            try:
                self.present(values)
            except Exception as error:
                return error
        return None

    def misfits(self, values: Mapping[str, Any]) -> list[str]:
        """Problems with values to run on: unknown, missing, or wrongly typed."""
        declared = {
            name: (channel.type_name, channel.held_classes)
            for name, channel in self.channels.items()
        }
        return [
            *misfits_of(declared, values),
            *(f"$.{name} is missing" for name in self.missing(values)),
        ]

    def fields_of(self, state: Any) -> dict[str, Any]:
        return {name: getattr(state, name) for name in self.channels}

    def read_input(self, given: Any) -> dict[str, Any]:
        """An input as an update: a mapping of channels, or a state instance."""
        if self.form != "typed-dict" and isinstance(given, self.state_type):
            return self.fields_of(given)
        state = self.state_type.__name__
        if not isinstance(given, Mapping):
            raise InvalidRequest(f"the input must be a dict or {state}, not {type(given).__name__}")
        update = dict(cast("Mapping[str, Any]", given))
        if not update.keys() <= self.channels.keys():
            unknown = [name for name in update if name not in self.channels]
            raise InvalidRequest(
                f"the input has {quoted(*unknown)}, which {state} does not declare; "
                f"it has {', '.join(map(repr, self.channels))}"
            )
        return update

    def start_input(self, given: Any) -> dict[str, Any]:
        """``read_input`` for a run's input, which must be as declared."""
        update = self.read_input(given)
        if self.input is not None:
            self.input.refuse_misfit(update)
        return update

    def missing(self, values: Mapping[str, Any]) -> list[str]:
        if self.form == "typed-dict":
            return []
        return [name for name in self.channels if name not in values]


def read_schema(state_type: Any, local_names: Mapping[str, Any]) -> StateSchema:
    form, fields = read_fields(state_type, local_names)
    channels = {field.name: _channel(field) for field in fields}
    defaults = {
        name: channel.default for name, channel in channels.items() if channel.default is not None
    }
    return StateSchema(
        state_type,
        form,
        MappingProxyType(channels),
        MappingProxyType(defaults),
        runs_code(state_type, form),
        tuple(name for name, channel in channels.items() if channel.reducer.prepare is not None),
        inboxes=MappingProxyType(
            {channel.inbox: name for name, channel in channels.items() if channel.inbox is not None}
        ),
    )


def read_input_schema(input_type: Any, local_names: Mapping[str, Any]) -> InputSchema:
    _, fields = read_fields(input_type, local_names)
    required = tuple(one.name for one in fields if one.required and one.default is None)
    annotations = {one.name: one.annotation for one in fields}
    return InputSchema(input_type.__name__, MappingProxyType(annotations), required)


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
        former=field.former,
        inbox=field.inbox,
    )
