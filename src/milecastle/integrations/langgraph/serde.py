"""Strict decoding: only classes LangGraph knows as safe, and those a caller allows.

LangGraph decides whether a class is allowed, and finds it. A class it has found once is
remembered, because it imports the module again for each object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

_PYDANTIC: Final = 5
"""The extension code of pydantic models: module, name, fields, method."""

Hook = Callable[[int, bytes], Any]


class StrictSerializer(JsonPlusSerializer):
    def __init__(self, allow: Sequence[type] = ()) -> None:
        names = [(one.__module__, one.__qualname__) for one in allow]
        super().__init__(allowed_msgpack_modules=names or None)
        self._unpack_ext_hook = _remembering(self._unpack_ext_hook)

    def _reviver(self, value: dict[str, Any]) -> Any:
        return value if value.get("lc") == 1 else super()._reviver(value)

    def with_msgpack_allowlist(
        self, extra_allowlist: Iterable[tuple[str, ...] | type]
    ) -> JsonPlusSerializer:
        found = super().with_msgpack_allowlist(extra_allowlist)
        if found is not self and isinstance(found, StrictSerializer):
            found._unpack_ext_hook = _remembering(found._unpack_ext_hook)
        return found


def is_msgpack(serde: object) -> bool:
    return type(serde) in (JsonPlusSerializer, StrictSerializer)


def _remembering(hook: Hook) -> Hook:
    known: dict[tuple[str, str], type] = {}

    def remembering(code: int, data: bytes) -> Any:
        if code != _PYDANTIC:
            return hook(code, data)
        try:
            module, name, fields, _ = ormsgpack.unpackb(
                data, ext_hook=remembering, option=ormsgpack.OPT_NON_STR_KEYS
            )
            found = known.get((module, name))
            if found is not None:
                return found(**fields)
        except Exception:  # LangGraph says what becomes of it
            return hook(code, data)
        made = hook(code, data)
        if (type(made).__module__, type(made).__qualname__) == (module, name):
            known[module, name] = type(made)
        return made

    return remembering
