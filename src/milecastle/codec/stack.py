"""A call on an empty stack.

Nested values are written and read by nested calls. How much of the interpreter's stack the
caller has used must not decide whether a value can be stored, so what does not fit on the
caller's stack is tried once more on a fresh one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

__all__ = ["on_fresh_stack"]

T = TypeVar("T")


def on_fresh_stack(call: Callable[[], T]) -> T:
    """Return what ``call`` returns, or raise what it raises, from a thread of its own."""
    from threading import Thread

    results: list[T] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = Thread(target=target, name="milecastle-codec", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
