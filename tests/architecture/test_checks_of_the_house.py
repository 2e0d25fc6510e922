"""The scripts that CI trusts can fail."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest

from scripts import coverage_bars, wheel_is_complete

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("lines", "branches", "code"), [(95, 95, 0), (100, 94, 1), (94, 100, 1)])
def test_lines_and_branches_each_have_their_bar(
    tmp_path: Path, lines: int, branches: int, code: int
) -> None:
    totals = {
        "covered_lines": lines,
        "num_statements": 100,
        "covered_branches": branches,
        "num_branches": 100,
    }
    report = tmp_path / "coverage.json"
    report.write_text(json.dumps({"totals": totals}), encoding="utf-8")
    assert coverage_bars.main([str(report)]) == code


def test_a_file_left_out_of_the_wheel_is_named(tmp_path: Path) -> None:
    source = tmp_path / "src"
    for name in ("package/__init__.py", "package/py.typed", "package/__pycache__/x.pyc"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).touch()
    wheel = tmp_path / "package.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("package/__init__.py", "")
    assert wheel_is_complete.missing(wheel, source) == ["package/py.typed"]


@pytest.mark.parametrize("file", sorted((ROOT / "constraints").glob("*.txt")), ids=lambda f: f.name)
def test_every_pin_has_hashes_and_no_address(file: Path) -> None:
    text = file.read_text("utf-8")
    pins = [line for line in text.splitlines() if re.match(r"[a-z]", line)]
    assert pins
    assert [pin for pin in pins if "==" not in pin or not pin.endswith("\\")] == []
    assert [word for word in ("://", "-index-url", "--find-links", " @ ") if word in text] == []
