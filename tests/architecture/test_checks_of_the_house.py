"""The scripts that CI trusts can fail."""

from __future__ import annotations

import json
import re
import tomllib
import zipfile
from pathlib import Path

import pytest

from scripts import coverage_bars, uv_settings, wheel_is_complete

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("lines", "branches", "code"), [(95, 95, 0), (100, 94, 1), (94, 100, 1)])
def test_lines_and_branches_each_have_their_bar(
    tmp_path: Path, lines: int, branches: int, code: int
) -> None:
    """What two processes covered counts together."""
    for number, branch in enumerate((range(50), range(50, branches))):
        file = {
            "executed_lines": [*range(1, lines + 1)],
            "missing_lines": [*range(lines + 1, 101)],
            "executed_branches": [[each, each + 1] for each in branch],
            "missing_branches": [[each, each + 1] for each in range(100) if each not in branch],
        }
        report = {"files": {"module.py": file}}
        (tmp_path / f"gw{number}.json").write_text(json.dumps(report), encoding="utf-8")
    assert coverage_bars.main([str(tmp_path)]) == code


def test_no_report_is_no_coverage(tmp_path: Path) -> None:
    """Passed with 100 %: tests that did not start left an empty folder."""
    assert coverage_bars.main([str(tmp_path)]) == 1


def test_a_file_left_out_of_the_wheel_is_named(tmp_path: Path) -> None:
    source = tmp_path / "src"
    for name in ("package/__init__.py", "package/py.typed", "package/__pycache__/x.pyc"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).touch()
    wheel = tmp_path / "package.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("package/__init__.py", "")
    assert wheel_is_complete.missing(wheel, source) == [
        "milecastle/cli/errors.md",
        "package/py.typed",
    ]


def test_no_file_of_the_package_is_empty() -> None:
    """Seen to fail with the file `cli/nothing`. The typing marker is empty by its definition."""
    files = [path for path in (ROOT / "src").rglob("*") if path.is_file()]
    assert [path.name for path in files if not path.stat().st_size] == ["py.typed"]


@pytest.mark.parametrize("file", sorted((ROOT / "constraints").glob("*.txt")), ids=lambda f: f.name)
def test_every_pin_has_hashes_and_no_address(file: Path) -> None:
    text = file.read_text("utf-8")
    pins = [line for line in text.splitlines() if re.match(r"[a-z]", line)]
    assert pins
    assert [pin for pin in pins if "==" not in pin or not pin.endswith("\\")] == []
    assert [word for word in ("://", "-index-url", "--find-links", " @ ") if word in text] == []


def test_uv_looks_for_packages_where_pip_does() -> None:
    """Seen to fail with the sections in the other order: the file won over the environment."""
    listed = [
        ":env:.index-url='https://user:word@mirror.example/simple'",
        ":env:.timeout='180'",
        "freeze.index-url='https://other.example/simple'",
        "global.cert='/etc/certs.crt'",
        "global.extra-index-url='\\nhttps://one.example\\nhttps://two.example'",
        "global.find-links='/wheels /more'",
        "global.index-url='https://file.example/simple'",
    ]
    assert uv_settings.settings(listed) == {
        "SSL_CERT_FILE": "/etc/certs.crt",
        "UV_DEFAULT_INDEX": "https://user:word@mirror.example/simple",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_INDEX": "https://one.example https://two.example",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


def test_lowest_versions_are_those_that_the_package_allows() -> None:
    """CI tests the floors that users get, each of them, and not others.

    Seen to fail with a floor that was raised and not locked, and with a pin that was left out.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    for agents in ("anthropic", "mcp", "openai", "openai-agents", "pydantic-ai"):
        del extras[agents]  # they need more than the floors of others
    del extras["ray"]  # its floor is the version that constraints/ray.txt pins
    needed = [*project["dependencies"], *(one for extra in extras.values() for one in extra)]
    pinned = (ROOT / "constraints" / "lowest.txt").read_text("utf-8")
    versions = dict(re.findall(r"^([a-z0-9-]+)==([0-9.]+)", pinned, flags=re.MULTILINE))
    for requirement in needed:
        found = re.match(r"([A-Za-z0-9._-]+)(?:\[[a-z,]+\])?>=([0-9.]+)", requirement)
        assert found, f"{requirement} has no floor"
        name = re.sub(r"[._]", "-", found[1]).lower()
        assert f"{versions[name]}.".startswith(f"{found[2]}."), (requirement, versions[name])
    assert "constraints/lowest.txt" in (ROOT / ".ci" / "run").read_text("utf-8")
