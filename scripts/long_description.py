"""Makes the page of the package index from README.md, when a package is built (hatchling calls it).

An index shows the page alone, so links and pictures of the repository would lead nowhere. If
`[project.urls]` names the repository, they lead to the tag of this version there. If it is still a
placeholder, a link becomes its text, and a picture its description. Of a picture in two colours
the light one is taken.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)]+)\)")
PICTURE: Final = re.compile(r'<picture>.*?<img alt="([^"]*)" src="([^"]*)"></picture>')
FENCED: Final = re.compile(r"(^```.*?^```)", flags=re.MULTILINE | re.DOTALL)
INFO: Final = re.compile(r"^(```\w+) .*")


def is_placeholder(url: str) -> bool:
    """No host ends like that, by RFC 2606."""
    return (urlsplit(url).hostname or ".invalid").endswith(".invalid")


def for_index(text: str, repository: str | None, version: str) -> str:
    """Return the text of README.md so that it can be read elsewhere. Code stays as it is."""

    def moved(link: re.Match[str]) -> str:
        if repository is None:
            return f"*{link[2]}*" if link[1] else link[2]
        kind = "raw" if link[1] else "blob"
        return f"{link[1]}[{link[2]}]({repository}/{kind}/v{version}/{link[3]})"

    return "".join(
        INFO.sub(r"\1", part)
        if part.startswith("```")
        else LINK.sub(moved, PICTURE.sub(r"![\1](\2)", part))
        for part in FENCED.split(text)
    )


class ReadmeHook(MetadataHookInterface):
    """Sets the field `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Read README.md beside pyproject.toml."""
        text = (Path(self.root) / "README.md").read_text("utf-8")
        repository = metadata.get("urls", {}).get("Repository")
        known = None if repository is None or is_placeholder(repository) else repository
        fresh = for_index(text, known, str(metadata["version"]))
        metadata["readme"] = {"content-type": "text/markdown", "text": fresh}
