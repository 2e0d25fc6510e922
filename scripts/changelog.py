"""Reads and writes the sections of `CHANGELOG.md`.

`## Unreleased` collects what is new. A release gives it a version and a date, and begins the next.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

UNRELEASED: Final = "Unreleased"
_HEADING: Final = re.compile(r"^## (\S+)(?: - (\d{4}-\d\d-\d\d))?$", re.MULTILINE)


def sections(text: str) -> dict[str, str]:
    """The text of each section by its version, the newest first, `Unreleased` included."""
    found = list(_HEADING.finditer(text))
    ends = [*(one.start() for one in found[1:]), len(text)]
    return {one[1]: text[one.end() : end].strip() for one, end in zip(found, ends, strict=True)}


def released(text: str, version: str, day: str) -> str:
    """The same with what is unreleased as the section of a version."""
    if version in sections(text):
        raise ValueError(f"CHANGELOG.md has a section {version} already")
    if not sections(text).get(UNRELEASED):
        raise ValueError("CHANGELOG.md has nothing under Unreleased")
    return text.replace(f"## {UNRELEASED}\n", f"## {UNRELEASED}\n\n## {version} - {day}\n", 1)


def repeated(text: str) -> list[str]:
    """The headings that a section has twice, each with its version."""
    return [
        f"{version}: {heading}"
        for version, section in sections(text).items()
        for heading, count in Counter(re.findall(r"^### (.+)$", section, re.MULTILINE)).items()
        if count > 1
    ]
