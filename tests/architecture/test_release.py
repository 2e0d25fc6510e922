"""What `scripts/release.py` holds a release to can fail. CI runs it on the real package."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import re
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from packaging.requirements import Requirement

from scripts import changelog, release, sbom, wheel_is_complete
from scripts.vendor_web import PACKAGES, SERVER

ROOT = Path(__file__).resolve().parents[2]
METADATA = """\
Metadata-Version: 2.4
Name: milecastle
Version: 1.2.0
License-Expression: Apache-2.0 AND 0BSD
Requires-Dist: msgspec>=0.21
Requires-Dist: numpy>=1.26; extra == 'numpy'
"""


def files() -> dict[str, bytes]:
    """The files of a small wheel: the real vendored ones, and a few."""
    vendored = (ROOT / SERVER).iterdir()
    return {
        "milecastle/version.py": b'__version__ = "1.2.0"\n',
        "milecastle-1.2.0.dist-info/METADATA": METADATA.encode(),
        **{f"{sbom.VENDOR}/{path.name}": path.read_bytes() for path in vendored},
    }


def pack(folder: Path, content: dict[str, bytes]) -> Path:
    wheel = folder / "milecastle-1.2.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return wheel


def listed(document: sbom.Json) -> list[str]:
    """The files that an SBOM lists, each as often as it does."""
    owners = [document["metadata"]["component"], *document["components"]]
    return [file["name"] for one in owners for file in one.get("components", [])]


def test_sbom_lists_each_file_once_and_nothing_else(tmp_path: Path) -> None:
    """Fails if files of the wheel are left out, or the vendored ones are listed as ours as well."""
    document = sbom.sbom(pack(tmp_path, files()), 0)
    assert sorted(listed(document)) == sorted(files())


def test_sbom_names_what_is_vendored_and_what_is_needed(tmp_path: Path) -> None:
    """Fails if an extra is listed as a dependency, or a vendored package without its version."""
    document = sbom.sbom(pack(tmp_path, files()), 0)
    shipped = [f"pkg:npm/{one.name}@{one.version}" for one in PACKAGES if one.target == SERVER]
    purls = [one["purl"] for one in document["components"]]
    assert len(shipped) == 2
    assert purls == [*shipped, "pkg:pypi/msgspec"]
    assert document["dependencies"][0]["dependsOn"] == purls


def test_sbom_of_the_same_wheel_is_the_same(tmp_path: Path) -> None:
    """Fails with a serial number or a time of day that is new each time."""
    wheel = pack(tmp_path, files())
    assert json.dumps(sbom.sbom(wheel, 7)) == json.dumps(sbom.sbom(wheel, 7))


def test_vendored_file_without_a_pin_is_refused(tmp_path: Path) -> None:
    """Fails if a new file under `vendor` is listed as ours."""
    with pytest.raises(SystemExit, match="left-pad"):
        sbom.sbom(pack(tmp_path, {**files(), f"{sbom.VENDOR}/left-pad.js": b"pad"}), 0)


@pytest.mark.parametrize("name", ["htmx.js", "idiomorph.LICENSE.txt"])
def test_vendored_file_other_than_the_pinned_one_is_refused(tmp_path: Path, name: str) -> None:
    """Fails if hashes are listed as found and not compared with `vendor_web.py`."""
    changed = files()
    changed[f"{sbom.VENDOR}/{name}"] += b" "
    with pytest.raises(SystemExit, match=name):
        sbom.sbom(pack(tmp_path, changed), 0)
    del changed[f"{sbom.VENDOR}/{name}"]
    with pytest.raises(SystemExit, match=name):
        sbom.sbom(pack(tmp_path, changed), 0)


def test_licences_of_dependencies_are_those_that_they_name() -> None:
    """Fails if a dependency changes its licence, or a new one has none in the table."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    names = {Requirement(one).name.replace(".", "-") for one in project["dependencies"]}
    vendored = {one.name for one in PACKAGES if one.target == SERVER}
    assert sbom.LICENCES.keys() == names | vendored
    for name in names:
        found = importlib.metadata.metadata(name)["License-Expression"]
        assert found == sbom.LICENCES[name], name
    shipped = {sbom.LICENCES[name] for name in vendored}
    assert project["license"] == " AND ".join(["Apache-2.0", *sorted(shipped)])


def test_wheel_has_nothing_besides_the_source_and_its_metadata(tmp_path: Path) -> None:
    """Fails if a file is taken for metadata because of where `dist-info` is in its name."""
    (tmp_path / "src" / "milecastle").mkdir(parents=True)
    (tmp_path / "src" / "milecastle" / "version.py").touch()
    content: dict[str, bytes] = dict.fromkeys(
        ("milecastle/version.py", "m-1.dist-info/RECORD", "notes.txt", "tests/x.dist-info"), b""
    )
    found = wheel_is_complete.surplus(pack(tmp_path, content), tmp_path / "src")
    assert found == ["notes.txt", "tests/x.dist-info"]


def test_sdist_is_what_is_committed(tmp_path: Path) -> None:
    """Fails if either direction of the comparison is left out."""
    sdist = tmp_path / "m-1.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name in ("m-1/PKG-INFO", "m-1/README.md", "m-1/notes.txt"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    committed = ["README.md", "src/a.py", ".gitattributes"]
    assert release.sdist_faults(sdist, committed) == [
        "not in the sdist: src/a.py",
        "in the sdist, but not committed: notes.txt",
    ]


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("## Unreleased\n\n- new\n", 0),
        ("## Unreleased\n\n## 1.2.0 - 2026-01-01\n- new\n", 0),
        ("## Unreleased\n- new\n\n## 1.1.0 - 2026-01-01\n- new\n", 0),
        ("## Unreleased\n\n## 1.1.0 - 2026-01-01\n- new\n", 1),
        ("## Unreleased\n- new\n\n## 1.10.0 - 2026-01-01\n- new\n", 1),
    ],
)
def test_changelog_and_version_agree(tmp_path: Path, text: str, faults: int) -> None:
    """Fails if versions are compared as text, or an empty section counts as one."""
    assert len(release.version_faults(pack(tmp_path, files()), text)) == faults


