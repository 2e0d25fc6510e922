"""Limit keys, as ``customer=c7``: besides graph and tenant, limits count runs by them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, cast

from milecastle.errors import InvalidRequest
from milecastle.model.keys import check_name

LIMIT_KEY: Final = "limit.key"
"""Metadata of a run with a limit key; a run that continues its thread has it too."""

NO_KEY: Final = "~"
"""What threads without a key are stored and sorted under: behind every key."""

_MAX_VALUE_BYTES: Final = 256
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


def read_limit_key(keys: Mapping[str, str] | None) -> str | None:
    if keys is None:
        return None
    if not isinstance(cast("object", keys), Mapping):
        raise InvalidRequest("keys= takes a name and a value: keys={'customer': 'c7'}")
    if len(keys) > 1:
        raise InvalidRequest(
            f"a run has one limit key, and keys= has {len(keys)}: limit by the narrowest, or by "
            "both in one value, as keys={'customer-model': 'c7/gpt-5'}"
        )
    for name, value in keys.items():
        check_key_name(name)
        check_name(f"value of the limit key '{name}'", value, _MAX_VALUE_BYTES)
        return f"{name}={value}"
    return ""


def check_key_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            "the name of a limit key begins with a letter, and has at most 64 letters, digits, "
            "'_', '-' and '.'"
        )


def name_of(limit_key: str) -> str:
    return limit_key.partition("=")[0]
