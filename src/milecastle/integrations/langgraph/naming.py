"""Which log a configuration of LangGraph addresses.

A thread has the name that LangGraph gives it. The namespaces of its subgraphs are named as the
subgraphs of our own threads are, so that listing, deleting and retention treat them alike.
"""

from __future__ import annotations

from typing import Any, Final

from langchain_core.runnables import RunnableConfig

from milecastle.app.runtime.children import child_key, refuse_mark, root_of
from milecastle.errors import InvalidRequest
from milecastle.model.keys import ThreadKey

_PLACE: Final = "langgraph"


def key_of(tenant: str, thread: object, namespace: str = "") -> ThreadKey:
    """The log of a namespace of a thread."""
    refuse_mark(str(thread))
    root = ThreadKey(tenant, str(thread))
    return child_key(root, _PLACE, namespace) if namespace else root


def namespace_of(key: ThreadKey) -> str:
    """The namespace of a log."""
    root = root_of(key)
    if root is key:
        return ""
    return key.thread.removeprefix(child_key(root, _PLACE, "").thread)


def config_of(key: ThreadKey, checkpoint: str) -> RunnableConfig:
    """What addresses a checkpoint of a log."""
    return {
        "configurable": {
            "thread_id": root_of(key).thread,
            "checkpoint_ns": namespace_of(key),
            "checkpoint_id": checkpoint,
        }
    }


def configurable(config: RunnableConfig) -> dict[str, Any]:
    """The part of a configuration that addresses a checkpoint; it must name a thread."""
    found: dict[str, Any] = config.get("configurable", {})
    if "thread_id" not in found:
        raise InvalidRequest("the configuration names no thread: give configurable.thread_id")
    return found
