"""Draws the diagrams of the documentation from the code that they describe.

- `docs/explanation/runs.md`: the states of a run, from the table that the engine uses.
- `ARCHITECTURE.md`: the folders of the package, what each one says of itself, and their imports.

The text between two markers is replaced; `--check` writes nothing and fails when a page is stale.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from milecastle.model.run import TRANSITIONS, RunStatus

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("src/milecastle")
END = "<!-- end of drawing -->"

Imports = dict[str, set[str]]
"""The folders that each folder imports from."""


def begin(name: str) -> str:
    """The marker before a drawing."""
    return f"<!-- {name}: drawn by scripts/diagrams.py -->"


def draw_states(transitions: Mapping[RunStatus, Sequence[RunStatus]]) -> str:
    """Return the Mermaid state diagram of a table of transitions."""
    lines = ["stateDiagram-v2"]
    lines += [f"    [*] --> {state}" for state in list(transitions)[:1]]
    for old, after in transitions.items():
        lines += [f"    {old} --> {new}" for new in after]
        lines += [] if after else [f"    {old} --> [*]"]
    return "```mermaid\n" + "\n".join(lines) + "\n```"


def draw_folders(root: Path) -> str:
    """Return the folders with their first lines, and the Mermaid diagram of their imports."""
    package = root / PACKAGE
    imports = folder_imports(package)
    layers = _layers(root)
    order = sorted(imports, key=layers.index)
    rooms = [room for folder in order for room in (folder, *_rooms_of(package, folder))]
    names = [f"{'  ' * room.count('/')}{room.split('/')[-1]}" for room in rooms]
    width = max(map(len, names))
    lines = [
        f"{name:<{width}}  {_first_line(package, room)}".rstrip()
        for name, room in zip(names, rooms, strict=True)
    ]
    tree = "```text\n" + "\n".join(lines) + "\n```"
    arrows = [
        f"    {folder} --> {below}" for folder in order for below in sorted(direct(imports, folder))
    ]
    return f"{tree}\n\n" + "```mermaid\nflowchart TD\n" + "\n".join(arrows) + "\n```"


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


def replaced(text: str, name: str, drawing: str) -> str:
    """Return the page with the drawing between its markers; `ValueError` if they are not there."""
    before, found, rest = text.partition(begin(name))
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"the page lacks the markers {begin(name)} and {END}")
    return f"{before}{begin(name)}\n{drawing}\n{END}{after}"


DRAWINGS: Mapping[str, tuple[Path, Callable[[], str]]] = {
    "run states": (Path("docs/explanation/runs.md"), lambda: draw_states(TRANSITIONS)),
    "folders": (Path("ARCHITECTURE.md"), lambda: draw_folders(ROOT)),
}


def main(arguments: Sequence[str]) -> int:
    """Draw, or with `--check` compare; 1 if a page is stale or has no place for its drawing."""
    parser = argparse.ArgumentParser(description="Draw the diagrams of the docs.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if stale")
    parser.add_argument("--root", type=Path, default=ROOT, help="where the pages are")
    options = parser.parse_args(arguments)
    failed = False
    for name, (page, draw) in DRAWINGS.items():
        path: Path = options.root / page
        text = path.read_text("utf-8")
        try:
            fresh = replaced(text, name, draw())
        except ValueError as error:
            print(f"{page.as_posix()}: {error}", file=sys.stderr)
            failed = True
            continue
        if options.check and fresh != text:
            print(f"{page.as_posix()} is stale: run scripts/diagrams.py", file=sys.stderr)
            failed = True
        if not options.check:
            path.write_text(fresh, encoding="utf-8", newline="\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
