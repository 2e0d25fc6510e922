"""Observers by name. A name may carry an argument after a colon: ``"trace:runs.jsonl"``.

Installed packages add names by entry points in the group ``milecastle.observers``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from milecastle.errors import InvalidRequest
from milecastle.ports.observer import Observer


def _logging() -> Observer:
    from milecastle.observers.logs import LoggingObserver

    return LoggingObserver()


def _progress() -> Observer:
    from milecastle.observers.progress import make_progress

    return make_progress()


def _trace(path: str) -> Observer:
    from milecastle.observers.trace import TraceObserver

    return TraceObserver(path)


_factories: dict[str, Callable[[], Observer | None]] = {
    "none": lambda: None,
    "logging": _logging,
    "progress": _progress,
    "trace": lambda: _trace("trace.jsonl"),
}
_GROUP: Final = "milecastle.observers"
_with_argument: dict[str, Callable[[str], Observer]] = {"trace": _trace}


def register_observer(name: str, factory: Callable[[], Observer]) -> None:
    """Register an observer by name, for ``compile(observers=[name])``."""
    _factories[name] = factory


def find_observers(given: Iterable[str | Observer] | str | Observer) -> tuple[Observer, ...]:
    found: list[Observer] = []
    several = given if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    for item in several:
        if not isinstance(item, str):
            found.append(item)
            continue
        name, _, argument = item.partition(":")
        if argument and name in _with_argument and item not in _factories:
            found.append(_with_argument[name](argument))
            continue
        if item not in _factories and not _load_package(item):
            known = ", ".join(sorted(_factories))
            raise InvalidRequest(f"there is no observer named '{item}'; available: {known}")
        observer = _factories[item]()
        if observer is not None:
            found.append(observer)
    return tuple(found)


def _load_package(name: str) -> bool:
    from importlib.metadata import entry_points

    for point in entry_points(group=_GROUP, name=name):
        try:
            _factories[name] = point.load()
        except (ImportError, AttributeError) as error:
            raise InvalidRequest(
                f"the observer '{name}' at {point.value} cannot be loaded: {error}"
            ) from error
        return True
    return False
