"""Draws the diagrams of the documentation from the code that they describe.

- `docs/explanation/runs.md`: the states of a run, from the table that the engine uses.
- `ARCHITECTURE.md`: the folders of the package, what each one says of itself, and their imports.

Pictures are SVG files, drawn like the graphs of users: a forge, the site and a folder all show
them, without a script. The text between two markers of a page is replaced.
`--check` writes nothing and fails when a picture or a page is stale.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from milecastle.draw import draw_svg
from milecastle.model.manifest import END, START, EdgeInfo, Manifest
from milecastle.model.run import TRANSITIONS, RunStatus

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("src/milecastle")
END_OF_TEXT = "<!-- end of drawing -->"

Imports = dict[str, set[str]]
"""The folders that each folder imports from."""


def begin(name: str) -> str:
    """The marker before a text."""
    return f"<!-- {name}: drawn by scripts/diagrams.py -->"


def draw_states(transitions: Mapping[RunStatus, Sequence[RunStatus]]) -> str:
    """Return the picture of a table of transitions. ``submit`` queues a run, ``invoke`` runs it."""
    arrows: list[tuple[str, str]] = [(START, "queued"), (START, "running")]
    for old, after in transitions.items():
        arrows += [(old, new) for new in after] or [(old, END)]
    return _picture("States of a run", arrows)


def draw_imports(root: Path) -> str:
    """Return the picture of the imports between folders, from the top layer down."""
    imports = folder_imports(root / PACKAGE)
    return _picture(
        "Imports between folders",
        [
            (folder, below)
            for folder in sorted(imports, key=_layers(root).index)
            for below in sorted(direct(imports, folder))
        ],
    )


def _picture(title: str, arrows: Sequence[tuple[str, str]]) -> str:
    edges = tuple(EdgeInfo(source, target) for source, target in arrows)
    return draw_svg(Manifest((), edges, ()), title=title)


def list_folders(root: Path) -> str:
    """Return the folders with their first lines, as a block of text."""
    package = root / PACKAGE
    order = sorted(folder_imports(package), key=_layers(root).index)
    rooms = [room for folder in order for room in (folder, *_rooms_of(package, folder))]
    names = [f"{'  ' * room.count('/')}{room.split('/')[-1]}" for room in rooms]
    width = max(map(len, names))
    lines = [
        f"{name:<{width}}  {_first_line(package, room)}".rstrip()
        for name, room in zip(names, rooms, strict=True)
    ]
    return "```text\n" + "\n".join(lines) + "\n```"


def _rooms_of(package: Path, folder: str) -> list[str]:
    """The folders of ``app``: it does several jobs, one folder for each."""
    if folder != "app":
        return []
    return sorted(f"app/{path.parent.name}" for path in (package / folder).glob("*/__init__.py"))


@cache
def folder_imports(package: Path) -> Imports:
    """The imports between folders of the package, type-only imports included."""
    found: Imports = {}
    for path in sorted(package.rglob("*.py")):
        if path.parent == package and path.stem != "errors":
            continue
        folder = path.relative_to(package).with_suffix("").parts[0]
        found.setdefault(folder, set()).update(_imported(path) - {folder, "version"})
    return found


def direct(imports: Imports, folder: str) -> set[str]:
    """The folders that a folder imports, without those that it reaches through another one."""
    reached: set[str] = set()
    for below in imports[folder]:
        reached |= _reachable(imports, below)
    return imports[folder] - reached


def _reachable(imports: Imports, folder: str) -> set[str]:
    """The folders that a folder imports, and those that these import, and so on."""
    found: set[str] = set()
    waiting = [folder]
    while waiting:
        for below in imports[waiting.pop()] - found:
            found.add(below)
            waiting.append(below)
    return found


def _imported(path: Path) -> set[str]:
    modules = (
        str(node.module)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
    )
    return {name.split(".")[1] for name in modules if name.startswith("milecastle.")}


def _layers(root: Path) -> list[str]:
    settings = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    contract = settings["tool"]["importlinter"]["contracts"][0]
    return [name.strip(" ()") for layer in contract["layers"] for name in layer.split("|")]


def _first_line(package: Path, folder: str) -> str:
    path = package / folder
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return (ast.get_docstring(ast.parse(source.read_text("utf-8"))) or "").split("\n")[0]


def replaced(text: str, name: str, drawing: str, page: Path) -> str:
    """Return the page with the text between its markers; `ValueError` if they are not there."""
    before, found, rest = text.partition(begin(name))
    _, ended, after = rest.partition(END_OF_TEXT)
    if not found or not ended:
        raise ValueError(f"{page.as_posix()} lacks the markers {begin(name)} and {END_OF_TEXT}")
    return f"{before}{begin(name)}\n{drawing}\n{END_OF_TEXT}{after}"


PICTURES: Mapping[Path, Callable[[], str]] = {
    Path("docs/images/run-states.svg"): lambda: draw_states(TRANSITIONS),
    Path("docs/images/imports.svg"): lambda: draw_imports(ROOT),
}
TEXTS: Mapping[str, tuple[Path, Callable[[], str]]] = {
    "folders": (Path("ARCHITECTURE.md"), lambda: list_folders(ROOT)),
}


def fresh_files(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield each file with the text that it should have; `ValueError` if there is no place."""
    for picture, draw in PICTURES.items():
        yield picture, draw()
    for name, (page, write) in TEXTS.items():
        yield page, replaced((root / page).read_text("utf-8"), name, write(), page)


def main(arguments: Sequence[str]) -> int:
    """Draw, or with `--check` compare; 1 if a file is stale or has no place for its text."""
    parser = argparse.ArgumentParser(description="Draw the diagrams of the docs.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if stale")
    parser.add_argument("--root", type=Path, default=ROOT, help="where the pages are")
    options = parser.parse_args(arguments)
    stale: list[str] = []
    try:
        for name, fresh in fresh_files(options.root):
            path: Path = options.root / name
            if not options.check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(fresh, encoding="utf-8", newline="\n")
            elif not path.exists() or path.read_text("utf-8") != fresh:
                stale.append(f"{name.as_posix()} is stale: run scripts/diagrams.py")
    except ValueError as error:
        stale.append(str(error))
    print("\n".join(stale), end="\n" if stale else "", file=sys.stderr)
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
