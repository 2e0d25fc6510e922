"""Values containing a state: they read like the state itself, and print without it."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import TYPE_CHECKING, Any, cast

from milecastle.support.migration_hints import refuse_attribute


class Brief:
    """A ``repr`` of ``__rich_repr__``'s fields: names, ids, status and counts.

    A ``repr`` may end up in a log, and state values must not.
    """

    __slots__ = ()

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        raise NotImplementedError

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({shown})"


class StateReader(Brief):  # noqa: PLW1641 - not hashable, as other mappings are not
    """A mapping of the state's keys to their values, whatever the state's form.

    Equal to a mapping with the same items, and to another of its kind with the same fields.
    """

    __slots__ = ()

    def __getitem__(self, key: str) -> Any:
        return _values(self)[key]

    def __iter__(self) -> Iterator[str]:
        return iter(_values(self))

    def __len__(self) -> int:
        return len(_values(self))

    def __contains__(self, key: object) -> bool:
        return key in _values(self)

    def keys(self) -> KeysView[str]:
        """The keys of the state."""
        return _values(self).keys()

    def values(self) -> ValuesView[Any]:
        """The values of the state."""
        return _values(self).values()

    def items(self) -> ItemsView[str, Any]:
        """The keys of the state with their values."""
        return _values(self).items()

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default if the state does not have it."""
        return _values(self).get(key, default)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> None:
            if name != "state" and name in _values(self):
                raise AttributeError(
                    f"{type(self).__name__} has no '{name}': write result['{name}'], or "
                    "result.state for the whole state"
                )
            refuse_attribute(type(self).__name__, name)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StateReader):
            return type(self) is type(other) and _fields(self) == _fields(other)
        return dict(self.items()) == other if isinstance(other, Mapping) else NotImplemented


cast("ABCMeta", Mapping).register(StateReader)


def _values(reader: Any) -> Mapping[str, Any]:
    state: object = reader.state
    if isinstance(state, Mapping):
        found = cast("Mapping[str, Any]", state)
    else:
        form = cast("Any", type(state))
        fields: Iterable[str] = getattr(form, "__dataclass_fields__", None) or form.model_fields
        found = {name: getattr(state, name) for name in fields}
    shown = reader.shown if "shown" in reader.__struct_fields__ else None
    return found if shown is None else {name: found[name] for name in shown if name in found}


def _fields(reader: Any) -> list[Any]:
    return [getattr(reader, name) for name in reader.__struct_fields__]
