"""Reads every page of a built site and reports links that lead nowhere.

Rules:

- Files and anchors are looked up in the folder; nothing is requested from a network.
- A link may lead to another host. A script, style sheet, font or picture may not come from there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit


class Link(NamedTuple):
    """What an element refers to, and whether a browser fetches it to show the page."""

    target: str
    fetched: bool


class Page(HTMLParser):
    """The links and the anchors of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[Link] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect an element's id and what it refers to."""
        for name, value in attrs:
            if name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value or "")
            elif name in ("href", "src", "srcset", "data", "poster") and value is not None:
                self.links.append(Link(value, fetched=tag != "a"))


def broken(site: Path) -> list[str]:
    """Return the links of a site that lead nowhere, each with its page."""
    pages = {path.resolve(): Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    if not pages:
        return [f"{site}: there are no pages"]
    return [
        f"{path.relative_to(site.resolve()).as_posix()}: {link.target}: {wrong}"
        for path, page in pages.items()
        for link in page.links
        if (wrong := _wrong(path, link, pages))
    ]


def _wrong(path: Path, link: Link, pages: dict[Path, Page]) -> str:
    """Return what is wrong with a link of a page; nothing if it is fine."""
    parts = urlsplit(link.target)
    if parts.scheme in ("data", "javascript", "mailto"):
        return ""
    if parts.scheme or parts.netloc:
        return "comes from another host" if link.fetched else ""
    if parts.path.startswith("/"):
        return "is absolute, and a version of the site is not at the top of its host"
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return "there is no such file"
    known = pages.get(target)
    if parts.fragment and known and unquote(parts.fragment) not in known.anchors:
        return "there is no such anchor"
    return ""


def main(arguments: Sequence[str]) -> int:
    """Report broken links of a folder; 1 if there are any."""
    parser = argparse.ArgumentParser(description="Report links of a built site that lead nowhere.")
    parser.add_argument("site", type=Path, help="the folder of the site")
    found = broken(parser.parse_args(arguments).site)
    for line in found:
        print(line, file=sys.stderr)
    print(f"{len(found)} broken links")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
