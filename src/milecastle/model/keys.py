"""How a thread is addressed. Every call needs a tenant."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar

import msgspec

from milecastle.errors import InvalidRequest

T = TypeVar("T")

SHARDS = 1024
MAX_ID_BYTES = 512
KEYS_TENANT = "milecastle.keys"
"""The reserved tenant of encryption keys."""


class ThreadKey(msgspec.Struct, frozen=True, order=True):
    """A thread within a tenant. Both are required by every read and write."""

    tenant: str
    thread: str

    def __post_init__(self) -> None:
        check_name("tenant id", self.tenant)
        check_name("thread id", self.thread)

    @property
    def shard(self) -> int:
        """The shard that owns the thread; the same on every machine and version."""
        return zlib.crc32(f"{self.tenant}\0{self.thread}".encode()) % SHARDS

    def __str__(self) -> str:
        return f"{self.tenant}/{self.thread}"


def check_name(what: str, value: object, most: int = MAX_ID_BYTES) -> None:
    """Refuse what some store could not store, so that every store behaves the same."""
    if type(value) is not str:
        raise InvalidRequest(f"a {what} must be a str, not {type(value).__name__}")
    if not value:
        raise InvalidRequest(f"a {what} must not be empty")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"a {what} must not contain lone surrogates") from None
    if "\0" in value:
        raise InvalidRequest(f"a {what} must not contain NUL")
    if size > most:
        raise InvalidRequest(f"a {what} may have at most {most} bytes; this one has {size}")


def require_key(key: object) -> None:
    """Raise ``TypeError`` if this is not a ``ThreadKey``: nothing is addressed without a tenant."""
    if not isinstance(key, ThreadKey):
        raise TypeError(
            "a store identifies a thread by tenant and name: write ThreadKey('default', "
            f"'my-thread'), not {type(key).__name__}"
        )


def refuse_reserved(tenant: str) -> None:
    """Raise ``InvalidRequest`` for the tenant of encryption keys: only a keyring uses that one."""
    if tenant == KEYS_TENANT:
        raise InvalidRequest(
            f"the tenant '{KEYS_TENANT}' is reserved for encryption keys: use another tenant, "
            "and Keyring to rotate or erase keys"
        )


def _require_tenant(tenant: object) -> None:
    if not isinstance(tenant, str):
        raise TypeError(f"a tenant is a str, not {type(tenant).__name__}")


def checks_keys(cls: type[T]) -> type[T]:
    """Let the public methods of a store check a first argument named ``key`` or ``tenant``.

    The check comes first: before a generator is created, and before anything is read or written.
    """
    for name, method in list(vars(cls).items()):
        if isinstance(method, FunctionType) and not name.startswith("_"):
            first = method.__code__.co_varnames[1 : method.__code__.co_argcount][:1]
            if first == ("key",):
                setattr(cls, name, _checking_key(method))
            elif first == ("tenant",):
                setattr(cls, name, _checking_tenant(method))
    return cls


def _checking_key(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def checked(self: object, key: ThreadKey, *args: Any, **named: Any) -> Any:
        require_key(key)
        return method(self, key, *args, **named)

    return checked


def _checking_tenant(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def checked(self: object, tenant: str, *args: Any, **named: Any) -> Any:
        _require_tenant(tenant)
        return method(self, tenant, *args, **named)

    return checked
