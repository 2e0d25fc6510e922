"""Access: tokens with a tenant and scopes, browser sessions, Host and Origin.

Rules:

- A token is compared in constant time, with each known token, by its hash.
- The token file is looked at with each request: a removed token is refused from then on.
- A token is refused from the moment it expires, and so are its sessions. Only a request with the
  token or such a session reads that it has expired: to others it is unknown.
- A request never names a tenant: its token has one.
- A token is sent as ``Authorization: Bearer``, or as ``X-Api-Key``, which only some clients can.
- A scope includes no other: ``admin`` does not include ``run``.
- A browser exchanges a token for a session: the start URL's token, or one a person pastes. The
  session is a cookie scripts cannot read and other sites do not send. It is another secret: reading
  the cookie does not give the token. It is signed by its token, so every server with the same
  tokens knows it, and it ends with the token, or after ``SESSION`` seconds. After a logout this
  process refuses it; nothing is stored, so other processes, and later ones, still accept it.
- With an issuer, its tokens are known too (``oidc``). The session of a person who logged in there
  is signed by the client secret, and contains the identity.
- With ``identify``, a proxy says who calls. A header a request has twice is not shown to it: the
  caller may have added one.
- The name in ``Host`` must be known, so a page cannot reach this server under a name it controls
  (DNS rebinding). An address needs no name, and so is always accepted.
- A request with an ``Origin`` comes from a page on this very server. There is no CORS.
- A session is accepted from another origin's page (``Sec-Fetch-Site``) only for a link a person
  follows: a GET the browser shows as a page.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec
import msgspec.structs
from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from milecastle.model.keys import refuse_reserved
from milecastle.server.identity import Identity
from milecastle.server.problems import EXPIRED, FOREIGN, UNAUTHORIZED, Refused
from milecastle.server.tokens import Token, TokenFile, new_secret, refuse_weak

if TYPE_CHECKING:
    from milecastle.server.oidc.issuer import Issuer, PersonSession
    from milecastle.server.oidc.signing_in import SigningIn

_LINK: Final = ("navigate", "document")
"""Mode and destination of a request for a page of its own, as browsers say it."""

SESSION: Final = 7 * 24 * 3600
"""For how many seconds a session lasts."""

INVALID: Final = {"WWW-Authenticate": 'Bearer error="invalid_token"'}

_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]/@\s]+)(?::(\d{1,5}))?")


Identify = Callable[[Mapping[str, str]], Identity | None]
"""The hook for a proxy that knows the callers."""


class Access:
    """Recognizes a server's callers.

    ``start`` is the start URL's token, if there is one; its identity may do everything. The tokens
    now in ``file`` are known too.

    Raises:
        InvalidRequest: a token is too short, or not ASCII. So an empty one is never known.
    """

    def __init__(
        self,
        tokens: Iterable[tuple[str, Identity]],
        start: tuple[str, Identity] | None = None,
        *,
        file: TokenFile | None = None,
        identify: Identify | None = None,
        issuer: Issuer | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._by_proxy = identify
        known = [Token(*one) for one in (*tokens, *([start] if start else []))]
        for token in known:
            refuse_weak(token.text, "a token of the server")
        self._given = _hashed(known)
        self._file = file
        self._of_file = [] if file is None else _hashed(file.tokens)
        self._start = None if start is None else _hash(start[0])
        self._issuer = issuer
        self.signing_in: SigningIn | None = None
        if issuer is not None and issuer.settings.has_pages:
            from milecastle.server.oidc.signing_in import SigningIn

            self.signing_in = SigningIn(issuer)
        self._clock = clock
        self._ended: dict[str, int] = {}

    async def get_ready(self, headers: Headers) -> None:
        """Fetch the issuer's keys if ``identify`` needs them."""
        given = credential(headers)
        if self._issuer is not None and given.is_token:
            await self._issuer.get_ready(given.text)

    def identify(self, headers: Headers) -> Identity:
        """The caller, as the proxy says, or by its bearer token or its cookie.

        Raises:
            Refused: the caller is unknown.
        """
        if self._by_proxy is not None:
            known = self._by_proxy(_single(headers))
            if known is not None:
                refuse_reserved(known.tenant)
                return known
        given = credential(headers)
        identity = self._of_token(given.text) if given.is_token else self._of_session(given.text)
        if identity is None:
            raise Refused(
                UNAUTHORIZED,
                401,
                "send a token, as in Authorization: Bearer TOKEN",
                {"WWW-Authenticate": "Bearer"},
            )
        return identity

    def caller(self, headers: Headers, identity: Identity) -> str:
        """An identified caller's token name; it is not a secret."""
        given = credential(headers)
        for known in self._tokens if given.text else ():
            claim, _, signature = given.text.rpartition(".")
            shown = known.key if given.is_token else _signature(known.key, claim).encode()
            proof = _hash(given.text) if given.is_token else signature.encode("utf-8", "replace")
            if hmac.compare_digest(shown, proof):
                return known.key.hex()
        if self._issuer is not None and given.text:
            return f"oidc {_hash(f'{identity.tenant}{chr(0)}{identity.name}').hex()}"
        return f"tenant {identity.tenant}"

    def may_start(self, token: str) -> bool:
        return self._start is not None and hmac.compare_digest(self._start, _hash(token))

    def open_session(self, token: str) -> str:
        if self._of_token(token) is None:
            raise Refused(UNAUTHORIZED, 401, "this server does not know the token")
        claim = f"{int(self._clock()) + SESSION}.{new_secret()}"
        return f"{claim}.{_signature(_hash(token), claim)}"

    def session_of(self, identity: Identity) -> str:
        if self._issuer is None:
            raise Refused(UNAUTHORIZED, 401, "this server has no issuer")
        return self._issuer.open_session(identity)

    def end_session(self, headers: Headers) -> None:
        given = credential(headers)
        if given.is_token:
            return
        now, claim = self._clock(), given.text.rpartition(".")[0]
        if (person := self._person(given.text)) is not None:
            until = person.until
        elif self._signer_of(given.text) is not None:
            until = _end_of(claim)
        else:
            return
        self._ended = {ended: until for ended, until in self._ended.items() if until > now}
        self._ended[claim] = until

    @property
    def _tokens(self) -> list[_Known]:
        if self._file is not None and self._file.has_changed():
            self._of_file = _hashed(self._file.tokens)
        return self._given + self._of_file

    def _of_token(self, token: str) -> Identity | None:
        given, found = _hash(token), None
        for known in self._tokens:
            if hmac.compare_digest(known.key, given):
                found = known
        if found is None:
            return None if self._issuer is None else self._issuer.of_token(token)
        return self._unexpired(found)

    def _person(self, session: str) -> PersonSession | None:
        claim = session.rpartition(".")[0]
        if self._issuer is None or claim in self._ended:
            return None
        return self._issuer.of_session(session)

    def _of_session(self, session: str) -> Identity | None:
        if (person := self._person(session)) is not None:
            return person.identity
        found = self._signer_of(session)
        return None if found is None else self._unexpired(found)

    def _signer_of(self, session: str) -> _Known | None:
        claim, _, signature = session.rpartition(".")
        found = None
        for known in self._tokens:
            if hmac.compare_digest(_hash(_signature(known.key, claim)), _hash(signature)):
                found = known
        is_over = found is None or claim in self._ended or _end_of(claim) <= self._clock()
        return None if is_over else found

    def _unexpired(self, known: _Known) -> Identity:
        if known.expires is not None and known.expires.timestamp() <= self._clock():
            when = known.expires.isoformat(sep=" ", timespec="seconds")
            why = f"the token '{known.identity.name}' expired at {when}: get a new one"
            raise Refused(EXPIRED, 401, why, INVALID)
        return known.identity


