"""Tokens: created, refused if weak, and read from a file that may change."""

from __future__ import annotations

import logging
import os
import secrets
import stat
import sys
import tomllib
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from milecastle.errors import InvalidRequest
from milecastle.model.keys import check_name, refuse_reserved
from milecastle.server.identity import Identity, TokenScope
from milecastle.support.prepared import prepared
from milecastle.support.printable import printable

_log = logging.getLogger("milecastle.server")

_SHORTEST: Final = 32


@prepared
class TokenEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: str
    tenant: str
    scopes: tuple[TokenScope, ...]
    name: str = ""
    expires: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class Token(msgspec.Struct, frozen=True):
    """A bearer token: it is refused from ``expires`` on, if it has one."""

    text: str
    identity: Identity
    expires: datetime | None = None


def new_secret() -> str:
    return secrets.token_urlsafe(32)


def read_tokens(path: str | os.PathLike[str]) -> list[Token]:
    """A file's tokens.

    Raises:
        InvalidRequest: it cannot be read, others may read it, or it is not a token file. No
            token is in the message.
    """
    place = Path(path)
    try:
        with place.open("rb") as file:
            found_file = os.fstat(file.fileno())
            found: Any = tomllib.load(file)
        entries = msgspec.convert(found, dict[str, list[TokenEntry]])
    except OSError as error:
        raise InvalidRequest(f"the tokens in {place} cannot be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError:
        raise InvalidRequest(f"{place} is not TOML") from None
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{place} is not a file of tokens: {error}") from None
    refuse_readable(found_file, f"the tokens in {place}", place)
    if set(entries) != {"token"}:
        raise InvalidRequest(f"{place} has no [[token]], or something else besides")
    for entry in entries["token"]:
        check_name(f"tenant in {place}", entry.tenant)
        refuse_reserved(entry.tenant)
        refuse_weak(entry.token, f"a token in {place}")
    if len({entry.token for entry in entries["token"]}) < len(entries["token"]):
        raise InvalidRequest(f"{place} has a token twice: each caller needs a token of its own")
    return [
        Token(one.token, Identity(one.tenant, frozenset(one.scopes), one.name), one.expires)
        for one in entries["token"]
    ]


def refuse_readable(file: os.stat_result, what: str, place: Path) -> None:
    """Refuse a file with secrets that other users may read or write.

    The group may read a file that is another user's: that is how Kubernetes lets a process that is
    not root read a secret.

    Raises:
        InvalidRequest: others may.
    """
    if sys.platform != "win32":
        is_ours = file.st_uid == os.geteuid()
        refused = stat.S_IRWXO | (stat.S_IRWXG if is_ours else stat.S_IWGRP | stat.S_IXGRP)
        if file.st_mode & refused:
            raise InvalidRequest(f"others may read {what}: chmod 600 {place}")


def refuse_weak(token: str, what: str) -> None:
    """Refuse a token too weak, or impossible in a header.

    Raises:
        InvalidRequest: it is one.
    """
    if len(token) < _SHORTEST or not token.isascii():
        raise InvalidRequest(
            f"{what} is shorter than {_SHORTEST} characters, or not ASCII: "
            "python -c 'import secrets; print(secrets.token_urlsafe(32))' makes one"
        )


class TokenFile:
    """A token file, which is read again when it has changed.

    If it can no longer be read, nothing changes: the tokens read before stay known, and the log
    says so.

    Raises:
        InvalidRequest: it cannot be read now; see ``read_tokens``.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._stamp = self._look()
        self.tokens = read_tokens(self._path)

    def has_changed(self) -> bool:
        stamp = self._look()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self.tokens = read_tokens(self._path)
        except InvalidRequest as error:
            _log.error("the tokens as they were stay in use: %s", printable(error.message))
            return False
        _log.info("the tokens were read again: there are %d", len(self.tokens))
        return True

    def _look(self) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
