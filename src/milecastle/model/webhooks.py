"""Webhook signatures, by the rules of Standard Webhooks (symmetric, ``v1``).

A signature is HMAC-SHA256 over ``ID.TIMESTAMP.BODY``, the body as it is sent. Headers are
``webhook-id``, ``webhook-timestamp`` (seconds) and ``webhook-signature`` (``v1,BASE64``, several
parted by spaces). A secret is 24 to 64 bytes, as ``whsec_BASE64``.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final

from milecastle.errors import InvalidRequest

TOLERANCE: Final = 300
"""Seconds that the time of a signature may differ from now."""

_PREFIX: Final = "whsec_"
_SIGNATURES: Final = 20
"""How many signatures of a header are looked at."""


def read_secrets(text: str, what: str) -> list[bytes]:
    """The keys from one or more secrets, parted by spaces; an error quotes none."""
    try:
        keys = [b64decode(one.removeprefix(_PREFIX), validate=True) for one in text.split()]
    except ValueError:
        keys = []
    if not keys or not all(24 <= len(key) <= 64 for key in keys):
        raise InvalidRequest(
            f"the secret of {what} is to be 24 to 64 bytes in base64, with or without "
            f"'{_PREFIX}'; several are parted by spaces"
        )
    return keys


def sign(keys: Iterable[bytes], id: str, timestamp: int, body: bytes) -> str:
    """The ``webhook-signature`` header: one signature for each key."""
    return " ".join(f"v1,{_signature(key, id, timestamp, body)}" for key in keys)


def is_signed(
    keys: Sequence[bytes], id: str, timestamp: str, signatures: str, body: bytes, *, now: float
) -> bool:
    """True if a key made one of the signatures, at about this time.

    Every key is compared with every signature, each in constant time.
    """
    is_number = timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12
    if not id or not is_number or abs(now - int(timestamp)) > TOLERANCE:
        return False
    given = [
        one.removeprefix("v1,").encode("utf-8", "surrogatepass")
        for one in signatures.split(" ")[:_SIGNATURES]
        if one.startswith("v1,")
    ]
    wanted = [_signature(key, id, int(timestamp), body).encode() for key in keys]
    return sum(hmac.compare_digest(one, other) for one in given for other in wanted) > 0


def _signature(key: bytes, id: str, timestamp: int, body: bytes) -> str:
    signed = f"{id}.{timestamp}.".encode("utf-8", "surrogatepass") + body
    return b64encode(hmac.digest(key, signed, sha256)).decode()
