"""The issuer's tokens: verified, and read as claims.

Rules:

- The header only chooses among the issuer's keys. A key in a token, or a place to get one from, is
  ignored, and an extension that must be understood is refused.
- A token is not believed, or quoted in a message, before its signature is verified.
- An ID token answers our own request: it has its nonce. Other kinds of signed statements, which say
  so in their header, are refused.
"""

from __future__ import annotations

import hmac
from typing import Any, Final

import jwt
import msgspec

from milecastle.server.oidc.keys import KnownIssuer, SigningKey
from milecastle.server.problems import EXPIRED, UNAUTHORIZED, Refused
from milecastle.support.prepared import prepared

LEEWAY: Final = 30
"""Seconds that the issuer's clock may be ahead of ours, or behind it."""

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"),
    "EdDSA",
)
_ACCESS: Final = ("jwt", "at+jwt", "application/at+jwt")
INVALID: Final = {"WWW-Authenticate": 'Bearer error="invalid_token"'}

_signatures = jwt.PyJWS(ALGORITHMS)


@prepared
class _Checked(msgspec.Struct, frozen=True):
    iss: str
    aud: str | tuple[str, ...]
    exp: int | float
    nbf: int | float | None = None
    iat: int | float | None = None
    nonce: str | None = None
    azp: str | None = None


class Header(msgspec.Struct, frozen=True):
    algorithm: str
    key: str | None
    type: str


def read_header(token: str) -> Header:
    """The unverified header.

    Raises:
        Refused: it is not one, or its token is not accepted however it is signed.
    """
    try:
        found: dict[str, Any] = _signatures.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise refusal("the token is not a signed JWT") from None
    algorithm, id, kind = found.get("alg"), found.get("kid"), found.get("typ", "JWT")
    if not isinstance(kind, str) or not isinstance(id, str | None):
        raise refusal("the token is not a signed JWT")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise refusal("the token is not signed by one of the issuer's algorithms")
    if "crit" in found or "b64" in found:
        raise refusal("the token has an extension that is not known here")
    return Header(algorithm, id, kind.lower())


def verify(
    token: str,
    issuer: KnownIssuer,
    audience: str,
    now: float,
    nonce: str | None = None,
) -> dict[str, Any]:
    """A token's claims for ``audience``; with ``nonce``, an ID token's.

    Raises:
        Refused: it is not valid.
    """
    header = read_header(token)
    if header.type not in (_ACCESS if nonce is None else _ACCESS[:1]):
        raise refusal("the token is of another kind")
    key = issuer.find(header.key, header.algorithm)
    if key is None:
        raise refusal("the token is signed by a key that the issuer does not have")
    payload = _payload(token, key, header.algorithm)
    try:
        checked = msgspec.json.decode(payload, type=_Checked)
        claims = msgspec.json.decode(payload, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise refusal("the token has no valid iss, aud or exp") from None
    _check(checked, issuer.metadata.issuer, audience, now)
    if nonce is not None:
        _check_answer(checked, audience, nonce)
    return claims


def _payload(token: str, key: SigningKey, algorithm: str) -> bytes:
    try:
        found: bytes = _signatures.decode(token, key.key, [algorithm])
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise refusal("the signature of the token is not valid") from None
    return found


def _check(claims: _Checked, issuer: str, audience: str, now: float) -> None:
    given = (claims.aud,) if isinstance(claims.aud, str) else claims.aud
    if claims.iss != issuer:
        raise refusal("the token is of another issuer")
    if audience not in given:
        raise refusal("the token is for another audience")
    if claims.exp + LEEWAY <= now:
        raise Refused(EXPIRED, 401, "the token has expired: get a new one", INVALID)
    for time in (claims.nbf, claims.iat):
        if time is not None and time - LEEWAY > now:
            raise refusal("the token is not valid yet")


def _check_answer(claims: _Checked, client: str, nonce: str) -> None:
    if not hmac.compare_digest((claims.nonce or "").encode(), nonce.encode()):
        raise refusal("the ID token does not answer this request")
    if claims.azp != client and (claims.azp is not None or not isinstance(claims.aud, str)):
        raise refusal("the ID token was issued to another client")


def refusal(why: str) -> Refused:
    return Refused(UNAUTHORIZED, 401, why, INVALID)