def test_version_of_the_metadata_and_of_the_module_agree(tmp_path: Path) -> None:
    """Fails if the module in the wheel is not read."""
    other = {**files(), "milecastle/version.py": b'__version__ = "1.2.1"\n'}
    assert len(release.version_faults(pack(tmp_path, other), "## Unreleased\n- new\n")) == 1


def test_release_gives_what_is_unreleased_a_version() -> None:
    """Fails if the new section is written below the text, or a second one for the same version."""
    before = "# Changelog\n\n## Unreleased\n\n### Added\n- b\n\n## 1.0.0 - 2026-01-01\n- a\n"
    after = changelog.released(before, "1.1.0", "2026-02-01")
    assert changelog.sections(after) == {
        "Unreleased": "",
        "1.1.0": "### Added\n- b",
        "1.0.0": "- a",
    }
    for version, message in (("1.1.0", "already"), ("1.2.0", "nothing")):
        with pytest.raises(ValueError, match=message):
            changelog.released(after, version, "2026-02-02")


def test_changelog_has_each_heading_once_in_a_section() -> None:
    """Fails on a second "### Fixed" under Unreleased, as two merges had left it."""
    twice = "## Unreleased\n### Fixed\n- b\n### Fixed\n- c\n## 1.0.0 - 2026-01-01\n### Fixed\n- a\n"
    assert changelog.repeated(twice) == ["Unreleased: Fixed"]
    assert changelog.repeated((release.ROOT / "CHANGELOG.md").read_text("utf-8")) == []


def test_builds_that_differ_are_not_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A builder that writes its path into the sdist. Fails if names are compared and not bytes."""

    def export(folder: Path) -> Path:
        folder.mkdir(parents=True)
        return folder

    def build(tree: Path, target: str, epoch: int, **environment: str) -> Path:
        built = tree.parent / ("m-1.whl" if target == "wheel" else "m-1.tar.gz")
        with tarfile.open(built, "w") as archive:
            archive.addfile(tarfile.TarInfo(f"m-1/{len(str(tree)) if leaks else 'x'}"))
        return built

    monkeypatch.setattr(release, "export", export)
    monkeypatch.setattr(release, "build", build)
    leaks = False
    (tmp_path / "1" / "another" / "machine" / "m-1").mkdir(parents=True)
    wheel, _ = release.build_twice(tmp_path / "1", 0)
    assert wheel.name == "m-1.whl"
    leaks = True
    (tmp_path / "2" / "another" / "machine" / "m-1").mkdir(parents=True)
    with pytest.raises(SystemExit, match="differ"):
        release.build_twice(tmp_path / "2", 0)


def test_a_python_that_does_not_run_is_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a shim that starts nothing is taken for a Python, or another version for this."""
    shim = tmp_path / "python3.99"
    shim.write_text("#!/bin/sh\nexit 127\n", encoding="utf-8")
    shim.chmod(0o755)
    other = tmp_path / ".pyenv" / "versions" / "3.99.0" / "bin" / "python"
    other.parent.mkdir(parents=True)
    other.symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert release.find_python("3.99", tmp_path) is None
    name = "{}.{}".format(*sys.version_info)
    found = tmp_path / ".pyenv" / "versions" / f"{name}.0" / "bin" / "python"
    found.parent.mkdir(parents=True)
    found.symlink_to(sys.executable)
    assert release.find_python(name, tmp_path) is not None


@pytest.mark.parametrize(
    ("urls", "is_fine"),
    [
        ([], False),
        (["Repository, https://repository.invalid/milecastle"], False),
        (["Repository, https://forge.example/m", "Site, https://site.invalid/"], False),
        (["Repository, nowhere"], False),
        (["Repository, https://forge.example/milecastle"], True),
    ],
)
def test_release_with_a_placeholder_for_an_address_is_refused(
    urls: list[str], is_fine: bool
) -> None:
    """Fails if one of several is looked at, or none is fine."""
    if is_fine:
        release.refuse_placeholders(urls)
    else:
        with pytest.raises(SystemExit, match="placeholder"):
            release.refuse_placeholders(urls)


def test_repository_is_named_in_one_place() -> None:
    """Messages and pages must not have an address of their own, which a move would leave behind."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    host = urlsplit(str(project["urls"]["Repository"])).hostname
    assert host
    for folder in ("src", "docs", "scripts", "examples", "deploy"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".md", ".toml", ".yaml", ".html", ".json", ".js"}:
                assert host not in path.read_text("utf-8"), path


_KNOWN = {"www.w3.org", "ag-ui.com", "localhost"}
"""Names of formats, and this machine."""


def test_messages_lead_to_no_address_that_may_not_exist() -> None:
    """Fails if a message, a page or a command names a site: there may be none, or another."""
    address = re.compile(r"https?://([A-Za-z0-9.-]+\.[a-z]+|localhost)")
    named = {
        host
        for path in (ROOT / "src").rglob("*")
        if path.suffix in {".py", ".html", ".md"} and "vendor" not in path.parts
        for host in address.findall(path.read_text("utf-8"))
    }
    assert {one for one in named - _KNOWN if not one.endswith((".example", "example.com"))} == set()
