"""gc --archive and restore."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.commands import Desk


def test_checkpoints_are_archived_and_restored(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the rule does not reach the retention, or `restore` imports an app."""
    desk.start()
    desk.call("resume", "demo", "--app", "demo:app")
    monkeypatch.setenv("MILECASTLE_OBJECTS", f"file://{desk.folder}/objects")
    count = len(desk.document("history", "demo").checkpoints)
    assert "would archive" in desk.out("gc", "--archive", "0s", "--dry-run")
    assert desk.document("gc", "--archive", "0s").archived == count
    assert len(desk.document("history", "demo").checkpoints) == count + 1
    assert "walls" in desk.out("show", "demo@1")
    assert "0 checkpoints" in desk.out("gc", "--archive", "30d")
    desk.write("planted.py", "open('PWNED', 'w').close()\nraise SystemExit")
    desk.write("pyproject.toml", '[tool.milecastle]\napp = "planted:app"\n')
    assert desk.document("restore", "demo").restored == count
    assert "0 checkpoints restored" in desk.out("restore", "demo")
    assert not Path("PWNED").exists()


def test_archiving_without_object_storage_is_refused(desk: Desk) -> None:
    desk.start()
    assert "MILECASTLE_OBJECTS" in desk.err("gc", "--archive", "30d", code=2)
    assert "MILECASTLE_OBJECTS" in desk.err("restore", "demo", code=2)


def test_history_without_objects_says_what_is_missing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Was broken: the list ended where the archive begins. Fails if a reader ends silently."""
    desk.start()
    desk.call("resume", "demo", "--app", "demo:app")
    with monkeypatch.context() as patched:
        patched.setenv("MILECASTLE_OBJECTS", f"file://{desk.folder}/objects")
        desk.call("gc", "--archive", "0s")
    listed = desk.call("history", "demo")
    assert "archived" in listed.stdout
    assert "MILECASTLE_OBJECTS" in listed.stderr
    for place in ("demo@1", "demo@0199"):
        assert "MILECASTLE_OBJECTS" in desk.call("show", place, code=1).stderr
