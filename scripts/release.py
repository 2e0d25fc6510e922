"""Builds what is published, twice, and checks it. Publishes nothing.

- Built is the commit, never the working tree: a file that is not committed is not released.
- The second build has another path, other modes and times of files, another time zone, and makes
  its wheel from its sdist. Both builds have the same bytes, or there is no release.
- `OUT` gets the wheel, the sdist, `SHA256SUMS` (what is attested), the SBOM and the notes.

`python -m scripts.release OUT` is what CI runs. `--full` is for a release: it wants the
address of the repository and a changelog section, and runs twine, the CycloneDX schema, and an
installation on every Python found.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from packaging.version import Version

from scripts import changelog
from scripts.long_description import is_placeholder
from scripts.sbom import metadata, read_wheel, sbom
from scripts.wheel_is_complete import missing, surplus

ROOT: Final = Path(__file__).resolve().parent.parent
NOT_IN_SDIST: Final = {".editorconfig", ".gitattributes"}
"""What git and editors read. Everything else that is committed is needed to build or to test."""

PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14", "3.14t")


def git(*words: str) -> bytes:
    """What git says about this repository."""
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True).stdout


def unpack(archive: Path, folder: Path) -> Path:
    """The files of an archive that we made; the tarfile of early 3.11 has no filters."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-xf", str(archive), "-C", str(folder)], check=True)
    return folder


def export(folder: Path) -> Path:
    """The files of the commit, and nothing else, in a new folder."""
    folder.parent.mkdir(parents=True)
    archive = folder.parent / "commit.tar"
    archive.write_bytes(git("archive", "HEAD"))
    return unpack(archive, folder)


def disguise(tree: Path) -> Path:
    """Give files the modes and times that they have on another machine."""
    for path in tree.rglob("*"):
        path.chmod(path.stat().st_mode & 0o700)
        os.utime(path, (1_000_000_000, 1_000_000_000))
    return tree


def build(tree: Path, target: str, epoch: int, **environment: str) -> Path:
    """Build the sdist or the wheel of a tree."""
    out = tree.parent / "dist"
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)],
        cwd=tree,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch), **environment},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    [built] = out.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


def build_twice(work: Path, epoch: int) -> tuple[Path, Path]:
    """The wheel and the sdist, if two builds that have nothing in common but the commit agree."""
    here = export(work / "here" / "tree")
    wheel, sdist = build(here, "wheel", epoch), build(here, "sdist", epoch)
    far = work / "another" / "machine"
    other = build(disguise(export(far / "tree")), "sdist", epoch, TZ="Asia/Tokyo", LC_ALL="C")
    unpacked = disguise(unpack(other, far) / other.name.removesuffix(".tar.gz"))
    for first, second in ((sdist, other), (wheel, build(unpacked, "wheel", epoch, TZ="Etc/GMT+9"))):
        if first.name != second.name or first.read_bytes() != second.read_bytes():
            raise SystemExit(f"two builds of {first.name} differ: no release")
    return wheel, sdist


def sdist_faults(sdist: Path, committed: Iterable[str]) -> list[str]:
    """What an sdist lacks, and what it has that is not committed."""
    with tarfile.open(sdist) as archive:
        held = {one.name.split("/", 1)[1] for one in archive if one.isfile()}
    wanted = {*committed, "PKG-INFO"} - NOT_IN_SDIST
    return [
        *(f"not in the sdist: {name}" for name in sorted(wanted - held)),
        *(f"in the sdist, but not committed: {name}" for name in sorted(held - wanted)),
    ]


def version_faults(wheel: Path, text: str) -> list[str]:
    """Where the wheel's metadata, `milecastle.__version__` and the changelog disagree."""
    files = read_wheel(wheel)
    version = metadata(files)["Version"]
    faults: list[str] = []
    if f'__version__ = "{version}"' not in files["milecastle/version.py"].decode():
        faults.append(f"the wheel is {version}, version.py in it says otherwise")
    found = changelog.sections(text)
    newest = next((name for name in found if name != changelog.UNRELEASED), None)
    if newest and Version(newest) > Version(version):
        faults.append(f"the changelog has {newest}, the wheel is {version}")
    if newest != version and not found.get(changelog.UNRELEASED):
        faults.append(f"the changelog has nothing for {version}")
    return faults


def check(wheel: Path, sdist: Path, tree: Path) -> None:
    """End with every fault of what was built."""
    committed = git("ls-tree", "-r", "--name-only", "-z", "HEAD").decode().split("\0")
    faults = [
        *(f"not in the wheel: {name}" for name in missing(wheel, tree / "src")),
        *(f"in the wheel, but not in src: {name}" for name in surplus(wheel, tree / "src")),
        *sdist_faults(sdist, filter(None, committed)),
        *version_faults(wheel, (tree / "CHANGELOG.md").read_text("utf-8")),
    ]
    if faults:
        raise SystemExit("\n".join(faults))


