from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from milecastle.errors import InvalidRequest
from milecastle.model.keys import check_name, refuse_reserved
from milecastle.server.identity import ALL_SCOPES, Identity, TokenScope
from milecastle.server.oidc.settings import Oidc
from milecastle.server.oidc.verifying import refusal
from milecastle.server.problems import FORBIDDEN, Refused

_LONGEST: Final = 200


def identity_of(claims: Mapping[str, Any], settings: Oidc) -> Identity:
    """The caller described by verified claims.

    Raises:
        Refused: they have no tenant or no name.
    """
    tenant, name = claims.get(settings.tenant), claims.get(settings.name)
    if not isinstance(tenant, str) or not tenant:
        raise _lacks(settings.tenant, "tenant")
    if not isinstance(name, str) or not name or len(name) > _LONGEST:
        raise _lacks(settings.name, "name")
    if settings.name == "email" and claims.get("email_verified") is not True:
        raise refusal("the issuer has not verified the email address, which is the name here")
    try:
        check_name("tenant", tenant)
        refuse_reserved(tenant)
    except InvalidRequest:
        raise _lacks(settings.tenant, "tenant") from None
    return Identity(tenant, _scopes(claims.get(settings.scopes), settings.prefix), f"oidc:{name}")


def _scopes(given: Any, prefix: str) -> frozenset[TokenScope]:
    words: Any = given.split(" ") if isinstance(given, str) else given
    found = [word for word in words if isinstance(word, str)] if _is_list(words) else []
    return frozenset(scope for scope in ALL_SCOPES if f"{prefix}{scope}" in found)


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _lacks(claim: str, what: str) -> Refused:
    why = f"the token is valid, but its claim '{claim}' is not the {what} of a caller here"
    return Refused(FORBIDDEN, 403, why)
