"""`just quick` finds tests for every folder of the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.quick import ALWAYS, MORE, ROOT, chosen

FOLDERS = sorted(path.parent for path in (ROOT / "src" / "milecastle").glob("*/**/__init__.py"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_every_folder_of_the_package_has_tests(folder: Path) -> None:
    assert len(chosen([str(folder.relative_to(ROOT))])) > len(ALWAYS)


def test_every_test_that_is_named_exists() -> None:
    named = [*ALWAYS, *(test for tests in MORE.values() for test in tests)]
    assert [test for test in named if not (ROOT / test).exists()] == []


def test_a_changed_test_is_run_itself() -> None:
    assert chosen(["tests/unit/codec/test_bounds.py"])[-1] == "tests/unit/codec/test_bounds.py"
    assert chosen(["tests/unit/codec/gadgets.py"])[-1] == "tests/unit/codec"
