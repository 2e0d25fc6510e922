"""Lists what a wheel ships and needs, as a CycloneDX 1.6 document.

- Every file of the wheel is listed once, with its SHA-256: ours under the library itself, the
  vendored ones (`scripts/vendor_web.py`) under the package that they come from.
- Dependencies at run time are listed with their requirement and without a version: what is
  installed is decided by the user's installer. Extras are not listed.
- The same wheel and time give the same bytes.
"""

from __future__ import annotations

import hashlib
import uuid
import zipfile
from datetime import UTC, datetime
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement

from scripts.vendor_web import PACKAGES, SERVER, Package

LICENCES: Final = {
    "htmx.org": "0BSD",
    "idiomorph": "0BSD",
    "backports-zstd": "PSF-2.0",
    "click": "BSD-3-Clause",
    "msgspec": "BSD-3-Clause",
}
"""SPDX names, by package: of what is shipped with ours, and of what it needs."""

VENDOR: Final = SERVER.removeprefix("src/")

Json = dict[str, Any]


def read_wheel(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata(files: dict[str, bytes]) -> Message:
    """The METADATA of a wheel."""
    [name] = [name for name in files if name.endswith(".dist-info/METADATA")]
    return BytesParser().parsebytes(files[name])


def sbom(wheel: Path, made: int) -> Json:
    """The document for a wheel; `made` is seconds since 1970."""
    files = read_wheel(wheel)
    about = metadata(files)
    needed = [Requirement(line) for line in about.get_all("Requires-Dist") or []]
    needed = [one for one in needed if "extra" not in str(one.marker)]
    own = f"pkg:pypi/{about['Name']}@{about['Version']}"
    vendored = [_vendored(package, files) for package in PACKAGES if package.target == SERVER]
    parts = [*vendored, *(_dependency(one) for one in needed)]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    listed = {file["name"] for one in vendored for file in one["components"]}
    ours = sorted(files.keys() - listed)
    if strange := [name for name in ours if name.startswith(f"{VENDOR}/")]:
        raise SystemExit(f"vendored, but not named in scripts/vendor_web.py: {strange}")
    library = {
        "type": "library",
        "bom-ref": own,
        "name": about["Name"],
        "version": about["Version"],
        "purl": own,
        "licenses": [{"expression": about["License-Expression"]}],
        "hashes": [{"alg": "SHA-256", "content": digest}],
        "components": [_file(name, files[name]) for name in ours],
    }
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{own}#{digest}')}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(made, UTC).isoformat(),
            "lifecycles": [{"phase": "build"}],
            "component": library,
        },
        "components": parts,
        "dependencies": [
            {"ref": own, "dependsOn": [one["bom-ref"] for one in parts]},
            *({"ref": one["bom-ref"]} for one in parts),
        ],
    }


def _file(name: str, content: bytes) -> Json:
    digest = hashlib.sha256(content).hexdigest()
    return {"type": "file", "name": name, "hashes": [{"alg": "SHA-256", "content": digest}]}


def _vendored(package: Package, files: dict[str, bytes]) -> Json:
    """A package of which the wheel has copies; they must be those that are pinned."""
    purl = f"pkg:npm/{package.name}@{package.version}"
    copies: list[Json] = []
    for _, name, pinned in package.files:
        copy = _file(f"{VENDOR}/{name}", files.get(f"{VENDOR}/{name}", b""))
        if copy["hashes"][0]["content"] != pinned:
            raise SystemExit(f"{copy['name']} is not the file of {package.name} that is pinned")
        copies.append(copy)
    return {
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": package.version,
        "purl": purl,
        "licenses": [{"license": {"id": LICENCES[package.name]}}],
        "components": copies,
    }


def _dependency(needed: Requirement) -> Json:
    """What an installer brings with the wheel."""
    return {
        "type": "library",
        "bom-ref": f"pkg:pypi/{needed.name}",
        "name": needed.name,
        "purl": f"pkg:pypi/{needed.name}",
        "licenses": [{"license": {"id": LICENCES[needed.name]}}],
        "properties": [{"name": "milecastle:requirement", "value": str(needed)}],
    }
