"""The msgpack extension codes of the format.

A code never gets a new meaning: stored bytes live for years. Plain data has no code: it is written
as msgpack's own types.
"""

from __future__ import annotations

from typing import Final

# Scalars.
INT: Final = 1
STR: Final = 2
BYTEARRAY: Final = 3
COMPLEX: Final = 4
DATETIME: Final = 5
DATE: Final = 6
TIME: Final = 7
TIMEDELTA: Final = 8
UUID: Final = 9
DECIMAL: Final = 10
UNSET: Final = 11

# Containers: the body is a msgpack array of the items (of keys and values in turn for PAIRS).
TUPLE: Final = 20
SET: Final = 21
FROZENSET: Final = 22
PAIRS: Final = 23

# Objects: the body is a msgpack array that starts with the type's name.
RECORD: Final = 30
MODEL: Final = 31
MEMBER: Final = 32
ADAPTED: Final = 33

NESTING: Final = frozenset({TUPLE, SET, FROZENSET, PAIRS, RECORD, MODEL, MEMBER, ADAPTED})
"""The codes whose body is msgpack again."""

# NumPy.
ARRAY: Final = 40
ARRAY_SCALAR: Final = 41
