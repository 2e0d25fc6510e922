"""LangChain's messages, by a fixed table of classes.

A stored message is a name of the table and the fields set. No class is found by a path
that was stored, and nothing is imported: who has such messages has imported ``langchain_core``.
No validator is run on reading, and fields a newer version adds get their defaults.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, Final

from milecastle.codec.objects import AdaptedShape

_KINDS: Final = ("AI", "Chat", "Function", "Human", "System", "Tool")
_CLASSES: Final = {
    "langchain.Remove": "RemoveMessage",
    **{f"langchain.{kind}": f"{kind}Message" for kind in _KINDS},
    **{f"langchain.{kind}Chunk": f"{kind}MessageChunk" for kind in _KINDS},
}
_NAMES: Final = {cls: name for name, cls in _CLASSES.items()}


def message_named(name: str) -> AdaptedShape | None:
    module = sys.modules.get("langchain_core.messages")
    cls = getattr(module, _CLASSES[name], None) if name in _CLASSES else None
    if cls is None:
        return None
    return AdaptedShape(cls, name, _to_plain, partial(_from_plain, cls))


def message_shape(cls: type) -> AdaptedShape | None:
    shape = message_named(_NAMES.get(cls.__name__, ""))
    return shape if shape is not None and shape.cls is cls else None


def _to_plain(message: Any) -> dict[str, Any]:
    fields: dict[str, Any] = message.__class__.model_fields
    kept: dict[str, Any] = {}
    for name, field in fields.items():
        value = getattr(message, name)
        is_set = name in message.__pydantic_fields_set__
        if is_set or value != field.get_default(call_default_factory=True):
            kept[name] = value
    kept.update(message.__pydantic_extra__ or {})
    return kept


def _from_plain(cls: Any, kept: Any) -> Any:
    needed = {name for name, field in cls.model_fields.items() if field.is_required()}
    if not kept.keys() >= needed:
        raise ValueError("a required field is missing")
    return cls.model_construct(_fields_set=set(kept), **kept)
