"""The workflows of the forge run what they may run, on the Pythons that the package names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").iterdir())
PINNED = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


def actions(text: str) -> list[str]:
    return re.findall(r"^\s*(?:- )?uses: (.+)$", text, flags=re.MULTILINE)


def pythons() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return re.findall(r":: (3\.\d+)", "\n".join(project["classifiers"]))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    """Fails with `actions/checkout@v7`, and with a commit whose version is not said."""
    found = actions(path.read_text("utf-8"))
    assert found
    assert [one for one in found if not PINNED.fullmatch(one)] == []


def test_an_action_has_the_same_commit_everywhere() -> None:
    """Fails if one of two uses is updated."""
    found = {one for path in WORKFLOWS for one in actions(path.read_text("utf-8"))}
    assert len({one.split("@")[0] for one in found}) == len(found)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_job_has_the_rights_that_it_names_and_no_others(path: Path) -> None:
    """Fails if the line is left out: then every job may do what the repository's default is."""
    text = path.read_text("utf-8")
    assert "\npermissions: {}\n" in text
    assert "pull_request_target" not in text
    assert "secrets." not in text


def test_every_python_that_is_named_is_tested() -> None:
    """Fails if a version is added to the classifiers, the workflow or CI alone."""
    tests = (ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8")
    matrix = re.search(r"python: \[(.*)\]", tests)
    assert matrix
    assert re.findall(r"3\.\d+", matrix[1]) == pythons()
    versions = re.search(r"VERSIONS=\((.*)\)", (ROOT / ".ci" / "run").read_text("utf-8"))
    assert versions
    assert versions[1].split() == pythons()
