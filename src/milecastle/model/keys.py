"""Thread addresses. Every call needs a tenant."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, Final, Literal, TypeVar

import msgspec

from milecastle.errors import InvalidRequest

T = TypeVar("T")

SHARDS = 1024
MAX_ID_BYTES = 512
KEYS_TENANT = "milecastle.keys"
"""The reserved tenant of encryption keys."""
SUBGRAPH: Final = "\x1f"
"""Separates the name of a thread from the names of its subgraphs."""
_OWN: Final = "@@"
"""Separates the kind of a thread that Milecastle starts itself from the rest of its name."""

OwnKind = Literal["schedule", "tick", "bulk", "session", "run", "child", "memory", "delivery"]
"""The kinds of threads that no caller starts: schedules, their firings, jobs, sessions and their
run states, children, and deliveries to hooks; and of names under which keys of memory are
stored."""


class ThreadKey(msgspec.Struct, frozen=True, order=True):
    """A thread within a tenant. Both are required by every read and write."""

    tenant: str
    thread: str

    def __post_init__(self) -> None:
        for what, name in (("tenant id", self.tenant), ("thread id", self.thread)):
            if not (type(name) is str and name.isascii() and 0 < len(name) <= MAX_ID_BYTES):
                check_name(what, name)
            elif "\0" in name:
                raise InvalidRequest(f"a {what} must not contain NUL")

    @property
    def shard(self) -> int:
        """The owning shard; the same on every machine and version."""
        return zlib.crc32(f"{self.tenant}\0{self.thread}".encode()) % SHARDS

    def __str__(self) -> str:
        return f"{self.tenant}/{self.thread}"


def check_name(what: str, value: object, most: int = MAX_ID_BYTES) -> None:
    """Refuse a name some store could not store, so every store behaves the same."""
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


def own_name(kind: OwnKind, name: str) -> str:
    if SUBGRAPH in name:
        raise InvalidRequest(f"the name of a {kind} cannot contain U+001F")
    return f"{kind}{_OWN}{name}"


def own_key(tenant: str, kind: OwnKind, name: str) -> ThreadKey:
    return ThreadKey(tenant, own_name(kind, name))


def is_upkeep(name: str) -> bool:
    """True for a job's or schedule's thread, and for its graph, which is Milecastle's own."""
    return name.startswith((own_name("bulk", ""), own_name("schedule", "")))


def is_delivery(graph: str) -> bool:
    return graph.startswith(own_name("delivery", ""))


def refuse_own(thread: str) -> None:
    """Raise ``InvalidRequest`` for a name a caller's thread cannot have.

    So no caller starts, writes or forks a thread that stands for a schedule, a firing, a job, a
    session or a subgraph. Existing ones can be read, resumed, cancelled and deleted by their names.
    """
    if SUBGRAPH in thread:
        refuse_subgraph(thread)
    if _OWN in thread:
        raise InvalidRequest(
            f"a thread's name cannot contain '{_OWN}': such names are those of schedules, their "
            "firings, jobs, sessions, children and deliveries"
        )


def refuse_subgraph(thread: str) -> None:
    if SUBGRAPH in thread:
        raise InvalidRequest(
            "a thread's name cannot contain U+001F: it separates the names of subgraphs"
        )


def require_key(key: object) -> None:
    if not isinstance(key, ThreadKey):
        raise TypeError(
            "a store identifies a thread by tenant and name: write ThreadKey('default', "
            f"'my-thread'), not {type(key).__name__}"
        )


def refuse_reserved(tenant: str) -> None:
    if tenant == KEYS_TENANT:
        raise InvalidRequest(
            f"the tenant '{KEYS_TENANT}' is reserved for encryption keys: use another tenant, "
            "and Keyring to rotate or erase keys"
        )


def _require_tenant(tenant: object) -> None:
    if not isinstance(tenant, str):
        raise TypeError(f"a tenant is a str, not {type(tenant).__name__}")


def checks_keys(cls: type[T]) -> type[T]:
    """Let a store's public methods check a first argument named ``key`` or ``tenant``.

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
        if type(key) is not ThreadKey:
            require_key(key)
        return method(self, key, *args, **named)

    return checked


def _checking_tenant(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def checked(self: object, tenant: str, *args: Any, **named: Any) -> Any:
        _require_tenant(tenant)
        return method(self, tenant, *args, **named)

    return checked
