"""An app whose graph declares files, with a workspace."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

from milecastle import END, START, App, StateGraph
from tests.unit.server.calling import Api


class Nothing(TypedDict, total=False):
    n: int


def build_files(
    api: Api, *, name: str = "files", nodes: tuple[str, str] = ("upper", "double")
) -> App[Nothing]:
    """Serve a graph of two nodes, each with a file, besides the app of the API."""
    root = api.folder / "built"
    root.mkdir()
    (root / "in.txt").write_text("one")
    graph: StateGraph[Nothing] = StateGraph(Nothing, name=name)

    def make(source: str, target: str) -> Any:
        def copy(state: Nothing) -> dict[str, Any]:
            if (root / source).read_text() == "broken":
                raise RuntimeError("sekrit")
            (root / target).write_text((root / source).read_text() * 2)
            return {}

        return copy

    for node, source, target in zip(nodes, ("in", "mid"), ("mid", "out"), strict=True):
        files = f"{source}.txt", f"{target}.txt"
        graph.add_node(node, make(*files), inputs=files[0], outputs=files[1], version="1")
    graph.add_edges(START, *nodes, END)
    app = graph.compile(store=api.app.store, workspace=root / ".milecastle")
    api.serve(api.app, app)
    return app


def source_of(api: Api) -> Path:
    """The file that the first node reads."""
    return api.folder / "built" / "in.txt"
