"""POST to a URL that an application's user may have chosen: bounded, and never to the inside.

Rules:

- A host is resolved once, each of its addresses must be public, and the connection is made to one
  of these addresses. So a name cannot be rebound between the check and the connection.
- Only a worker's operator allows other addresses and plain HTTP, by host (``deliver_to``).
- Redirects are not followed, proxies not used, and only the answer's head is read, up to 16 KiB.
  The whole exchange has ``PATIENCE`` seconds.
- No answer is in an error: receivers repeat what they were sent, secrets and values included.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, Final
from urllib.parse import SplitResult

from milecastle.errors import MilecastleError

PATIENCE: Final = 10.0
_LARGEST_HEAD: Final = 16 * 1024
_ADDRESSES: Final = 3
"""How many of a host's addresses are tried."""
_SHARE: Final = 4
"""By how much shorter than the whole exchange an attempt is that has another address behind it."""

_INSIDE: Final = (
    IPv4Network("168.63.129.16/32"),  # Azure's platform, metadata included
    IPv4Network("192.0.0.0/24"),  # protocols, and Oracle's metadata
    IPv4Network("192.88.99.0/24"),  # relays of 6to4
    IPv6Network("64:ff9b:1::/48"),  # local NAT64
    IPv6Network("2001::/23"),  # protocols
    IPv6Network("3fff::/20"),  # documentation
    IPv6Network("5f00::/16"),  # segment routing
)
_TRANSLATED: Final = IPv6Network("64:ff9b::/96")
_COMPATIBLE: Final = IPv6Network("::/96")


class NotPosted(MilecastleError):
    pass


def is_public(address: str) -> bool:
    """True if an address is on the Internet, however it is written.

    IPv6 addresses that stand for an IPv4 one (mapped, translated, 6to4, Teredo) count as that one.
    """
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address):
        inner = _inner(found)
        if inner is not None:
            return all(is_public(str(one)) for one in inner)
        if found.is_site_local:
            return False
    is_outside = found.is_global and not (
        found.is_multicast or found.is_private or found.is_reserved or found.is_link_local
    )
    return is_outside and not any(found in one for one in _INSIDE)


def _inner(address: IPv6Address) -> tuple[IPv4Address, ...] | None:
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address.sixtofour is not None:
        return (address.sixtofour,)
    if address.teredo is not None:
        return address.teredo
    if address in _TRANSLATED or address in _COMPATIBLE:
        return (IPv4Address(int(address) & 0xFFFF_FFFF),)
    return None


async def post(
    target: SplitResult,
    headers: Mapping[str, str],
    body: bytes,
    *,
    deliver_to: Collection[str] = (),
    patience: float | None = None,
) -> int:
    """The status a URL answers; ``deliver_to`` has ``HOST`` and ``HOST:PORT``.

    Raises:
        NotPosted: it is not to be asked, or did not answer.
    """
    host, is_secure = target.hostname or "", target.scheme == "https"
    port = target.port or (443 if is_secure else 80)
    is_allowed = bool(
        {host, target.netloc.lower(), f"{host}:{port}"} & {one.lower() for one in deliver_to}
    )
    if not is_secure and not is_allowed:
        raise NotPosted("its URL is not https, and no worker allows its host (--deliver-to)")
    try:
        async with asyncio.timeout(patience or PATIENCE):
            addresses = await _resolve(host, port, is_allowed=is_allowed)
            server = host if is_secure else None
            reader, writer = await _connect(
                addresses, port, server, (patience or PATIENCE) / _SHARE
            )
            try:
                writer.write(_request(target, headers, body))
                await writer.drain()
                return await _status(reader)
            finally:
                writer.transport.abort()
    except TimeoutError:
        raise NotPosted(f"there was no answer within {patience or PATIENCE:g} seconds") from None
    except (OSError, ValueError, EOFError, asyncio.LimitOverrunError) as error:
        raise NotPosted(f"it did not answer ({type(error).__name__})") from None


async def _resolve(host: str, port: int, *, is_allowed: bool) -> list[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
    if not is_allowed and not (addresses and all(map(is_public, addresses))):
        raise NotPosted(
            "its host has an address that is not public, and no worker allows it (--deliver-to)"
        )
    return addresses[:_ADDRESSES]


async def _connect(
    addresses: list[str], port: int, server: str | None, patience: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    options: dict[str, Any] = {"limit": _LARGEST_HEAD}
    if server is not None:
        options |= {"ssl": _context(), "server_hostname": server}
    for address in addresses[:-1]:
        with suppress(OSError):  # a timeout is one
            async with asyncio.timeout(patience):
                return await asyncio.open_connection(address, port, **options)
    return await asyncio.open_connection(addresses[-1], port, **options)


@cache
def _context() -> ssl.SSLContext:
    return ssl.create_default_context()


def _request(target: SplitResult, headers: Mapping[str, str], body: bytes) -> bytes:
    path = f"{target.path or '/'}{f'?{target.query}' if target.query else ''}"
    lines = [f"POST {path} HTTP/1.1", f"host: {target.netloc}", "connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"content-length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode("ascii") + body


async def _status(reader: asyncio.StreamReader) -> int:
    for _ in range(5):
        head = await reader.readuntil(b"\r\n\r\n")
        version, status, *_ = head.split(maxsplit=2)
        if not version.startswith(b"HTTP/1.") or len(status) != 3 or not status.isdigit():
            raise ValueError("not an answer of HTTP/1")
        if int(status) >= 200:
            return int(status)
    raise ValueError("too many interim answers")
