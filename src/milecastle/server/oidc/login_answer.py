"""Parameters with which an issuer sends a browser back, and the times of a login."""

from __future__ import annotations

from typing import Final

import msgspec

UNFINISHED: Final = 600
PERSON_SESSION: Final = 8 * 3600
"""For how many seconds a person may take to log in at the issuer, and stays logged in."""


class LoginAnswer(msgspec.Struct, frozen=True):
    state: str = ""
    code: str = ""
    error: str = ""
    iss: str | None = None