def checksums(files: Iterable[Path]) -> str:
    """What `sha256sum --check` reads, and what the workflow attests."""
    return "".join(f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in files)


def refuse_placeholders(urls: Iterable[str]) -> None:
    """End if `[project.urls]` names no repository, or still the placeholder."""
    found = [one.partition(", ")[2] for one in urls]
    if not found or any(is_placeholder(one) for one in found):
        raise SystemExit(
            "[project.urls] of pyproject.toml has a placeholder: name the repository, commit, "
            "release again"
        )


def write_changelog(version: str) -> None:
    """End if the changelog had no section of this version: the new one has to be committed."""
    path = ROOT / "CHANGELOG.md"
    text = path.read_text("utf-8")
    if version not in changelog.sections(text):
        today = datetime.now(UTC).date().isoformat()
        path.write_text(changelog.released(text, version, today), "utf-8")
        raise SystemExit(
            f"CHANGELOG.md has a section {version} now: read it, commit, release again"
        )
    if git("status", "--porcelain"):
        raise SystemExit("something is not committed: no release")


VALIDATE: Final = """
import pathlib, sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
text = pathlib.Path(sys.argv[1]).read_text("utf-8")
sys.exit(JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) and "not CycloneDX 1.6")
"""


def check_for_publishing(wheel: Path, sdist: Path, bom: Path) -> None:
    """What takes packages that CI does not have: those of `constraints/release.in`."""
    for words in (
        ["-m", "twine", "check", "--strict", str(wheel), str(sdist)],
        ["-c", VALIDATE, str(bom)],
    ):
        subprocess.run([sys.executable, *words], check=True)


WHICH: Final = """
import sys, sysconfig
free = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
print(sys.executable, "{}.{}".format(*sys.version_info) + free, sep="\\n")
"""


def find_python(name: str, home: Path) -> str | None:
    """A Python of this version that runs: pyenv has a shim also for one that it does not start."""
    installed = sorted(home.glob(f".pyenv/versions/{name.removesuffix('t')}*/bin/python"))
    for candidate in (shutil.which(f"python{name}"), *map(str, installed)):
        if candidate is None:
            continue
        said = subprocess.run(
            [candidate, "-c", WHICH], check=False, capture_output=True, text=True
        ).stdout.split("\n")
        if said[1:2] == [name]:
            return said[0]
    return None


def install_everywhere(wheel: Path, work: Path, version: str) -> None:
    """Install into an empty environment of each Python found, with what it brings, and start it."""
    for name in PYTHONS:
        if not (found := find_python(name, Path.home())):
            print(f"Python {name}: not found, not tried")
            continue
        subprocess.run([found, "-m", "venv", str(work / name)], check=True)
        python, command = (str(work / name / "bin" / one) for one in ("python", "milecastle"))
        subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True)
        subprocess.run([python, "-m", "pip", "check"], check=True)
        program = "import milecastle; print(milecastle.__version__)"
        said = [
            subprocess.run(one, check=True, capture_output=True, text=True, cwd=work).stdout.strip()
            for one in ([python, "-P", "-c", program], [command, "--version"])
        ]
        if said[0] != version or version not in said[1]:
            raise SystemExit(f"Python {name}: {version} was installed, and says {said}")
        print(f"Python {name}: installed and started")


def main(arguments: list[str]) -> int:
    """Build, check and write."""
    parser = argparse.ArgumentParser(description="Build and check what is published.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--full", action="store_true")
    given = parser.parse_args(arguments)
    out: Path = given.out
    epoch = int(git("log", "-1", "--format=%ct"))
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        wheel, sdist = build_twice(work, epoch)
        check(wheel, sdist, work / "here" / "tree")
        version = str(metadata(read_wheel(wheel))["Version"])
        if given.full:
            refuse_placeholders(metadata(read_wheel(wheel)).get_all("Project-URL", []))
            write_changelog(version)
        out.mkdir(parents=True, exist_ok=True)
        for old in out.glob("milecastle-*"):
            old.unlink()
        wheel, sdist = (Path(shutil.copy(one, out)) for one in (wheel, sdist))
        bom = out / f"milecastle-{version}.cdx.json"
        bom.write_text(json.dumps(sbom(wheel, epoch), indent=1) + "\n", "utf-8")
        (out / "SHA256SUMS").write_text(checksums([wheel, sdist]), "utf-8")
        if given.full:
            check_for_publishing(wheel, sdist, bom)
            install_everywhere(wheel, work, version)
            notes = changelog.sections((ROOT / "CHANGELOG.md").read_text("utf-8"))[version]
            (out / "notes.md").write_text(notes + "\n", "utf-8")
    print((out / "SHA256SUMS").read_text("utf-8"), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
