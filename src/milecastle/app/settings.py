"""Settings that stand outside the code: the environment, then ``[tool.milecastle]``.

Rules:

- First found wins, name by name: ``MILECASTLE_STORE`` before ``store`` in pyproject.toml.
- The file is the nearest pyproject.toml in the folder or above. A relative place that it names
  is relative to it, wherever the command is run.
- A name that is not known is an error: a misspelt setting must not be silently ignored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from milecastle.errors import InvalidRequest

__all__ = ["NAMES", "Setting", "Settings", "read_settings"]

NAMES = ("store", "tenant", "app")
_FILE = "pyproject.toml"


class Setting(msgspec.Struct, frozen=True):
    """A value, and where it was found: the name of a variable, or a file."""

    value: str
    origin: str
    folder: Path | None = None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What was found; ``None`` for what nobody set."""

    store: Setting | None = None
    tenant: Setting | None = None
    app: Setting | None = None


def read_settings(folder: Path, environment: Mapping[str, str] | None = None) -> Settings:
    """The settings that hold in a folder.

    Raises:
        InvalidRequest: pyproject.toml cannot be read, or names something that is no setting.
    """
    found = _from_file(folder)
    given = os.environ if environment is None else environment
    for name in NAMES:
        variable = f"MILECASTLE_{name.upper()}"
        if given.get(variable):
            found[name] = Setting(given[variable], variable)
    return Settings(**found)


def _from_file(start: Path) -> dict[str, Setting]:
    path = next((place for place in _places(start) if place.is_file()), None)
    if path is None:
        return {}
    table = _table(path)
    unknown = sorted(table.keys() - set(NAMES))
    if unknown:
        raise InvalidRequest(
            f"[tool.milecastle] in {path} has {', '.join(unknown)}, which is no setting; "
            f"there are {', '.join(NAMES)}"
        )
    for name, value in table.items():
        if not isinstance(value, str) or not value:
            raise InvalidRequest(f"{name} in [tool.milecastle] of {path} must be a text")
    found = {name: Setting(str(value), str(path), path.parent) for name, value in table.items()}
    if "store" in found and path.parent != start:
        anchored = _anchored(found["store"].value, path.parent)
        found["store"] = Setting(anchored, str(path), path.parent)
    return found


def _places(start: Path) -> list[Path]:
    return [folder / _FILE for folder in (start, *start.parents)]


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
    """A URL of a file or folder that is relative, seen from another folder."""
    scheme, _, place = url.partition("://")
    root = folder.as_posix().lstrip("/")
    if scheme == "sqlite" and place.startswith("/") and not place.startswith("//"):
        return f"sqlite:////{root}{place}"
    if scheme == "file" and not place.startswith("/"):
        return f"file:///{root}/{place}"
    return url
