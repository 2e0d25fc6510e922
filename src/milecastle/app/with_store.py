from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from milecastle.app.application import App
from milecastle.errors import InvalidRequest
from milecastle.ports.clock import Clock
from milecastle.ports.store import Store

S = TypeVar("S")


def with_store(
    app: App[S],
    store: Store | None,
    *,
    clock: Clock | None = None,
    preserve: bool | None = None,
    place: tuple[str, str] | None = None,
) -> App[S]:
    """The same graph and settings with another store and, optionally, clock.

    ``place`` is where that store is, if known.
    """
    settings = app.runner.settings
    runner = app.runner.rebuilt(
        store=store,
        place=settings.place if store is settings.store else place,
        clock=clock or settings.clock,
        interval=settings.interval or 1,
        preserve=settings.preserve if preserve is None else preserve,
    )
    return App(runner)


def on_one_store(apps: Sequence[App[Any]]) -> list[App[Any]]:
    """The apps with the first app's store that has one; stores opened by the same URL are one.

    An app without a store gets it. ``InvalidRequest`` if two stores differ.
    """
    first = next((app for app in apps if app.has_store), None)
    if first is None:
        return list(apps)
    chosen = first.runner.settings
    shared: list[App[Any]] = []
    for app in apps:
        own = app.runner.settings
        if own.store not in (None, chosen.store) and (
            own.place is None or own.place != chosen.place
        ):
            raise InvalidRequest(
                f"graphs {first.graph.name!r} and {app.graph.name!r} are to share one store, and "
                "were compiled with different ones: compile both with the same URL, or with the "
                "same store object (each memory:// is another store)"
            )
        is_same = own.store is chosen.store
        moved = app if is_same else with_store(app, chosen.store, place=chosen.place)
        shared.append(moved)
    return shared
