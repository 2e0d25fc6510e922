"""Observers by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from milecastle.errors import InvalidRequest
from milecastle.ports.observer import Observer

__all__ = ["find_observers", "register_observer"]


def _logging() -> Observer:
    from milecastle.observers.logs import LoggingObserver

    return LoggingObserver()


_factories: dict[str, Callable[[], Observer | None]] = {"none": lambda: None, "logging": _logging}


def register_observer(name: str, factory: Callable[[], Observer]) -> None:
    """Make an observer known by name, for ``compile(observers=[name])``."""
    _factories[name] = factory


def find_observers(given: Iterable[str | Observer]) -> tuple[Observer, ...]:
    """Observers themselves, or those made for their names."""
    found: list[Observer] = []
    for item in given:
        if not isinstance(item, str):
            found.append(item)
            continue
        if item not in _factories:
            known = ", ".join(sorted(_factories))
            raise InvalidRequest(f"there is no observer named '{item}'; known are {known}")
        observer = _factories[item]()
        if observer is not None:
            found.append(observer)
    return tuple(found)
