"""An issuer: recognizes its tokens, and the sessions of people who logged in there.

A session contains its identity, signed: servers with the same client secret know it, and nothing is
stored. It lasts for ``PERSON_SESSION`` seconds, whatever the issuer says until then.
"""

from __future__ import annotations

import binascii
import hmac
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from hashlib import sha256
from typing import Final, TypeVar

import msgspec

from milecastle.server.identity import Identity
from milecastle.server.oidc.claims import identity_of
from milecastle.server.oidc.keys import IssuerKeys, KnownIssuer
from milecastle.server.oidc.login_answer import PERSON_SESSION
from milecastle.server.oidc.settings import Oidc
from milecastle.server.oidc.verifying import read_header, verify
from milecastle.server.problems import NO_ISSUER, Refused
from milecastle.server.tokens import new_secret
from milecastle.support.prepared import prepared

T = TypeVar("T", bound=msgspec.Struct)

PREFIX: Final = "oidc."
"""With what the text of a session begins."""


@prepared
class PersonSession(msgspec.Struct, frozen=True):
    identity: Identity
    until: int
    id: str


class Issuer:
    def __init__(
        self,
        settings: Oidc,
        keys: IssuerKeys | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self._keys = keys or IssuerKeys(settings.issuer)
        secret, purpose = settings.client_secret.encode(), f"{settings.issuer} {settings.client_id}"
        self._key = hmac.new(secret, f"milecastle sessions {purpose}".encode(), sha256).digest()

    async def get_ready(self, token: str) -> None:
        """Fetch the issuer's keys if this token needs others than those known."""
        if not is_token(token) or not self.settings.audience:
            return
        header, known = read_header(token), self._keys.current()
        if known is None or known.find(header.key, header.algorithm) is None:
            await self._keys.fetched()

    async def known(self) -> KnownIssuer:
        """The issuer's metadata and keys.

        Raises:
            Refused: the issuer does not answer.
        """
        if self._keys.current() is None:
            await self._keys.fetched()
        return self._known()

    async def renewed(self) -> KnownIssuer:
        await self._keys.fetched()
        return self._known()

    def of_token(self, token: str) -> Identity | None:
        """The caller with this bearer token, if it has the form of one.

        Raises:
            Refused: the token is not valid, or the issuer's keys are not known.
        """
        if not is_token(token) or not self.settings.audience:
            return None
        read_header(token)
        claims = verify(token, self._known(), self.settings.audience, self.clock())
        return identity_of(claims, self.settings)

    def open_session(self, identity: Identity) -> str:
        session = PersonSession(identity, int(self.clock()) + PERSON_SESSION, new_secret())
        return PREFIX + self.sign("session", session)

    def of_session(self, text: str) -> PersonSession | None:
        found = self.verified("session", text.removeprefix(PREFIX), PersonSession)
        return None if found is None or found.until <= self.clock() else found

    def sign(self, purpose: str, value: msgspec.Struct) -> str:
        """A text that only this server, and others with its client secret, can make."""
        body = urlsafe_b64encode(msgspec.json.encode(value)).rstrip(b"=").decode()
        return f"{body}.{self._signature(purpose, body)}"

    def verified(self, purpose: str, text: str, shape: type[T]) -> T | None:
        body, _, signature = text.rpartition(".")
        given = signature.encode("utf-8", "replace")
        if not self.settings.has_pages:
            return None
        if not hmac.compare_digest(self._signature(purpose, body).encode(), given):
            return None
        try:
            return msgspec.json.decode(urlsafe_b64decode(f"{body}=="), type=shape)
        except (binascii.Error, msgspec.MsgspecError):
            return None

    def _signature(self, purpose: str, body: str) -> str:
        text = f"{purpose} {body}".encode("utf-8", "replace")
        return hmac.new(self._key, text, sha256).hexdigest()

    def _known(self) -> KnownIssuer:
        known = self._keys.current()
        if known is None:
            why = "the issuer of the token does not answer: try again"
            raise Refused(NO_ISSUER, 503, why, {"Retry-After": "10"})
        return known


def is_token(text: str) -> bool:
    return text.count(".") == 2 and text.startswith("ey")
