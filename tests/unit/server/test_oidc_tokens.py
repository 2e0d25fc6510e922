"""Bearer tokens of an OpenID Connect issuer, honest and hostile."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from starlette.datastructures import Headers

from milecastle.server.access import Access
from milecastle.server.identity import Identity
from milecastle.server.oidc.issuer import Issuer
from milecastle.server.oidc.settings import Oidc
from milecastle.server.problems import Refused
from tests import oidc_issuer
from tests.oidc_issuer import AUDIENCE, CLIENT, SECRET, ec_key, ed_key, public_jwk, rsa_key


@pytest.fixture(scope="module")
def local() -> Iterator[oidc_issuer.Issuer]:
    with oidc_issuer.running() as found:
        found.keys = [
            public_jwk(ec_key(), "first", use="sig"),
            public_jwk(rsa_key(), "rsa", alg="RS256"),
            public_jwk(ed_key(), "ed"),
            public_jwk(ec_key(1), "sealed", use="enc"),
            public_jwk(rsa_key(2, 1024), "short"),
            {"kty": "oct", "kid": "shared", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0"},
            {"kty": "RSA", "kid": "broken", "n": "!", "e": 7},
            {"kty": "EC", "kid": "first", "crv": "secp256k1", "x": "AA", "y": "AA"},
        ]
        yield found


@pytest.fixture(scope="module")
def access(local: oidc_issuer.Issuer) -> Access:
    """Knows the issuer's keys already."""
    settings = Oidc(
        issuer=local.url,
        audience=AUDIENCE,
        client_id=CLIENT,
        client_secret=SECRET,
        url="http://127.0.0.1:8321",
    )
    issuer = Issuer(settings)
    asyncio.run(issuer.known())
    return Access((), issuer=issuer)


def bearer(token: str) -> Headers:
    return Headers(raw=[(b"authorization", b"Bearer " + token.encode("utf-8", "surrogateescape"))])


def test_token_gives_tenant_scopes_and_name(access: Access, local: oidc_issuer.Issuer) -> None:
    expected = Identity("default", frozenset({"read", "answer"}), "oidc:ann")
    assert access.identify(bearer(local.token())) == expected


@pytest.mark.parametrize(
    ("key", "algorithm", "kid"),
    [
        (ec_key, "ES256", "first"),
        (rsa_key, "RS256", "rsa"),
        (ed_key, "EdDSA", "ed"),
        (ed_key, "EdDSA", None),  # only one key fits
    ],
)
def test_tokens_of_every_key_are_known(
    access: Access, local: oidc_issuer.Issuer, key: Callable[[], Any], algorithm: str, kid: str
) -> None:
    token = local.sign(local.claims(), key(), algorithm, kid)
    assert access.identify(bearer(token)).name == "oidc:ann"


def encoded(value: Any) -> str:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return urlsafe_b64encode(body).rstrip(b"=").decode()


def decoded(text: str) -> bytes:
    return urlsafe_b64decode(f"{text}==")


def pem(key: Any) -> bytes:
    found: bytes = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return found


def hmac_token(claims: dict[str, Any], secret: bytes, **header: Any) -> str:
    """A token signed by what is public, as if it were a secret; libraries refuse to make it."""
    import hmac

    text = f"{encoded({'alg': 'HS256', 'typ': 'JWT', **header})}.{encoded(claims)}"
    return f"{text}.{encoded(hmac.new(secret, text.encode(), 'sha256').digest())}"


def payload_changed(token: str) -> str:
    head, body, signature = token.split(".")
    claims = json.loads(decoded(body))
    return f"{head}.{encoded({**claims, 'tenant': 'rival'})}.{signature}"


Make = Callable[[oidc_issuer.Issuer], str]

