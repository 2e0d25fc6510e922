"""Calling the command line in its own folder, in this process."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from click.testing import CliRunner, Result

from milecastle.cli.main import cli
from milecastle.views.documents import DOCUMENTS, ErrorDocument

T = TypeVar("T")

DEMO = """\
from typing import Annotated, NotRequired, TypedDict
from milecastle import END, START, StateGraph, append

class Draft(TypedDict):
    topic: str
    notes: Annotated[list[str], append]
    text: NotRequired[str]
    pages: NotRequired[int]

graph = StateGraph(Draft)

@graph.node
def research(state: Draft) -> dict:
    print("researching")
    return {"notes": [f"a fact about {state['topic']}"]}

@graph.node
def write(state: Draft) -> dict:
    if state["topic"] == "trouble":
        raise RuntimeError("no ink")
    return {"text": "; ".join(state["notes"])}

graph.add_edges(START, "research", "write", END)
app = graph.compile(store="sqlite:///runs.db", interrupt_before=["write"])
"""


class Desk:
    """A folder with a module ``demo``, and the command line called from there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("demo.py", DEMO)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def call(self, *arguments: str, code: int = 0, input: str | None = None) -> Result:
        """Call a verb, which must leave with this exit code."""
        with fresh_modules():
            result = CliRunner().invoke(cli, arguments, input=input, prog_name="milecastle")
        assert result.exit_code == code, (
            f"{arguments}: {result.exit_code}\n{result.output}\n{result.exception!r}"
        )
        return result

    def out(self, *arguments: str, code: int = 0) -> str:
        """What a verb prints on stdout."""
        return self.call(*arguments, code=code).stdout

    def err(self, *arguments: str, code: int) -> str:
        """What a verb that does not succeed says on stderr."""
        return self.call(*arguments, code=code).stderr

    def json(self, kind: type[T], *arguments: str, code: int = 0) -> T:
        """The document of a verb, read strictly."""
        return msgspec.json.decode(self.out(*arguments, "--json", code=code), type=kind)

    def document(self, *arguments: str, code: int = 0) -> Any:
        """The document of a verb, as the table says that it is."""
        return self.json(DOCUMENTS[arguments[0]], *arguments, code=code)

    def error(self, *arguments: str, code: int) -> ErrorDocument:
        """The document of a verb that failed."""
        return self.json(ErrorDocument, *arguments, code=code)

    def start(self, thread: str = "demo", topic: str = "walls") -> None:
        """Bring a thread to its interrupt."""
        self.call(
            "run", "demo:app", "--thread", thread, "--input", f'{{"topic": "{topic}"}}', code=3
        )

    def finish(self, thread: str = "demo") -> None:
        """Bring a thread to its end."""
        self.call("resume", thread, "--app", "demo:app")


@contextmanager
def fresh_modules() -> Generator[None]:
    """As in a new process: modules of the folder are imported again."""
    modules, path = set(sys.modules), list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if "milecastle" not in name and "site-packages" not in file:
                del sys.modules[name]
