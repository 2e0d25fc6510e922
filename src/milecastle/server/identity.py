from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

TokenScope = Literal["read", "run", "answer", "admin"]
ALL_SCOPES: Final[frozenset[TokenScope]] = frozenset(get_args(TokenScope))


class Identity(msgspec.Struct, frozen=True):
    """A server's caller: its tenant, and its scopes there.

    A token has one, and so has a request for which the hook ``identify`` returns it. ``name`` is
    stored with the caller's answers.
    """

    tenant: str
    scopes: frozenset[TokenScope]
    name: str = ""
