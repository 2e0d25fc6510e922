from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from milecastle.errors import InvalidRequest
from milecastle.server.addresses import is_loopback
from milecastle.server.tokens import refuse_weak


class Oidc(msgspec.Struct, frozen=True, kw_only=True):
    """Sign-in by an OpenID Connect issuer: ``asgi(app, oidc=Oidc(issuer=..., audience=...))``.

    ``audience`` is this API's name at the issuer; bearer tokens for another one are refused. With
    ``client_id``, ``client_secret`` and ``url``, under which browsers reach this server, people log
    in to the pages at the issuer, which redirects them to ``url`` + ``/login/oidc/callback``.

    ``tenant``, ``scopes`` and ``name`` are claim names. Scopes count if they begin with ``prefix``,
    as ``milecastle:read``. The name is stored with answers as ``oidc:NAME``.

    Raises:
        InvalidRequest: neither bearer tokens nor pages can work with these, or not safely.
    """

    issuer: str
    audience: str = ""
    client_id: str = ""
    client_secret: str = ""
    url: str = ""
    tenant: str = "tenant"
    scopes: str = "scope"
    name: str = "sub"
    prefix: str = "milecastle:"

    def __post_init__(self) -> None:
        refuse_insecure(self.issuer, "the issuer")
        pages = (self.client_id, self.client_secret, self.url)
        if any(pages) and not all(pages):
            raise InvalidRequest("people log in with a client id, a client secret and a url: all")
        if not self.audience and not self.client_id:
            raise InvalidRequest("the issuer's tokens need an audience, or a client id for pages")
        if self.client_secret:
            refuse_weak(self.client_secret, "the client secret, which signs sessions,")
            refuse_insecure(self.url, "the url of this server")

    def __repr__(self) -> str:
        return f"Oidc(issuer={self.issuer!r})"

    @property
    def has_pages(self) -> bool:
        """True if people log in to the pages."""
        return bool(self.client_id)

    @property
    def is_secure(self) -> bool:
        """True if browsers use https."""
        return self.url.startswith("https:")

    @property
    def host(self) -> str:
        """The name under which browsers reach this server."""
        return urlsplit(self.url).hostname or ""

    @property
    def issuer_host(self) -> str:
        """The issuer's host and port, as people read them."""
        return urlsplit(self.issuer).netloc

    @property
    def redirect_uri(self) -> str:
        """The URL to which the issuer returns: to be registered there."""
        return f"{self.url.rstrip('/')}/login/oidc/callback"


def refuse_insecure(url: str, what: str) -> None:
    """Refuse a URL that others can read or change on the way.

    Raises:
        InvalidRequest: it is neither https nor, on this machine, http; or it has a query.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise InvalidRequest(f"{what} is not a URL") from None
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))
    is_plain = url.isascii() and url.isprintable() and " " not in url and "@" not in parts.netloc
    if not host or not is_safe or not is_plain or "?" in url or "#" in url:
        raise InvalidRequest(
            f"{what} must be an https:// URL without a query; http:// only on this machine"
        )
