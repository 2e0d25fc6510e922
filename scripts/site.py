"""Builds the documentation site, for the version of the package, into `build/site/public`.

Rules:

- Pages are written for a forge and are not changed here: copies of them are. Links to files outside
  `docs/` lead to copies as well, and what follows the language of a code block is left out.
- `docs/index.md` is the navigation: headings are sections, links are pages. A page that is not in
  it fails the build, as does each warning, and each link that leads nowhere.
- Other versions in `build/site/public` stay, and the version selector lists them: put there what is
  published, build, and publish the whole folder. Pages of all but the newest say so in a banner.
- The page for addresses that do not exist is at the top, for all versions: hosts look for it there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from html import unescape
from pathlib import Path, PurePosixPath
from typing import Any

from scripts import site_links

ROOT = Path(__file__).resolve().parent.parent
SOURCE, PUBLIC = Path("build/site/source"), Path("build/site/public")
CONFIG = Path("mkdocs.yml")
THEME, NOT_FOUND = Path("scripts/site_theme"), Path("scripts/site_theme/not-found.html")
ASSETS = (Path("scripts/site.css"), Path("src/milecastle/server/static/milecastle.svg"))
API = PurePosixPath("reference/api")
ELSEWHERE = re.compile(r"[a-z]+:|#")
LINK = re.compile(r'(\]\(|\b(?:src|srcset|href)=")([^)#\s"]+)')
ENTRY = re.compile(r"- \[([^\]]+)\]\(([^)]+)\)")
FENCE = re.compile(r"```(\w+)(.*)")
FIRST_CELL = re.compile(r"(<thead>\s*<tr>\s*<th)")
DRAWING = re.compile(r'<p>((?:<a [^>]*>)?<img [^>]*src="[^"]*\.(?:svg|png)"[^>]*>(?:</a>)?)</p>')
CELL = re.compile(r"<(t[dh])>(.*?)</\1>", flags=re.DOTALL)
WORDS = 30
"""Characters from which a cell of a table is a sentence, and not to be squeezed."""
SHORT_CODE = re.compile(r"<code>([^<\n]{1,28})</code>")
NAME = re.compile(r'<span class="n">(\w+)</span>')
CODE = re.compile(
    r"<(a|h\d|pre)\b.*?</\1>|<code>([A-Z]\w*(?:\.\w+)?)(?:\(\))?</code>", flags=re.DOTALL
)

Places = Mapping[Path, PurePosixPath]
"""Where each file of the repository is on the site, both as paths from the top."""


class SiteError(Exception):
    """The site cannot be built; the message says why."""


def places(root: Path) -> Places:
    """Return the files of the site: all of `docs/`, the pages at the top, the examples."""
    found: dict[Path, PurePosixPath] = {}
    for path in sorted((root / "docs").rglob("*")):
        if path.is_file():
            found[path.relative_to(root)] = PurePosixPath(path.relative_to(root / "docs"))
    for path in sorted(root.glob("*.md")):
        found[Path(path.name)] = PurePosixPath(path.name.lower().replace("readme", "quickstart"))
    for path in sorted((root / "examples").rglob("*.*")):
        if path.suffix in (".md", ".py"):
            place = PurePosixPath(path.relative_to(root))
            found[path.relative_to(root)] = place.with_suffix(".md")
    twice = len(found) - len(set(found.values()))
    if twice:
        raise SiteError(f"{twice} pages have the name of another one on the site")
    return found


def page_of(path: Path, text: str, where: Places) -> str:
    """Return the text of a page as it is on the site."""
    if path.suffix == ".py":
        return f"# {path.name}\n\n```python\n{text}```\n"
    lines: list[str] = []
    fenced = False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
            lines.append(_fence(line, where[path]))
        else:
            lines.append(line if fenced else LINK.sub(lambda link: _moved(link, path, where), line))
    return "\n".join(lines) + "\n"


def _fence(line: str, place: PurePosixPath) -> str:
    found = FENCE.match(line)
    if found is None:
        return line
    if found[1] == "mermaid":
        raise SiteError(f"{place} has a Mermaid diagram, which the site shows as text: draw an SVG")
    language = "python" if place.parent == API and found[1] == "text" else found[1]
    return f"```{language}" + (' title="Output"' if found[2] == " output" else "")


def _moved(link: re.Match[str], path: Path, where: Places) -> str:
    """Return a link of a page so that it leads to the same file on the site."""
    if ELSEWHERE.match(link[2]):
        return link[0]
    target = Path(os.path.normpath(path.parent / link[2]))
    if target not in where:
        raise SiteError(f"{path.as_posix()} links to {link[2]}, which is not on the site")
    return link[1] + _relative(where[target], where[path])


def _relative(target: PurePosixPath, page: PurePosixPath) -> str:
    return Path(os.path.relpath(target, page.parent)).as_posix()


def navigation(index: Path, text: str, where: Places) -> list[dict[str, Any]]:
    """Return the sections, groups and pages of the index, in the form of the site generator."""
    sections: list[dict[str, Any]] = [{"Home": where[index].as_posix()}]
    listed = {where[index]}
    entries: list[dict[str, Any]] = []
    for line in text.splitlines():
        if line.startswith("## "):
            entries = []
            sections.append({line[3:]: entries})
        elif line.startswith("### "):
            entries = []
            next(iter(sections[-1].values())).append({line[4:]: entries})
        elif found := ENTRY.match(line):
            target = Path(os.path.normpath(index.parent / found[2]))
            entries.append({found[1].partition(":")[0]: where[target].as_posix()})
            listed.add(where[target])
    pages = {place for path, place in where.items() if path.suffix == ".md"}
    if missing := sorted(map(str, pages - listed)):
        raise SiteError(f"{index.as_posix()} does not list {', '.join(missing)}")
    return sections


def write_source(root: Path, source: Path) -> Places:
    """Write what the site generator reads: its configuration and the pages."""
    shutil.rmtree(source, ignore_errors=True)
    where = places(root)
    for path, place in where.items():
        target = source / "pages" / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if place.suffix == ".md":
            text = page_of(path, (root / path).read_text("utf-8"), where)
            target.write_text(text, encoding="utf-8", newline="\n")
        else:
            shutil.copyfile(root / path, target)
    for asset in ASSETS:
        shutil.copyfile(root / asset, source / "pages" / asset.name)
    shutil.copytree(root / THEME, source / "theme")
    index = Path("docs/index.md")
    sections = navigation(index, (root / index).read_text("utf-8"), where)
    settings = (root / CONFIG).read_text("utf-8")
    (source / CONFIG).write_text(f"{settings}\nnav: {json.dumps(sections)}\n", encoding="utf-8")
    return where


def names_of(pages: Path) -> dict[str, str]:
    """Return where each name of the API reference is described: a path with an anchor."""
    found: dict[str, str] = {}
    for page in sorted((pages / API).glob("*.md")):
        for name in re.findall(r"^##+ ([\w.]+)$", page.read_text("utf-8"), flags=re.MULTILINE):
            anchor = name.lower().replace(".", "")
            found.setdefault(name, f"{API / page.stem}.html#{anchor}")
    return found


def finish(site: Path, names: Mapping[str, str], version: str) -> None:
    """Link names in signatures, and names in the text of every page, to the API reference.

    For people who use no mouse, wide tables and drawings can be scrolled: the first cell takes the
    focus, and so does the paragraph of a drawing. For screen readers, the label of the button that
    shows the version contains the version. Cells with sentences and short code are marked for
    the style sheet.
    """
    for page in sorted(site.rglob("*.html")):
        here = PurePosixPath(page.relative_to(site).as_posix())

        def link(name: str | None, shown: str, here: PurePosixPath = here) -> str:
            if name is None or name not in names:
                return shown
            return f'<a href="{_relative(PurePosixPath(names[name]), here)}">{shown}</a>'

        text = page.read_text("utf-8").replace("Select version", f"{version}, select a version")
        if here.parent == API:
            text = NAME.sub(lambda found: link(found[1], found[0]), text)
        text = CODE.sub(lambda found: link(found[2], found[0]), text)
        text = FIRST_CELL.sub(r'\1 tabindex="0"', CELL.sub(_cell, text))
        text = SHORT_CODE.sub(r'<code class="short">\1</code>', text)
        text = DRAWING.sub(r'<p class="drawing" tabindex="0">\1</p>', text)
        page.write_text(text, encoding="utf-8", newline="\n")


def _cell(cell: re.Match[str]) -> str:
    """Return a cell of a table, marked if it has a sentence."""
    long = len(unescape(re.sub(r"<[^>]+>", "", cell[2]))) >= WORDS
    return f'<{cell[1]} class="words">{cell[2]}</{cell[1]}>' if long else cell[0]


def publish(site: Path, public: Path, version: str) -> None:
    """Put a site beside those of other versions, and list them for the version selector."""
    shutil.rmtree(public / version, ignore_errors=True)
    shutil.copytree(site, public / version)
    known = sorted((path.name for path in public.iterdir() if path.is_dir()), key=_order)[::-1]
    rows = [
        {"version": name, "title": name, "aliases": ["latest"] if name == known[0] else []}
        for name in known
    ]
    (public / "versions.json").write_text(json.dumps(rows), encoding="utf-8")
    shutil.copyfile(ROOT / NOT_FOUND, public / "404.html")
    (public / "index.html").write_text(
        '<!doctype html><html lang="en"><title>Milecastle documentation</title>'
        f'<meta http-equiv="refresh" content="0; url={known[0]}/index.html">'
        f'<a href="{known[0]}/index.html">Milecastle documentation</a></html>\n',
        encoding="utf-8",
    )


def _order(version: str) -> list[tuple[int, str]]:
    """Return what versions are sorted by: their numbers."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in version.split(".")]


def main() -> int:
    """Build the site and check its links; 1 if something is wrong."""
    source, public = ROOT / SOURCE, ROOT / PUBLIC
    version = re.findall(r'"(.+)"', (ROOT / "src/milecastle/version.py").read_text("utf-8"))[-1]
    try:
        write_source(ROOT, source)
    except SiteError as error:
        print(error, file=sys.stderr)
        return 1
    built = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"], cwd=source, check=False
    )
    if built.returncode:
        return 1
    (source / "site" / "404.html").unlink()  # its links are those of a site at the top of its host
    finish(source / "site", names_of(source / "pages"), version)
    publish(source / "site", public, version)
    return site_links.main([str(public / version)])


if __name__ == "__main__":
    sys.exit(main())
