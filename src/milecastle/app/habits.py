"""Habits from LangGraph that have another name here: each fails with what to write instead."""

from __future__ import annotations

from typing import Any, NoReturn

from milecastle.errors import InvalidRequest
from milecastle.model.keys import ThreadKey

__all__ = ["refuse_attribute", "refuse_checkpointer", "refuse_thread"]

_INSTEAD = {
    "get_state": "app.state(thread)",
    "aget_state": "await app.astate(thread)",
    "get_state_history": "app.history(thread)",
    "aget_state_history": "app.ahistory(thread)",
    "get_graph": "app.draw('mermaid'), app.draw('svg') or app.draw('text')",
    "with_config": "options= and config= of invoke()",
    "checkpointer": "app.store",
}


def refuse_attribute(name: str) -> NoReturn:
    """An attribute that an app does not have; if it is a known habit, say its name here."""
    if name in _INSTEAD:
        raise AttributeError(f"App has no '{name}': write {_INSTEAD[name]}")
    raise AttributeError(f"App has no attribute '{name}'")


def refuse_thread(given: Any) -> ThreadKey:
    """Something that is not a thread, such as a configurable dict."""
    if isinstance(given, dict):
        raise InvalidRequest(
            "the thread is given by name: write thread='my-thread' instead of "
            "{'configurable': {'thread_id': 'my-thread'}}"
        )
    raise InvalidRequest(f"a thread is a str or a ThreadKey, not {type(given).__name__}")


def refuse_checkpointer(given: Any) -> None:
    """``compile(checkpointer=...)``."""
    if given is not None:
        raise InvalidRequest(
            "a graph is saved in a store: write compile(store='memory://') instead of "
            "compile(checkpointer=...)"
        )