HOSTILE: dict[str, Make] = {
    "unsigned": lambda i: f"{encoded({'alg': 'none'})}.{encoded(i.claims())}.",
    "unsigned, capitals": lambda i: f"{encoded({'alg': 'NonE'})}.{encoded(i.claims())}.",
    "no algorithm": lambda i: f"{encoded({'typ': 'JWT'})}.{encoded(i.claims())}.AAAA",
    "algorithm of another type": lambda i: f"{encoded({'alg': ['ES256']})}.{encoded({})}.AAAA",
    "public key as a secret": lambda i: hmac_token(i.claims(), pem(rsa_key()), kid="rsa"),
    "shared secret": lambda i: hmac_token(i.claims(), b"secret-secret-secret-secret", kid="shared"),
    "payload changed": lambda i: payload_changed(i.token()),
    "signature cut": lambda i: i.token()[:-8],
    "signature gone": lambda i: i.token().rpartition(".")[0] + ".",
    "another key, our id": lambda i: i.sign(i.claims(), ec_key(7)),
    "unknown key": lambda i: i.sign(i.claims(), ec_key(7), kid="other"),
    "no id, several keys": lambda i: i.sign(i.claims(), rsa_key(7), "RS512", None),
    "key for encryption": lambda i: i.sign(i.claims(), ec_key(1), kid="sealed"),
    "key too short": lambda i: i.sign(i.claims(), rsa_key(2, 1024), "RS256", "short"),
    "algorithm that the key is not for": lambda i: i.sign(i.claims(), rsa_key(), "PS256", "rsa"),
    "key in the token": lambda i: i.sign(
        i.claims(), ec_key(7), jwk=public_jwk(ec_key(7), "first"), jku="http://evil.example/keys"
    ),
    "extension": lambda i: i.sign(i.claims(), crit=["x"], x=1),
    "id that is a path": lambda i: i.sign(i.claims(), ec_key(7), kid="../../../dev/null"),
    "another kind": lambda i: i.sign(i.claims(), typ="logout+jwt"),
    "another issuer": lambda i: i.token(iss="https://evil.example"),
    "issuer with a slash": lambda i: i.token(iss=f"{i.url}/"),
    "issuers": lambda i: i.sign({**i.claims(), "iss": 7}),
    "no issuer": lambda i: i.token(iss=None),
    "another audience": lambda i: i.token(aud="https://other.example"),
    "audience of the pages": lambda i: i.token(aud=CLIENT),
    "part of the audience": lambda i: i.token(aud=AUDIENCE[:-1]),
    "audience in a text": lambda i: i.token(aud=f"{AUDIENCE} other"),
    "no audience": lambda i: i.token(aud=None),
    "expired": lambda i: i.token(exp=int(time.time()) - 60),
    "never expires": lambda i: i.token(exp=None),
    "expires in words": lambda i: i.token(exp=str(int(time.time()) + 600)),
    "expires: true": lambda i: i.sign({**i.claims(), "exp": True}),
    "not yet": lambda i: i.token(nbf=int(time.time()) + 600),
    "issued tomorrow": lambda i: i.token(iat=int(time.time()) + 86_400),
    "no tenant": lambda i: i.token(tenant=None),
    "empty tenant": lambda i: i.token(tenant=""),
    "tenant that is a list": lambda i: i.token(tenant=["default"]),
    "tenant that is ours": lambda i: i.token(tenant="milecastle.keys"),
    "tenant with NUL": lambda i: i.token(tenant="a\0b"),
    "long tenant": lambda i: i.token(tenant="x" * 2000),
    "no name": lambda i: i.token(sub=None),
    "name that is a number": lambda i: i.sign({**i.claims(sub=None), "sub": 7}, typ="JWT"),
    "long name": lambda i: i.token(sub="x" * 1000),
    "not JSON": lambda i: f"{encoded(b'ey')}.{encoded(b'{')}.AAAA",
    "deep": lambda i: f"{encoded(b'[' * 3000)}.{encoded(b'{}')}.AAAA",
    "claims are a list": lambda i: jwt.PyJWS().encode(
        b"[]", ec_key(), "ES256", headers={"kid": "first"}
    ),
    "claims are deep": lambda i: jwt.PyJWS().encode(
        b"[" * 3000, ec_key(), "ES256", headers={"kid": "first"}
    ),
    "empty parts": lambda i: "ey..",
    "encrypted": lambda i: "eyJhbGciOiJSU0EtT0FFUCJ9.a.b.c.d",
    "not ASCII": lambda i: f"ey\udcff.{encoded(i.claims())}.x",
}


