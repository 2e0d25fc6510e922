"""Children of a step that is being stopped."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, cast

from milecastle.engine.children import Child, Children
from milecastle.engine.effects import AwaitTasks, Effect
from milecastle.engine.plan import Ending


def closes_its_record() -> Generator[Effect, Any, Ending]:
    """A run that has one more effect when it is stopped."""
    try:
        yield AwaitTasks()
    except RuntimeError:
        yield AwaitTasks()
    raise AssertionError("it was asked to stop")


def test_a_run_that_is_closed_while_it_stops_its_children_asks_for_nothing_more() -> None:
    children = Children(cast("Any", None), cast("Any", None))
    for _ in range(2):
        effects = closes_its_record()
        next(effects)
        children._children.append(  # pyright: ignore[reportPrivateUsage] - as `begin` does
            Child(cast("Any", None), cast("Any", None), None, 1, effects)
        )
    stopping = children.stop(RuntimeError("stop"))
    next(stopping)
    stopping.close()
