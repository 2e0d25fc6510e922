"""Calling a node: the task that the code is part of is known to it while it runs."""

from __future__ import annotations

from typing import Any

from milecastle.engine.asking import current_task
from milecastle.engine.effects import RunTask

__all__ = ["call_task"]


def call_task(task: RunTask) -> Any:
    """Call the node's function; an async one gives its coroutine."""
    current_task.set(task)
    node = task.node
    if node.positional:
        return node.function(task.state)
    return node.call(task.state, task.config, task.context)
