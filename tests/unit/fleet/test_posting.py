"""POST of deliveries: to public addresses only, resolved once, bounded in time and size."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from milecastle.fleet import posting
from milecastle.fleet.posting import NotPosted, is_public, post
from tests.receiver import receiving

INSIDE = [
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.169.254",
    "169.254.170.2",
    "100.64.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "192.0.2.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "192.88.99.1",
    "::1",
    "::",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:a9fe:a9fe",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "fc00::1",
    "fd00:ec2::254",
    "ff02::1",
    "2001:db8::1",
    "100::1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::",
    "2002:c0a8:101::1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "5f00::1",
    "2001:0:7f00:1::1",
    "2001:10::1",
]
HERE = [
    "127.0.0.1",
    "localhost",
    "2130706433",
    "0x7f000001",
    "127.1",
    "0177.0.0.1",
    "[::1]",
    "0",
    "[::ffff:127.0.0.1]",
    "localhost.",
    "LOCALHOST",
    "127.0.0.1.",
    "[::]",
]
OUTSIDE = [
    "1.1.1.1",
    "8.8.8.8",
    "93.184.216.34",
    "172.15.255.255",
    "172.32.0.1",
    "192.167.255.255",
    "168.63.129.17",
    "2606:4700:4700::1111",
    "2a00:1450:4001:82a::200e",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
    "2002:808:808::1",
]


@pytest.mark.requirement("N6")
@pytest.mark.parametrize("address", INSIDE)
def test_no_address_of_the_inside_is_public(address: str) -> None:
    """Was broken: ``is_global`` alone, which translated addresses and metadata services pass."""
    assert not is_public(address)


@pytest.mark.parametrize("address", OUTSIDE)
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)


class Resolver:
    """Answers each time with the next of ``answers``; the last one stays."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.calls = 0

    async def getaddrinfo(self, host: str, port: int, **options: Any) -> list[Any]:
        self.calls += 1
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in found]


def posted(url: str, resolver: Resolver | None = None, **options: Any) -> int:
    async def main() -> int:
        if resolver is not None:
            loop: Any = asyncio.get_running_loop()
            loop.getaddrinfo = resolver.getaddrinfo
        return await post(urlsplit(url), {"webhook-id": "a"}, b"{}", **options)

    return asyncio.run(main())


@pytest.mark.requirement("N6")
@pytest.mark.parametrize(
    "host",
    HERE,
)
def test_this_machine_is_not_reached_however_it_is_written(host: str) -> None:
    """Was broken: the host's text was compared, and not its address."""
    with receiving() as receiver:
        port = urlsplit(receiver.url).port
        with pytest.raises(NotPosted):
            posted(f"https://{host}:{port}/", deliver_to=("example.org", "127.0.0.1:1"))
        assert not receiver.received


@pytest.mark.requirement("N6")
def test_a_name_is_resolved_once_and_the_checked_address_is_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Against a name that is rebound. Was broken: the connection was made to the name."""
    connected: list[str] = []

    async def connect(host: str, port: int, **options: Any) -> Any:
        connected.append(host)
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncio, "open_connection", connect)
    resolver = Resolver(["93.184.216.34"], ["127.0.0.1"])
    with pytest.raises(NotPosted, match="ConnectionRefusedError"):
        posted("https://rebinding.example/", resolver)
    assert (connected, resolver.calls) == (["93.184.216.34"], 1)


def test_one_private_address_of_several_refuses_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Was broken: the first address was checked, and the second connected to."""

    async def connect(*given: Any, **options: Any) -> Any:
        raise AssertionError("it connects")

    monkeypatch.setattr(asyncio, "open_connection", connect)
    for addresses in (["93.184.216.34", "10.0.0.1"], ["10.0.0.1", "93.184.216.34"], []):
        with pytest.raises(NotPosted, match="not public"):
            posted("https://both.example/", Resolver(addresses))


