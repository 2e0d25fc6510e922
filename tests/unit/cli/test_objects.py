"""The command line on a store whose large values are in object storage."""

from __future__ import annotations

import os

import pytest

from milecastle import ThreadKey, open_store
from tests.unit.cli.commands import Desk

DOCUMENT = os.urandom(2_000_000)


@pytest.fixture
def stored(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A store with a large value, and the setting that leads to it."""
    objects = f"file://{desk.folder}/objects"
    store = open_store("sqlite:///runs.db", objects=objects)
    store.put(ThreadKey("default", "t"), {"document": DOCUMENT})
    store.close()
    monkeypatch.setenv("MILECASTLE_OBJECTS", objects)
    return desk


def test_store_is_verified_with_its_objects(stored: Desk) -> None:
    """Fails if the setting is not used: then the value cannot be read."""
    assert "no damage found" in stored.out("verify")
    (path,) = (stored.folder / "objects").glob("*/objects/*")
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert path.name in stored.out("verify", code=1)


def test_copy_has_the_values_themselves(stored: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the target shares the prefix of the source."""
    stored.call("copy", "sqlite:///runs.db", "sqlite:///copy.db")
    monkeypatch.delenv("MILECASTLE_OBJECTS")
    assert "no damage found" in stored.out("verify", "--store", "sqlite:///copy.db")


def test_objects_are_swept(stored: Desk) -> None:
    assert "1 object in use or new" in stored.call("gc", "--objects").stderr
    assert "0 would be removed" in stored.call("gc", "--objects", "--dry-run").stderr
    assert stored.document("gc", "--objects")
    assert "in use" in stored.call("gc", "--objects", "--keep-last", "3").stderr


def test_stray_object_is_reported(stored: Desk) -> None:
    """Fails if it ends the sweep, or is not mentioned."""
    assert "left alone" not in stored.call("gc", "--objects").stderr
    (folder,) = (stored.folder / "objects").glob("*")
    (folder / "files").mkdir()
    (folder / "files" / "notes.txt").touch()
    assert "1 object left alone" in stored.call("gc", "--objects").stderr


def test_sweep_without_objects_is_refused(stored: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILECASTLE_OBJECTS")
    assert "MILECASTLE_OBJECTS" in stored.err("gc", "--objects", code=2)
