"""The issuer's metadata and keys: fetched on a separate thread, and cached.

Rules:

- A caller waits for them only if there are none, or if its token names an unknown key. Otherwise
  they are fetched again while the known ones are used.
- There is one fetch at a time, and a pause after it: tokens with made-up keys cause no more
  requests.
- If the issuer does not answer, its keys are used until they are ``OLDEST``: then its tokens are
  refused until it does.
- A key has its algorithms, by its type and curve. All are asymmetric, so a public key is never a
  secret, and an unsigned token is never valid.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock, Thread
from time import monotonic
from typing import Any, Final

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from milecastle.errors import InvalidRequest
from milecastle.server.oidc.fetching import PATIENCE, IssuerFailed, fetch
from milecastle.server.oidc.settings import refuse_insecure
from milecastle.support.prepared import prepared
from milecastle.support.printable import printable

_log = logging.getLogger("milecastle.server")

FRESH: Final = 300.0
OLDEST: Final = 3600.0
PAUSE: Final = 10.0
"""Seconds: after which keys are fetched again; after which they are not used; between fetches."""

_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "EdDSA"}
_PUBLIC: Final = ("kty", "crv", "n", "e", "x", "y")
_SIZES: Final = range(2048, 8193)


@prepared
class Metadata(msgspec.Struct, frozen=True):
    issuer: str
    jwks_uri: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False


@prepared
class _KeyDocument(msgspec.Struct, frozen=True):
    keys: tuple[dict[str, Any], ...]


class SigningKey(msgspec.Struct, frozen=True):
    id: str | None
    algorithms: tuple[str, ...]
    key: Any


class KnownIssuer(msgspec.Struct, frozen=True):
    metadata: Metadata
    keys: tuple[SigningKey, ...]
    fetched: float

    def find(self, id: str | None, algorithm: str) -> SigningKey | None:
        """The key a token names; a token may name none if there is only one that fits."""
        fitting = [one for one in self.keys if algorithm in one.algorithms]
        if id is not None:
            return next((one for one in fitting if one.id == id), None)
        return fitting[0] if len(fitting) == 1 else None


class IssuerKeys:
    def __init__(self, issuer: str, clock: Callable[[], float] = monotonic) -> None:
        self._issuer = issuer
        self._clock = clock
        self._lock = Lock()
        self._known: KnownIssuer | None = None
        self._fetching: Future[None] | None = None
        self._tried: float | None = None

    def current(self) -> KnownIssuer | None:
        """The known issuer, if it may be used; if it is not fresh, begin to fetch it."""
        known, now = self._known, self._clock()
        if known is None or now - known.fetched > FRESH:
            self._fetch()
        return known if known is not None and now - known.fetched <= OLDEST else None

    async def fetched(self) -> None:
        """Wait for the fetch in progress, or a new one if the last is long enough ago."""
        future = self._fetch()
        if future is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(2 * PATIENCE):
                    await asyncio.shield(asyncio.wrap_future(future))

    def _fetch(self) -> Future[None] | None:
        with self._lock:
            if self._fetching is not None:
                return self._fetching
            if self._tried is not None and self._clock() - self._tried < PAUSE:
                return None
            self._tried = self._clock()
            future = self._fetching = Future[None]()
        Thread(target=self._run, args=(future,), name="milecastle-oidc", daemon=True).start()
        return future

    def _run(self, future: Future[None]) -> None:
        began = self._clock()
        try:
            self._known = _fetched(self._issuer, began)
        except (IssuerFailed, InvalidRequest) as error:
            _log.error("the issuer %s: %s", printable(self._issuer), printable(str(error)))
        except Exception as error:
            _log.error("the issuer %s: %s", printable(self._issuer), type(error).__name__)
        with self._lock:
            self._fetching = None
        future.set_result(None)


def _fetched(issuer: str, began: float) -> KnownIssuer:
    place = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
    metadata = fetch(place, Metadata)
    if metadata.issuer != issuer:
        raise IssuerFailed("its discovery document is of another issuer")
    if metadata.authorization_endpoint:
        refuse_insecure(metadata.authorization_endpoint.partition("?")[0], "where people log in")
    found = fetch(metadata.jwks_uri, _KeyDocument).keys
    keys = tuple(key for key in map(_signing_key, found) if key is not None)
    if not keys:
        raise IssuerFailed("it has no key that we can use")
    return KnownIssuer(metadata, keys, began)


def _signing_key(given: Mapping[str, Any]) -> SigningKey | None:
    """A key that may sign tokens; others are for encryption, or of an unsupported kind."""
    id, kind, curve = given.get("kid"), given.get("kty"), given.get("crv")
    if given.get("use", "sig") != "sig" or not isinstance(id, str | None):
        return None
    algorithms: tuple[str, ...] = _RSA if kind == "RSA" else ()
    if kind in ("EC", "OKP") and isinstance(curve, str) and curve in _CURVES:
        algorithms = (_CURVES[curve],)
    only = given.get("alg")
    algorithms = tuple(one for one in algorithms if only in (None, one))
    if not algorithms:
        return None
    public = {name: given[name] for name in _PUBLIC if name in given}
    try:
        key: Any = jwt.PyJWK(public, algorithms[0]).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if isinstance(key, RSAPublicKey) and key.key_size not in _SIZES:
        return None
    return SigningKey(id, algorithms, key)