@pytest.mark.parametrize("dead", [OSError(101, "unreachable"), ConnectionRefusedError(), None])
def test_another_address_of_a_host_is_tried(
    monkeypatch: pytest.MonkeyPatch, dead: OSError | None
) -> None:
    """Was broken: only after a refused connection, not if a network is unreachable, or silent."""
    honest = asyncio.open_connection

    async def connect(host: str, port: int, **options: Any) -> Any:
        if host == "127.0.0.1":
            return await honest(host, port, **options)
        if dead is not None:
            raise dead
        return await asyncio.sleep(30)

    monkeypatch.setattr(asyncio, "open_connection", connect)
    with receiving() as receiver:
        resolver = Resolver(["2606:4700:4700::1111", "127.0.0.1"])
        assert posted(receiver.url, resolver, deliver_to=(receiver.host,), patience=4.0) == 204


def test_plain_http_is_for_allowed_hosts_only() -> None:
    """A port that is allowed allows no other."""
    with pytest.raises(NotPosted, match="not https"):
        posted("http://example.org/", Resolver(["93.184.216.34"]))
    with receiving() as receiver:
        assert posted(receiver.url, deliver_to=(receiver.host,)) == 204
        assert posted(receiver.url, deliver_to=("127.0.0.1",)) == 204
        with pytest.raises(NotPosted, match="not https"):
            posted(receiver.url, deliver_to=("127.0.0.1:1", "127.0.0.2"))


def test_redirects_to_the_inside_are_answers() -> None:
    """Was broken: with ``urllib``, which follows them."""
    with receiving() as receiver:
        receiver.answers = [301, 302, 303, 307, 308]
        found = [posted(receiver.url, deliver_to=(receiver.host,)) for _ in range(5)]
        assert found == [301, 302, 303, 307, 308]
        assert {one.path for one in receiver.received} == {"/hook?from=test"}


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", 200),
        (b"HTTP/1.0 204\r\n\r\n", 204),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 Accepted\r\n\r\n", 202),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n", 200),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 9, None),
        (b"HTTP/1.1 2000 OK\r\n\r\n", None),
        (b"HTTP/2 200 OK\r\n\r\n", None),
        (b"200 OK\r\n\r\n", None),
        (b"\r\n\r\n", None),
        (b"HTTP/1.1 \xc2\xb2\xc2\xb2\xc2\xb2 OK\r\n\r\n", None),
        (b"HTTP/1.1 200 OK\r\n", None),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n", None),
        (b"", None),
    ],
)
def test_answers_of_every_form_are_a_status_or_none(answer: bytes, status: int | None) -> None:
    def answers(request: Any) -> None:
        request.wfile.write(answer)

    with receiving() as receiver:
        receiver.answers = [answers]
        if status is None:
            with pytest.raises(NotPosted):
                posted(receiver.url, deliver_to=(receiver.host,))
        else:
            assert posted(receiver.url, deliver_to=(receiver.host,)) == status


def test_an_answer_that_drips_ends_in_time() -> None:
    """Was broken: a limit for each read."""
    ended = threading.Event()

    def drips(request: Any) -> None:
        while not ended.wait(0.05):
            request.wfile.write(b"x")

    with receiving() as receiver:
        receiver.answers = [drips]
        with pytest.raises(NotPosted, match=r"within 0\.3 seconds"):
            posted(receiver.url, deliver_to=(receiver.host,), patience=0.3)
        ended.set()


def test_the_name_is_what_the_certificate_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was broken: the certificate was compared with the address."""
    certificate, key = certificate_for("hooks.example", tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 202 Accepted\r\n\r\n")
        await writer.drain()
        writer.close()

    async def main(host: str, trusted: Path | None) -> int:
        loop: Any = asyncio.get_running_loop()
        found = ssl.create_default_context(cafile=trusted)
        monkeypatch.setattr(posting, "_context", lambda: found)
        async with await asyncio.start_server(accept, "127.0.0.1", 0, ssl=server) as listening:
            port = listening.sockets[0].getsockname()[1]
            loop.getaddrinfo = Resolver(["127.0.0.1"]).getaddrinfo
            return await post(urlsplit(f"https://{host}:{port}/"), {}, b"", deliver_to=(host,))

    assert asyncio.run(main("hooks.example", certificate)) == 202
    for host, trusted in (("other.example", certificate), ("hooks.example", None)):
        with pytest.raises(NotPosted, match="SSLCertVerificationError"):
            asyncio.run(main(host, trusted))


def certificate_for(name: str, folder: Path) -> tuple[Path, Path]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate, private = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate, private
