"""An agent beside LangChain's ``create_agent`` with LangGraph's SQLite saver.

A turn is a call of a scripted model, which answers at once, and of one tool. Both sides store the
conversation on SQLite, with the defaults of their stores.

- ``turn_vs_langgraph``: our turns per second, to theirs.
- ``bytes_vs_langgraph``: the bytes of their file after a run of 200 turns, to ours.
- ``lines``: the lines of the first snippet of ``docs/how-to/agents.md`` without its model.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any, cast

from benchmarks.alternating import Peer, PeerMissing, best_of
from benchmarks.report import Report, columns
from milecastle.agents import agent

ROOT = Path(__file__).resolve().parent.parent
TURNS = 200
QUICK = 20
ASKED = "What is the weather in Hexham?"
ANSWER = "rain until noon, then clouds and a light wind from the west"


def weather(place: str) -> str:
    """Look up the weather."""
    return f"{place}: {ANSWER}"


def ours(turns: int, path: Path) -> float:
    """Run our agent; return the seconds that the run took."""

    def model(messages: Sequence[dict[str, Any]], tools: Sequence[Any]) -> dict[str, Any]:
        made = sum(message["role"] == "assistant" for message in messages)
        if made == turns:
            return {"content": "done"}
        return {"tool_calls": [{"id": f"c{made}", "name": "weather", "args": {"place": "Hexham"}}]}

    graph = agent(model, [weather], max_turns=turns + 1)
    with closing(graph.compile(store=f"sqlite:///{path}")) as app:
        given = cast("Any", {"messages": [{"role": "user", "content": ASKED}]})
        begun = perf_counter()
        result = app.invoke(given, thread="agent")
        took = perf_counter() - begun
    _verify(len(result.state["messages"]), turns)
    return took


def theirs(turns: int, path: Path) -> float:
    """Run the agent of LangChain; return the seconds that the run took."""
    from benchmarks.langchain_agent import run

    took, count = run(turns, path, ASKED, weather)
    _verify(count, turns)
    return took


def _verify(messages: int, turns: int) -> None:
    if messages != 2 * turns + 2:
        raise AssertionError(f"{messages} messages after {turns} turns")


def size(run: Callable[[int, Path], float], turns: int) -> int:
    """Bytes of the closed store after one run."""
    with tempfile.TemporaryDirectory() as folder:
        run(turns, Path(folder) / "agent.db")
        return sum(path.stat().st_size for path in Path(folder).iterdir())


def timed(run: Callable[[int, Path], float], turns: int) -> float:
    """Seconds of one run on a fresh store."""
    with tempfile.TemporaryDirectory() as folder:
        return run(turns, Path(folder) / "agent.db")


def quickstart_lines() -> int:
    """Lines of code in the page's first snippet, without the scripted model and empty lines."""
    page = (ROOT / "docs/how-to/agents.md").read_text("utf-8")
    found = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    if found is None:
        raise AssertionError("the page has no snippet")
    code = re.sub(r"def model\(.*?\n(?=\S)", "", found[1], flags=re.DOTALL)
    return sum(bool(line.strip()) for line in code.splitlines())


def measure(*, quick: bool = False) -> Report:
    """Measure both agents in turns."""
    turns = QUICK if quick else TURNS
    if find_spec("langchain") is None:
        raise PeerMissing("LangChain is not installed: pip install langchain")
    best = best_of(
        2 if quick else 5,
        [
            Peer("milecastle", lambda: timed(ours, turns), repeats=3),
            Peer("langgraph", lambda: timed(theirs, turns)),
        ],
    )
    our_bytes, their_bytes = size(ours, turns), size(theirs, turns)
    figures = {
        "turn_us": round(best["milecastle"] / turns * 1e6, 1),
        "langgraph_turn_us": round(best["langgraph"] / turns * 1e6, 1),
        "turn_vs_langgraph": round(best["langgraph"] / best["milecastle"], 2),
        "bytes": our_bytes,
        "langgraph_bytes": their_bytes,
        "bytes_vs_langgraph": round(their_bytes / our_bytes, 2),
        "lines": quickstart_lines(),
    }
    rows = [
        ["", "Milecastle", "LangGraph"],
        ["µs a turn", f"{figures['turn_us']:.0f}", f"{figures['langgraph_turn_us']:.0f}"],
        [f"bytes, {turns} turns", f"{our_bytes:,}", f"{their_bytes:,}"],
    ]
    return Report(figures=figures, table=columns(rows))
