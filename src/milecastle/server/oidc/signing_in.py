"""Logging in at the issuer: the authorization code flow, with PKCE.

Rules:

- The request that leads to the issuer leaves a signed cookie with its state, nonce, verifier and
  way back. Only the browser with that cookie can finish it, soon, and once: the code is worth
  nothing without the verifier, and the cookie is deleted.
- The way back is a path on this server. The issuer returns to the registered URL only.
- The ID token identifies the person; the issuer gives it to this server directly.
- Requests to the issuer are made on separate threads, few at a time.
"""

from __future__ import annotations

import hmac
from base64 import b64encode, urlsafe_b64encode
from hashlib import sha256
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from milecastle.server.identity import Identity
from milecastle.server.oidc.claims import identity_of
from milecastle.server.oidc.fetching import IssuerFailed, fetch
from milecastle.server.oidc.issuer import Issuer
from milecastle.server.oidc.keys import KnownIssuer
from milecastle.server.oidc.login_answer import UNFINISHED, LoginAnswer
from milecastle.server.oidc.verifying import read_header, verify
from milecastle.server.problems import NO_ISSUER, NOT_LOGGED_IN, Refused
from milecastle.server.tokens import new_secret
from milecastle.server.turns import ServerThreads
from milecastle.support.prepared import prepared

_AT_ONCE: Final = 4
_WAITING: Final = 16


@prepared
class Attempt(msgspec.Struct, frozen=True):
    state: str
    nonce: str
    verifier: str
    next: str
    until: int


class Begun(msgspec.Struct, frozen=True):
    url: str
    cookie: str


class LoggedIn(msgspec.Struct, frozen=True):
    identity: Identity
    next: str


@prepared
class _Grant(msgspec.Struct, frozen=True):
    id_token: str


class SigningIn:
    def __init__(self, issuer: Issuer) -> None:
        self._issuer = issuer
        self.settings = issuer.settings
        self._threads = ServerThreads(2 * _AT_ONCE, "milecastle-oidc")
        self._open = 0

    async def begin(self, next: str) -> Begun:
        """A login that returns to ``next``, which must be a path on this server."""
        known = await self._issuer.known()
        if not known.metadata.authorization_endpoint or not known.metadata.token_endpoint:
            raise Refused(NO_ISSUER, 503, "the issuer has no authorization code flow")
        until = int(self._issuer.clock()) + UNFINISHED
        attempt = Attempt(new_secret(), new_secret(), new_secret() + new_secret(), next, until)
        challenge = urlsafe_b64encode(sha256(attempt.verifier.encode()).digest()).rstrip(b"=")
        query = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": self.settings.redirect_uri,
            "scope": "openid email profile",
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": challenge.decode(),
            "code_challenge_method": "S256",
        }
        place = known.metadata.authorization_endpoint
        url = f"{place}{'&' if '?' in place else '?'}{urlencode(query)}"
        return Begun(url, self._issuer.sign("login", attempt))

    async def finish(self, cookie: str, returned: LoginAnswer) -> LoggedIn:
        """The person who comes back from the issuer.

        Raises:
            Refused: this browser did not begin it, it took too long, or the issuer refused.
        """
        attempt = self._issuer.verified("login", cookie, Attempt)
        if attempt is None or attempt.until <= self._issuer.clock():
            raise _again("this browser did not begin to log in, or it was too long ago")
        if not hmac.compare_digest(attempt.state.encode(), returned.state.encode()):
            raise _again("the answer is to another login")
        known = await self._issuer.known()
        named = returned.iss
        if named is None and known.metadata.authorization_response_iss_parameter_supported:
            raise _again("the answer does not say of which issuer it is")
        if named is not None and named != known.metadata.issuer:
            raise _again("the answer is of another issuer")
        if returned.error or not returned.code:
            raise _again("the issuer did not let this person in")
        token = await self._exchange(known, returned.code, attempt.verifier)
        return LoggedIn(await self._person(token, known, attempt.nonce), attempt.next)

    async def _exchange(self, known: KnownIssuer, code: str, verifier: str) -> str:
        if self._open >= _WAITING:
            raise Refused(NO_ISSUER, 503, "too many people log in at once", {"Retry-After": "5"})
        self._open += 1
        try:
            return await self._threads.call(self._token, known, code, verifier)
        except IssuerFailed as error:
            raise _again(f"the issuer did not accept the login: {error}") from None
        finally:
            self._open -= 1

    def _token(self, known: KnownIssuer, code: str, verifier: str) -> str:
        settings, headers = self.settings, dict[str, str]()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": settings.redirect_uri,
            "code_verifier": verifier,
        }
        if "client_secret_basic" in known.metadata.token_endpoint_auth_methods_supported:
            pair = f"{quote(settings.client_id, '')}:{quote(settings.client_secret, '')}"
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": settings.client_id, "client_secret": settings.client_secret}
        return fetch(known.metadata.token_endpoint, _Grant, form=form, headers=headers).id_token

    async def _person(self, token: str, known: KnownIssuer, nonce: str) -> Identity:
        header = read_header(token)
        if known.find(header.key, header.algorithm) is None:
            known = await self._issuer.renewed()
        settings, now = self.settings, self._issuer.clock()
        return identity_of(verify(token, known, settings.client_id, now, nonce), settings)


def _again(why: str) -> Refused:
    return Refused(NOT_LOGGED_IN, 401, f"{why}: log in again")
