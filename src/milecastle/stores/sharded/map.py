"""The map: which database has which shards, in a file ``shards.toml``.

::

    version = 1

    [databases]
    a = "postgresql://milecastle@db-a/milecastle"
    b = "$MILECASTLE_DATABASE_B"     # the URL is in this environment variable

    [shards]
    "0-511" = "a"
    "512-1023" = "b"

Every shard is given to one database, once. Nothing is guessed: missing, doubled or unknown shards
are refused. No error repeats a URL, because a password may be in it.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from milecastle.errors import InvalidRequest
from milecastle.model.keys import SHARDS
from milecastle.support.printable import printable, quoted

_NAME = re.compile("[a-z0-9][a-z0-9_-]{0,62}").fullmatch
_RANGE = re.compile("([0-9]{1,4})(?:-([0-9]{1,4}))?").fullmatch
_VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)").fullmatch
_LAST = SHARDS - 1
_KEYS = ("version", "databases", "shards")
_HIGHEST = 2**31 - 1


class ShardMap(msgspec.Struct, frozen=True):
    file: str
    version: int
    urls: Mapping[str, str]
    owners: tuple[str, ...]

    def shards_of(self, name: str) -> frozenset[int]:
        return frozenset(shard for shard, owner in enumerate(self.owners) if owner == name)


def read_map(path: str | os.PathLike[str]) -> ShardMap:
    file = os.fspath(path)
    document = _parsed(file)
    for key in document.keys() - set(_KEYS):
        raise _wrong(file, f"it has {quoted(key)}, but a map has {', '.join(_KEYS)}")
    version = document.get("version")
    if type(version) is not int or not 1 <= version <= _HIGHEST:
        raise _wrong(file, "version must be a whole number from 1 on: add 'version = 1'")
    urls = _urls(file, _table(file, document, "databases"))
    owners = _owners(file, _table(file, document, "shards"), urls)
    return ShardMap(file, version, urls, owners)


def _parsed(file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(file).read_text("utf-8"))
    except OSError as error:
        raise _wrong(file, f"it cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise _wrong(file, "it is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        # The message quotes a character at most.
        raise _wrong(file, f"it is not TOML: {error}") from None


def _table(file: str, document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = document.get(name)
    if not isinstance(table, dict) or not table:
        raise _wrong(file, f"it has no table [{name}], or an empty one")
    return cast("dict[str, Any]", table)


def _urls(file: str, table: Mapping[str, Any]) -> dict[str, str]:
    urls: dict[str, str] = {}
    for name, given in table.items():
        place = f"[databases], {quoted(name)}"
        if not _NAME(name):
            raise _wrong(file, f"{place}: a name has 1 to 63 of a-z, 0-9, _ and -")
        if not isinstance(given, str):
            raise _wrong(file, f"{place}: a URL must be a text")
        url = _resolved(file, place, given)
        if url.partition("://")[0] not in ("postgresql", "postgres"):
            raise _wrong(
                file,
                f"{place}: write a postgresql:// URL, or $NAME for one that is in the environment",
            )
        for other, known in urls.items():
            if known == url:
                raise _wrong(file, f"{place}: it has the same URL as {quoted(other)}")
        urls[name] = url
    return urls


def _resolved(file: str, place: str, given: str) -> str:
    variable = _VARIABLE(given)
    if variable is None:
        return given
    found = os.environ.get(variable[1])
    if not found:
        raise _wrong(file, f"{place}: the environment variable {variable[1]} is not set")
    return found


def _owners(file: str, table: Mapping[str, Any], urls: Mapping[str, str]) -> tuple[str, ...]:
    owners: list[str | None] = [None] * SHARDS
    for text, name in table.items():
        place = f"[shards], {quoted(text)}"
        if not isinstance(name, str) or name not in urls:
            raise _wrong(file, f"{place}: it must name one of [databases]")
        found = _RANGE(text)
        first = int(found[1]) if found else SHARDS
        last = int(found[2]) if found and found[2] else first
        if not first <= last <= _LAST:
            raise _wrong(file, f"{place}: write a shard or a range within 0-{_LAST}")
        for shard in range(first, last + 1):
            if owners[shard] is not None:
                raise _wrong(file, f"{place}: shard {shard} is given to two databases or twice")
            owners[shard] = name
    missing = [shard for shard, owner in enumerate(owners) if owner is None]
    if missing:
        raise _wrong(
            file,
            f"[shards] leaves out {len(missing)} of {SHARDS} shards, the first is {missing[0]}: "
            "give each to one database",
        )
    return tuple(owner for owner in owners if owner is not None)


def _wrong(file: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{printable(file)} is not a map of databases: {why}")
