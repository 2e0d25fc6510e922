"""Settings outside the code: the environment, then ``[tool.milecastle]``.

Rules:

- First found wins, name by name: ``MILECASTLE_STORE`` before ``store`` in pyproject.toml.
- The file is the nearest pyproject.toml in the folder or above, within the user's project: the
  search ends at a repository's root, at the home folder, and at another user's folder.
- Another user's file is not read: a user who can write to a parent folder must not choose the
  store or the code. Root's files are trusted like the user's own.
- A relative path in the file is relative to that file, wherever the command is run.
- An unknown name is an error: a misspelt setting must not be silently ignored.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from milecastle.errors import InvalidRequest

NAMES = ("store", "tenant", "app", "objects")
_FILE = "pyproject.toml"
_REPOSITORIES = (".git", ".hg")


class Setting(msgspec.Struct, frozen=True):
    value: str
    origin: str
    folder: Path | None = None


class ProjectSettings(msgspec.Struct, frozen=True, kw_only=True):
    store: Setting | None = None
    tenant: Setting | None = None
    app: Setting | None = None
    objects: Setting | None = None
    refused: Path | None = None


def read_settings(folder: Path, environment: Mapping[str, str] | None = None) -> ProjectSettings:
    """The settings applying in a folder.

    Raises:
        InvalidRequest: pyproject.toml cannot be read, or contains something other than settings.
    """
    path = next((place for place in _places(folder) if place.is_file()), None)
    refused = path if path and not _is_own(path) else None
    found = _from_file(path, folder) if path and not refused else {}
    given = os.environ if environment is None else environment
    for name in NAMES:
        variable = f"MILECASTLE_{name.upper()}"
        if given.get(variable):
            found[name] = Setting(given[variable], variable)
    return ProjectSettings(**found, refused=refused)


def _from_file(path: Path, start: Path) -> dict[str, Setting]:
    table = _table(path)
    unknown = sorted(table.keys() - set(NAMES))
    if unknown:
        raise InvalidRequest(
            f"[tool.milecastle] in {path} has {', '.join(unknown)}, which is not a setting; the "
            f"settings are {', '.join(NAMES)}"
        )
    for name, value in table.items():
        if not isinstance(value, str) or not value:
            raise InvalidRequest(f"{name} in [tool.milecastle] of {path} must be a string")
    found = {name: Setting(str(value), str(path), path.parent) for name, value in table.items()}
    if "store" in found and path.parent != start:
        anchored = _anchored(found["store"].value, path.parent)
        found["store"] = Setting(anchored, str(path), path.parent)
    return found


def _places(start: Path) -> Iterator[Path]:
    for folder in (start, *start.parents):
        if folder != start and _owner(folder) != _user():
            return
        yield folder / _FILE
        if folder == _home() or any((folder / name).exists() for name in _REPOSITORIES):
            return


def _is_own(path: Path) -> bool:
    owners = {_owner(path), path.lstat().st_uid, _owner(path.parent)}
    return owners <= {_user(), 0} or _user() is None


def _owner(path: Path) -> int | None:
    return path.stat().st_uid if _user() is not None else None


def _user() -> int | None:
    return os.geteuid() if hasattr(os, "geteuid") else None


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:
        return None


def _table(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        tool = tomllib.loads(path.read_text("utf-8")).get("tool", {})
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{path} cannot be read: {error}") from None
    table = tool.get("milecastle", {})
    if not isinstance(table, dict):
        raise InvalidRequest(f"tool.milecastle in {path} must be a table")
    return cast("dict[str, Any]", table)


def _anchored(url: str, folder: Path) -> str:
    scheme, found, place = url.partition("://")
    root = folder.as_posix().lstrip("/")
    if url.endswith(".toml") and (not found or scheme == "shards"):  # the file of a map
        return str(folder / (place if found else url))
    if scheme == "sqlite" and place.startswith("/") and not place.startswith("//"):
        return f"sqlite:////{root}{place}"
    if scheme == "file" and not place.startswith("/"):
        return f"file:///{root}/{place}"
    return url
