"""The log a LangGraph configuration addresses.

A thread has the name LangGraph gives it. Its subgraphs' namespaces are named as our own threads'
subgraphs are, so listing, deleting and retention treat them alike. A namespace grows with each
level; a long one is replaced by its digest, and is in the record.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

from langchain_core.runnables import RunnableConfig

from milecastle.app.threads.children import child_key, root_of
from milecastle.errors import InvalidRequest
from milecastle.model.keys import ThreadKey, refuse_own

_PLACE: Final = "langgraph"
_LONG: Final = 200
_NO_THREAD: Final = "the configuration names no thread: give configurable.thread_id"


def key_of(tenant: str, thread: object, namespace: str = "") -> ThreadKey:
    if thread is None:
        raise InvalidRequest(_NO_THREAD)
    refuse_own(str(thread))
    root = ThreadKey(tenant, str(thread))
    return child_key(root, _PLACE, digest_of(namespace) or namespace) if namespace else root


def digest_of(namespace: str) -> str:
    packed = namespace.encode(errors="surrogatepass")
    return f"#{sha256(packed).hexdigest()}" if len(packed) > _LONG else ""


def namespace_of(key: ThreadKey) -> str:
    root = root_of(key)
    if root is key:
        return ""
    return key.thread.removeprefix(child_key(root, _PLACE, "").thread)


def config_of(key: ThreadKey, checkpoint: str, namespace: str = "") -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": root_of(key).thread,
            "checkpoint_ns": namespace or namespace_of(key),
            "checkpoint_id": checkpoint,
        }
    }


def configurable(config: RunnableConfig) -> dict[str, Any]:
    found: dict[str, Any] = config.get("configurable", {})
    if "thread_id" not in found:
        raise InvalidRequest(_NO_THREAD)
    return found
