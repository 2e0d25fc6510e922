"""Prints pip's settings as environment variables of uv: ``python scripts/uv_settings.py``.

uv does not read pip's configuration; with these it looks for packages where pip would.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable

NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
}
SECTIONS = ("global.", "install.", ":env:.")
"""Those that concern an install; a later one wins."""


def settings(lines: Iterable[str]) -> dict[str, str]:
    """Return the variables for the lines of ``pip config list``."""
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # as pip: every index counts the same
    given = [line.partition("=")[::2] for line in lines]
    for section in SECTIONS:
        for key, value in given:
            name = NAMES.get(key.removeprefix(section)) if key.startswith(section) else None
            if name:
                separator = "," if name == "UV_FIND_LINKS" else " "
                found[name] = separator.join(ast.literal_eval(value).split())
    return found


if __name__ == "__main__":
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    print(*(f"{name}={value}" for name, value in settings(listed.splitlines()).items()), sep="\n")
