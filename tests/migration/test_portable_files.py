"""Portable files of every version of the format are read forever.

The golden files were written by ``python -m tests.migration.test_portable_files FOLDER``. Until the
first release is tagged, a change of version 1 makes them again; then they never change.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from milecastle import END, START, App, StateGraph, append
from milecastle.testing import ManualClock, with_store

GOLDEN = Path(__file__).parent / "golden" / "portable-v1"
KEY = b"the key of the golden files"


@dataclass
class Doc:
    title: str
    at: datetime


class Draft(TypedDict):
    topic: str
    log: Annotated[list[str], append]
    docs: NotRequired[list[Doc]]


STATE: Draft = {
    "topic": "walls",
    "log": ["by hand"],
    "docs": [Doc("a", datetime(2024, 5, 1, tzinfo=UTC))],
}


def note(state: Draft, name: str, config: Any) -> dict[str, Any]:
    return {"log": [f"{name} for {config['who']}"]}


def golden_app(folder: Path | None = None) -> App[Draft]:
    """left | right -> join -> last."""
    graph: StateGraph[Draft] = StateGraph(Draft, name="golden")
    for name in ("left", "right", "join", "last"):
        graph.add_node(name, note)
    graph.add_edges(START, "left", "join")
    graph.add_edges(START, "right", "join")
    graph.add_edges("join", "last", END)
    app = graph.compile(interrupt_before=["join"], checkpoint_dir=folder, signing_key=KEY)
    return with_store(app, None, clock=ManualClock(1_700_000_000_000_000))


def test_golden_file_saved_by_hand_is_resumed() -> None:
    """Tried: a new field without a default; then the file is refused."""
    app, path = golden_app(), GOLDEN / "by_hand.pkl"
    assert app.load_checkpoint(path) == {
        "state": STATE,
        "node": "last",
        "config": {"who": "me"},
        "timestamp": 1_700_000_000.0,
        "version": "1.0",
    }
    result = app.resume_from_checkpoint(path)
    assert (result.status, result.state["log"]) == ("completed", ["by hand", "last for me"])
    assert result.state.get("docs") == STATE.get("docs")


def test_golden_file_of_an_interrupt_is_resumed() -> None:
    """With the results of the branches, and the config of the run."""
    app = golden_app()
    (path,) = GOLDEN.glob("join_*.pkl")
    loaded = app.load_checkpoint(path)
    assert loaded["results"] == {
        "left": {"log": ["left for me"]},
        "right": {"log": ["right for me"]},
    }
    log = ["left for me", "right for me", "join for you", "last for you"]
    assert app.resume_from_checkpoint(path, {"who": "you"}).state["log"] == log


def write(folder: Path) -> None:
    """The golden files, by the version that is installed."""
    app = golden_app(folder)
    folder.mkdir(parents=True, exist_ok=True)
    app.save_checkpoint(folder / "by_hand.pkl", STATE, "last", {"who": "me"})
    app.invoke({"topic": "walls"}, config={"who": "me"})


if __name__ == "__main__":
    write(Path(sys.argv[1]))
