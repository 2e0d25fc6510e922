"""A receiver of webhooks on this machine, and a verifier written from the published rules."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
"""The example of the specification."""

Answer = int | Callable[[BaseHTTPRequestHandler], None]


class Received(msgspec.Struct, frozen=True):
    """A request that arrived; ``status`` is what it was answered, 0 if nothing."""

    path: str
    headers: dict[str, str]
    body: bytes
    status: int

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def is_genuine(self) -> bool:
        return is_genuine(self.headers, self.body, SECRET)


def is_genuine(headers: dict[str, str], body: bytes, secret: str) -> bool:
    """The rules of standardwebhooks.com: HMAC-SHA256 over id, timestamp and body, in base64."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    at = headers["webhook-timestamp"]
    signed = b".".join([headers["webhook-id"].encode(), at.encode(), body])
    wanted = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    is_recent = abs(time.time() - int(at)) < 300
    return is_recent and f"v1,{wanted}" in headers["webhook-signature"].split(" ")


class Receiver:
    """Answers with ``answers``, one after the other, and then 204; remembers every request."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/hook?from=test"
        self.host = f"127.0.0.1:{port}"
        self.answers: list[Answer] = []
        self.received: list[Received] = []
        self._lock = threading.Lock()

    @property
    def events(self) -> list[tuple[str, str]]:
        """Each request's event and thread, sorted."""
        found = [one.document for one in self.received]
        return sorted((one["type"], one["data"]["thread"]) for one in found)

    @property
    def ids(self) -> list[str]:
        return [one.id for one in self.received]

    def next_answer(self, id: str) -> Answer:
        return self.answers.pop(0) if self.answers else 204

    def take(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["content-length"]))
        with self._lock:
            answer = self.next_answer(request.headers["webhook-id"])
            headers = {name.lower(): value for name, value in request.headers.items()}
            status = answer if isinstance(answer, int) else 0
            self.received.append(Received(request.path, headers, body, status))
        if not isinstance(answer, int):
            answer(request)
            return
        request.send_response(answer)
        if 300 <= answer < 400:
            request.send_header("location", f"http://{self.host}/elsewhere")
        request.send_header("content-length", "0")
        request.end_headers()


@contextmanager
def receiving(kind: type[Receiver] = Receiver) -> Generator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receiver.take(self)

        def do_GET(self) -> None:
            receiver.received.append(Received(self.path, {"webhook-id": "GET"}, b"{}", 200))

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    receiver = kind(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
