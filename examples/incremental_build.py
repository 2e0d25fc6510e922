"""A build of thirty nodes, commands and functions mixed: only what is needed is done again.

Eight sources are fetched, cleaned, turned into features by a command, and scored by models; a
report puts everything together. Change one source, and what depends on it runs. Kill it anywhere,
and `resume-only` continues with what was complete.

    python examples/incremental_build.py [FOLDER MODE]
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, TypedDict, cast

from milecastle import END, START, App, StateGraph, append
from milecastle.builds import FileResult, FileRun, Workspace, command, files, root

Mode = Literal["clean", "incremental", "resume-only"]

SOURCES = ["north", "east", "south", "west", "wall", "ditch", "road", "fort"]
MODELS = ["small", "large"]

COUNT_WORDS = """
import collections, pathlib, sys
words = pathlib.Path(sys.argv[1]).read_text().split()
counts = collections.Counter(words)
pathlib.Path(sys.argv[2]).write_text("".join(f"{w} {n}\\n" for w, n in sorted(counts.items())))
"""


class Build(TypedDict, total=False):
    done: Annotated[list[str], append]


def fetch(source: str) -> dict[str, list[str]]:
    text = (root() / "sources" / f"{source}.txt").read_text("utf-8")
    write(f"raw/{source}.txt", text)
    return {"done": [f"fetched {source}"]}


def clean(source: str) -> None:
    text = (root() / "raw" / f"{source}.txt").read_text("utf-8")
    write(f"clean/{source}.txt", " ".join(text.lower().split()) + "\n")


def train(model: str) -> dict[str, list[str]]:
    """Make a folder of files: weights, and what they were made from."""
    features = sorted((root() / "features").glob("*.txt"))
    keep = features if model == "large" else features[::2]
    weights = [sum(len(line) for line in path.read_text("utf-8").splitlines()) for path in keep]
    write(f"models/{model}/weights.txt", "\n".join(map(str, weights)) + "\n")
    write(f"models/{model}/names.txt", "\n".join(path.stem for path in keep) + "\n")
    return {"done": [f"trained {model}"]}


def score(model: str) -> None:
    weights = (root() / "models" / model / "weights.txt").read_text("utf-8").split()
    write(f"scores/{model}.txt", f"{model} {sum(map(int, weights))}\n")


def report() -> None:
    lines = [(root() / "scores" / f"{model}.txt").read_text("utf-8") for model in MODELS]
    write("report.txt", "scores\n" + "".join(lines))


def write(name: str, text: str) -> None:
    path = root() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def make_app() -> App[Build]:
    """8 sources x (fetch, clean, features), 2 models x (train, score), a report and its check."""
    graph = StateGraph(Build, name="build")
    for name in SOURCES:
        _add_source(graph, name)
    features = [f"features/{name}.txt" for name in SOURCES]
    for model in MODELS:
        made, scored = f"models/{model}", f"scores/{model}.txt"
        graph.add_node(
            f"train-{model}", files(inputs=features, outputs=made)(partial(train, model))
        )
        graph.add_node(f"score-{model}", files(inputs=made, outputs=scored)(partial(score, model)))
        for name in SOURCES:
            graph.add_edge(f"features-{name}", f"train-{model}")
        graph.add_edges(f"train-{model}", f"score-{model}", "report")
    scores = [f"scores/{model}.txt" for model in MODELS]
    graph.add_node("report", files(inputs=scores, outputs=["report.txt"])(report))
    graph.add_node(
        command(
            "checksum",
            [sys.executable, "-c", "import zlib;print(zlib.crc32(open('report.txt','rb').read()))"],
            inputs=["report.txt"],
            update=lambda ended: {"done": [f"checksum {ended.output.strip()}"]},
        )
    )
    graph.add_edges("report", "checksum", END)
    return graph.compile()


def _add_source(graph: StateGraph[Build], name: str) -> None:
    graph.add_node(
        f"fetch-{name}",
        files(inputs=[f"sources/{name}.txt"], outputs=[f"raw/{name}.txt"])(partial(fetch, name)),
    )
    graph.add_node(
        f"clean-{name}",
        files(inputs=[f"raw/{name}.txt"], outputs=[f"clean/{name}.txt"])(partial(clean, name)),
    )
    graph.add_node(
        command(
            f"features-{name}",
            [sys.executable, "-c", COUNT_WORDS, f"clean/{name}.txt", f"features/{name}.txt"],
            inputs=[f"clean/{name}.txt"],
            outputs=[f"features/{name}.txt"],
        )
    )
    graph.add_edges(START, f"fetch-{name}", f"clean-{name}", f"features-{name}")


def show(what: str, result: FileResult) -> None:
    print(f"{what}: {len(result.executed)} executed, {len(result.reused)} reused")


def lay_out(folder: Path) -> None:
    """Write the sources that are not there yet."""
    (folder / "sources").mkdir(parents=True, exist_ok=True)
    for number, source in enumerate(SOURCES):
        path = folder / "sources" / f"{source}.txt"
        if not path.exists():
            path.write_text(f"The {source} of the Wall \n" * (number + 2), "utf-8")


def build(folder: Path) -> FileRun:
    """The build of a folder; its workspace is `.milecastle` in it."""
    lay_out(folder)
    return FileRun(make_app(), Workspace(folder / ".milecastle"))


def main(folder: Path) -> None:
    show("first run", build(folder).run())
    show("nothing changed", build(folder).run())
    (folder / "sources" / "road.txt").write_text("A straight road", "utf-8")
    plan = build(folder).plan()
    print("one source changed:", ", ".join(plan.executed))
    show("one source changed", build(folder).run())
    (folder / "report.txt").unlink()
    show("the report was lost", build(folder).run())
    print((folder / "report.txt").read_text("utf-8"), end="")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        show(sys.argv[2], build(Path(sys.argv[1])).run(cast("Mode", sys.argv[2])))
    else:
        with tempfile.TemporaryDirectory() as place:
            main(Path(place))
