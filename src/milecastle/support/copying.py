from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


def copied(kind: type[T], source: object, **given: Any) -> T:
    for name in _others(kind, *given):
        given[name] = getattr(source, name)
    return kind(**given)


@lru_cache(maxsize=64)
def _others(kind: type[msgspec.Struct], *given: str) -> tuple[str, ...]:
    return tuple(name for name in kind.__struct_fields__ if name not in given)
