"""A desk for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.commands import Desk


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """An empty folder with a demo in it, and no settings from outside."""
    monkeypatch.chdir(tmp_path)
    for name in (
        "MILECASTLE_STORE",
        "MILECASTLE_TENANT",
        "MILECASTLE_APP",
        "MILECASTLE_OBJECTS",
        "NO_COLOR",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.dont_write_bytecode", True)  # demo.py is rewritten within a second
    return Desk(tmp_path)