@pytest.mark.parametrize("how", HOSTILE)
def test_hostile_token_is_refused(access: Access, local: oidc_issuer.Issuer, how: str) -> None:
    """Each fails without the check that it is named after; see the control below.

    Tried, each seen to fail: algorithms not pinned to the key; ``use``, the size of a key and
    ``crit`` not looked at; aud compared by its beginning; exp, nbf, iat not looked at.
    """
    with pytest.raises(Refused) as raised:
        access.identify(bearer(HOSTILE[how](local)))
    assert raised.value.status in (401, 403)
    assert raised.value.problem.code in ("MC601", "MC602", "MC608")
    for secret in (local.token().split(".")[1], "rival", "evil", "2000"):
        assert secret not in raised.value.detail


def test_tokens_made_in_the_same_way_are_known(access: Access, local: oidc_issuer.Issuer) -> None:
    """The control: what the hostile ones differ in is why they are refused."""
    fine = [
        payload_unchanged(local.token()),
        local.sign(local.claims(), typ="at+jwt"),
        local.token(aud=["https://other.example", AUDIENCE]),
        local.token(exp=int(time.time()) - 10),  # within the leeway
        local.token(nbf=int(time.time()) + 10),
        local.token(exp=time.time() + 600.5),
        local.token(iat=None),
        local.token(tenant="x" * 200),
    ]
    for token in fine:
        assert access.identify(bearer(token)).name == "oidc:ann"


def payload_unchanged(token: str) -> str:
    head, body, signature = token.split(".")
    return f"{head}.{encoded(decoded(body))}.{signature}"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("milecastle:read milecastle:run", {"read", "run"}),
        (["milecastle:admin", "other:read", 7, None], {"admin"}),
        ("read run answer admin", set[str]()),
        ("milecastle:fly xmilecastle:read milecastle:READ", set[str]()),
        (7, set[str]()),
        (None, set[str]()),
        ({"milecastle:read": True}, set[str]()),
    ],
)
def test_only_scopes_for_this_server_count(
    access: Access, local: oidc_issuer.Issuer, given: Any, expected: set[str]
) -> None:
    """Fails if the prefix is not looked at: other services have a scope ``admin``, too."""
    assert access.identify(bearer(local.token(scope=given))).scopes == expected


def test_claims_have_the_names_that_are_set(local: oidc_issuer.Issuer) -> None:
    settings = Oidc(
        issuer=local.url,
        audience=AUDIENCE,
        tenant="https://acme.example/org",
        scopes="roles",
        name="email",
        prefix="",
    )
    issuer = Issuer(settings)
    asyncio.run(issuer.known())
    access = Access((), issuer=issuer)
    own = {"https://acme.example/org": "acme", "roles": ["run"], "email": "ann@acme.example"}
    token = local.sign({**local.claims(), **own, "email_verified": True})
    expected = Identity("acme", frozenset({"run"}), "oidc:ann@acme.example")
    assert access.identify(bearer(token)) == expected
    with pytest.raises(Refused, match="not verified"):
        access.identify(bearer(local.sign({**local.claims(), **own})))


def test_tokens_are_refused_without_an_audience(local: oidc_issuer.Issuer) -> None:
    """Fails if an ID token, which is for the pages, is taken for an access token."""
    settings = Oidc(
        issuer=local.url, client_id=CLIENT, client_secret=SECRET, url="http://127.0.0.1:1"
    )
    issuer = Issuer(settings)
    asyncio.run(issuer.known())
    for audience in ("", CLIENT, AUDIENCE):
        with pytest.raises(Refused, match="send a token"):
            Access((), issuer=issuer).identify(bearer(local.token(aud=audience)))


def test_callers_of_an_issuer_have_bounds_of_their_own(
    access: Access, local: oidc_issuer.Issuer
) -> None:
    """Fails if all share one: then one caller keeps out the others of its tenant."""
    found: set[str] = set()
    for more in ({}, {"sub": "bob"}, {"tenant": "acme"}):
        headers = bearer(local.token(**more))
        found.add(access.caller(headers, access.identify(headers)))
    assert len(found) == 3