class _Known(msgspec.Struct, frozen=True):
    key: bytes
    identity: Identity
    expires: datetime | None


def _hashed(tokens: Iterable[Token]) -> list[_Known]:
    hashed = ((one, _hash(one.text)) for one in tokens)
    return [_Known(key, _named(one.identity, key), one.expires) for one, key in hashed]


def _named(identity: Identity, key: bytes) -> Identity:
    """A token's identity; without a name, it gets a digest of the key that signs its sessions."""
    name = identity.name or f"token:{sha256(key).hexdigest()[:12]}"
    return msgspec.structs.replace(identity, name=name)


class Credential(msgspec.Struct, frozen=True):
    text: str
    is_token: bool


def credential(headers: Headers) -> Credential:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return Credential(token.strip(), is_token=True)
    if (key := headers.get("x-api-key")) is not None:
        return Credential(key, is_token=True)
    cookies = cookie_parser(headers.get("cookie", ""))
    return Credential(cookies.get(cookie_name(headers.get("host", "")), ""), is_token=False)


def _end_of(claim: str) -> int:
    return int(claim.partition(".")[0])


def _signature(key: bytes, claim: str) -> str:
    return hmac.new(key, f"session {claim}".encode("utf-8", "replace"), sha256).hexdigest()


def _single(headers: Headers) -> dict[str, str]:
    return {name: headers[name] for name in headers if len(headers.getlist(name)) == 1}


def _hash(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogateescape")).digest()


def cookie_name(host: str) -> str:
    found = _HOST.fullmatch(host)
    return f"milecastle-{(found[2] if found else None) or 80}"


def normal_name(host: str) -> str:
    return host.lower().rstrip(".")


def refuse_foreign(headers: Headers, names: Collection[str], method: str = "GET") -> None:
    """Refuse a request under a foreign name, or from a foreign page.

    ``names`` are normal ones.

    Raises:
        Refused: it is one.
    """
    host = headers.get("host", "")
    found = _HOST.fullmatch(host)
    if found is None or not (_is_address(found[1]) or normal_name(found[1]) in names):
        raise Refused(FOREIGN, 403, "this server is not known under the name in Host")
    origin = headers.get("origin")
    own = (f"http://{host}".lower(), f"https://{host}".lower())
    if origin is not None and origin.lower() not in own:
        raise Refused(FOREIGN, 403, "requests from pages of another origin are not accepted")
    shown = credential(headers)
    has_session = bool(shown.text) and not shown.is_token
    if has_session and headers.get("sec-fetch-site") in ("same-site", "cross-site"):
        is_link = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == _LINK
        if method != "GET" or not is_link:
            raise Refused(FOREIGN, 403, "pages of another origin may only link to this server")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
