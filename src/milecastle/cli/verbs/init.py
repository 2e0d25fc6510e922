"""``milecastle init``: a small project to start from. Its files are in ``cli/template``."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from milecastle.cli.printing import print_document, print_lines
from milecastle.cli.session import Session
from milecastle.cli.verb import verb
from milecastle.errors import InvalidRequest
from milecastle.views.documents import InitDocument

_TEMPLATE = Path(__file__).parents[1] / "template"
_AGENT = _TEMPLATE / "agent"
RUN_ORDER = """milecastle run --thread order-1 --input '{"items": ["lamp"]}'"""

_ASK_AGENT = (
    "milecastle run --thread t-1 --input "
    """'{"messages": [{"role": "user", "content": "My lamp arrived broken."}]}'"""
)


def write_project(folder: Path, template: Path | None = None) -> list[str]:
    """Write the project into a folder; the names of its files.

    Raises:
        InvalidRequest: a file is already there, or cannot be written. None is overwritten.
    """
    texts = {
        path.stem: path.read_text("utf-8") for path in sorted((template or _TEMPLATE).glob("*.txt"))
    }
    taken = [name for name in texts if os.path.lexists(folder / name)]
    if taken:
        raise InvalidRequest(
            f"{folder} already has {', '.join(taken)}: nothing was written; name another folder"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise InvalidRequest(f"the project cannot be written: {error}") from None
    return list(texts)


@click.command("init")
@click.argument("folder", metavar="[FOLDER]", default=".")
@click.option("--agent", is_flag=True, help="Write an agent: a model with tools, as a graph.")
@verb
def command(session: Session, folder: str, agent: bool) -> None:
    """Write a small project: a graph, its tests with crash_everywhere, and pyproject.toml.

    Into this folder, or FOLDER. No file is overwritten.
    """
    files = write_project(Path(folder), _AGENT if agent else None)
    if session.as_json:
        print_document(InitDocument(folder=folder, files=tuple(files)))
        return
    place = f"./{folder}" if folder.startswith("-") else folder
    enter = [] if folder == "." else [f"  cd {shlex.quote(place)}"]
    print_lines(
        [
            f"wrote {', '.join(files)} in {Path(folder).absolute()}",
            "next:",
            *enter,
            f"  {_ASK_AGENT if agent else RUN_ORDER}",
            f"  milecastle show {'t-1' if agent else 'order-1'}",
            "  pip install pytest && pytest",
            "  pip install 'milecastle[serve]' && milecastle dev",
        ]
    )
