"""Settings from the command line; the client secret is read from a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from milecastle.errors import InvalidRequest
from milecastle.server.oidc.settings import Oidc
from milecastle.server.tokens import refuse_readable

_FIELDS = {
    "oidc_audience": "audience",
    "oidc_client": "client_id",
    "oidc_url": "url",
    "oidc_tenant": "tenant",
    "oidc_scopes": "scopes",
    "oidc_name": "name",
    "oidc_prefix": "prefix",
}


def oidc_settings(issuer: str, options: Mapping[str, str | None]) -> Oidc:
    given = {_FIELDS[name]: value for name, value in options.items() if name in _FIELDS and value}
    secret = options.get("oidc_secret")
    return Oidc(issuer=issuer, client_secret=read_secret(secret) if secret else "", **given)


def read_secret(path: str | os.PathLike[str]) -> str:
    """Read a secret from its own file.

    Raises:
        InvalidRequest: it cannot be read, or others may read it.
    """
    place = Path(path)
    try:
        with place.open(encoding="ascii") as file:
            opened = os.fstat(file.fileno())
            found = file.read().strip()
    except OSError as error:
        why = error.strerror
        raise InvalidRequest(f"the client secret in {place} cannot be read: {why}") from None
    except UnicodeDecodeError:
        raise InvalidRequest(f"the client secret in {place} is not ASCII") from None
    refuse_readable(opened, f"the client secret in {place}", place)
    return found
