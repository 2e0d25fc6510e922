"""Brings htmx and idiomorph into the server, and axe-core into the tests of its pages.

`npm pack`, hashes compared, files copied.

Run it to renew the copies after a change of `PACKAGES`. Node.js is needed for this alone: the files
are committed, and nothing at build, install or run time fetches them. Give a folder to take
tarballs from there instead of packing them.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
SERVER: Final = "src/milecastle/server/static/vendor"
TESTS: Final = "tests/browser/vendor"


class Package(NamedTuple):
    """A package of npm at one version; `files` are (its path, our name, its SHA-256)."""

    target: str
    name: str
    version: str
    tarball: str
    files: tuple[tuple[str, str, str], ...]


PACKAGES: Final = (
    Package(
        SERVER,
        "htmx.org",
        "2.0.11",
        "165a2655073e9e6e55e307a7c74e8ebcdb76afb7701f9c16cfd106a13add408e",
        (
            (
                "dist/htmx.min.js",
                "htmx.js",
                "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
            ),
            (
                "LICENSE",
                "htmx.LICENSE.txt",
                "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
            ),
        ),
    ),
    Package(
        TESTS,
        "axe-core",
        "4.14.0",
        "2277b0a3ef47af9b52497faa3e71598e86e0a0e5e6eb295207a5657ede4709af",
        (
            (
                "axe.min.js",
                "axe.js",
                "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878",
            ),
            (
                "LICENSE",
                "axe.LICENSE.txt",
                "af175b9d96ee93c21a036152e1b905b0b95304d4ae8c2c921c7609100ba8df7e",
            ),
        ),
    ),
    Package(
        SERVER,
        "idiomorph",
        "0.8.0",
        "c2b48584153f0167b5c98cb815576338ccd82a97378e53fbf29d139dfd67207e",
        (
            (
                "dist/idiomorph-ext.min.js",
                "idiomorph.js",
                "5811b9a7eda14878b7dab4378bf60432e1bb6f11fcfb970cc26540642650181e",
            ),
            (
                "LICENSE",
                "idiomorph.LICENSE.txt",
                "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
            ),
        ),
    ),
)


def checked(content: bytes, wanted: str, what: str) -> bytes:
    """The content, if it has the hash that is pinned."""
    found = hashlib.sha256(content).hexdigest()
    if found != wanted:
        raise SystemExit(f"{what} has the SHA-256 {found}, not {wanted}: nothing was written")
    return content


def unpacked(package: Package, folder: Path) -> dict[str, bytes]:
    """The files of a package by where they go, from its tarball in a folder."""
    place = folder / f"{package.name}-{package.version}.tgz"
    checked(place.read_bytes(), package.tarball, place.name)
    found: dict[str, bytes] = {}
    with tarfile.open(place) as archive:
        for path, name, wanted in package.files:
            member = archive.extractfile(f"package/{path}")
            if member is None:
                raise SystemExit(f"{place.name} has no file {path}")
            found[f"{package.target}/{name}"] = checked(
                member.read(), wanted, f"{path} of {package.name}"
            )
    return found


def main(arguments: list[str]) -> int:
    """Write the files, all of them or none."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments[0] if arguments else temporary)
        if not arguments:
            names = [f"{one.name}@{one.version}" for one in PACKAGES]
            subprocess.run(["npm", "pack", "--silent", *names], cwd=folder, check=True)
        files = [item for one in PACKAGES for item in unpacked(one, folder).items()]
    for name, content in files:
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_bytes(content)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
