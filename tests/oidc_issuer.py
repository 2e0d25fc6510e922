"""An OpenID Connect issuer on this machine: real HTTP, real keys, and every way to be hostile."""

from __future__ import annotations

import json
import secrets
import threading
import time
import warnings
from base64 import urlsafe_b64encode
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.warnings import InsecureKeyLengthWarning

AUDIENCE = "https://api.example"
CLIENT = "the-pages"
SECRET = "client-secret-of-at-least-32-characters"


@cache
def rsa_key(number: int = 0, bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, bits)


@cache
def ec_key(number: int = 0) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@cache
def ed_key(number: int = 0) -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.generate()


def public_jwk(key: Any, id: str | None, **more: Any) -> dict[str, Any]:
    """The public half of a key, as an issuer shows it."""
    public = key.public_key()
    if isinstance(key, rsa.RSAPrivateKey):
        found: dict[str, Any] = RSAAlgorithm.to_jwk(public, as_dict=True)
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        found = ECAlgorithm.to_jwk(public, as_dict=True)
    else:
        found = OKPAlgorithm.to_jwk(public, as_dict=True)
    found.pop("key_ops", None)
    return {**found, **({} if id is None else {"kid": id}), **more}


class Issuer:
    """Its keys, its documents, and the requests it got. Change them to make it hostile."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.keys: list[dict[str, Any]] = [public_jwk(ec_key(), "first")]
        self.requests: list[str] = []
        self.forms: list[dict[str, str]] = []
        self.metadata: dict[str, Any] = {
            "issuer": url,
            "jwks_uri": f"{url}/keys",
            "authorization_endpoint": f"{url}/authorize",
            "token_endpoint": f"{url}/token",
        }
        self.person: dict[str, Any] = {
            "sub": "ann",
            "tenant": "default",
            "scope": "openid milecastle:read milecastle:answer",
        }
        self.codes: dict[str, dict[str, str]] = {}
        self.id_token: Callable[[dict[str, Any]], str] = self.sign
        self.answers: dict[str, tuple[int, bytes, dict[str, str]]] = {}
        self.hangs = threading.Event()
        self.released = threading.Event()

    def sign(
        self,
        claims: Mapping[str, Any],
        key: Any = None,
        algorithm: str = "ES256",
        kid: str | None = "first",
        **header: Any,
    ) -> str:
        named = {} if kid is None else {"kid": kid}
        signing = ec_key() if key is None else key
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InsecureKeyLengthWarning)
            payload = json.dumps(dict(claims)).encode()
            return jwt.PyJWS().encode(payload, signing, algorithm, headers={**named, **header})

    def claims(self, **more: Any) -> dict[str, Any]:
        """Claims of an access token; ``None`` removes one."""
        now = int(time.time())
        found = {"iss": self.url, "aud": AUDIENCE, "exp": now + 600, "iat": now, **self.person}
        return {name: value for name, value in {**found, **more}.items() if value is not None}

    def token(self, **more: Any) -> str:
        return self.sign(self.claims(**more))

    def log_in(self, place: str) -> str:
        """What the browser of a person who logs in is sent to, from a URL of ``/authorize``."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(place).query).items()}
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'state': asked['state'], 'code': code})}"

    def grant(self, form: Mapping[str, str]) -> tuple[int, bytes]:
        """The answer of ``/token``: a code is good once, with its verifier."""
        asked = self.codes.pop(form["code"], None)
        if asked is None or asked["redirect_uri"] != form["redirect_uri"]:
            return 400, b'{"error": "invalid_grant"}'
        digest = urlsafe_b64encode(sha256(form["code_verifier"].encode()).digest())
        if digest.rstrip(b"=").decode() != asked["code_challenge"]:
            return 400, b'{"error": "invalid_grant"}'
        token = self.id_token(self.claims(aud=asked["client_id"], nonce=asked["nonce"]))
        return 200, json.dumps({"id_token": token, "access_token": "x"}).encode()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        issuer, path = self._issuer(), self.path.partition("?")[0]
        documents: dict[str, Any] = {
            "/.well-known/openid-configuration": issuer.metadata,
            "/keys": {"keys": issuer.keys},
        }
        if path == "/authorize":
            self._send(303, b"", {"Location": issuer.log_in(self.path)})
        elif path in documents:
            self._send(200, json.dumps(documents[path]).encode())
        else:
            self._send(404, b"{}")

    def do_POST(self) -> None:
        issuer = self._issuer()
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = {name: values[0] for name, values in parse_qs(body).items()}
        issuer.forms.append({**form, "authorization": self.headers.get("Authorization", "")})
        self._send(*issuer.grant(form))

    def _issuer(self) -> Issuer:
        assert isinstance(self.server, _Server)
        return self.server.issuer

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        issuer, path = self._issuer(), self.path.partition("?")[0]
        issuer.requests.append(path)
        if issuer.hangs.is_set():
            issuer.released.wait(60)
        if path in issuer.answers:
            status, body, headers = issuer.answers[path]
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not printed."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    issuer: Issuer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who hangs up is no error here."""


@contextmanager
def running() -> Generator[Issuer, None, None]:
    server = _Server(("127.0.0.1", 0), _Handler)
    server.issuer = Issuer(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.issuer
    finally:
        server.issuer.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
