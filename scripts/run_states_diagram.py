"""Draws the states of a run into `docs/explanation/runs.md`, from the table that the engine uses.

The text between the two markers is replaced; `--check` writes nothing and fails when it is stale.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from milecastle.model.run import TRANSITIONS, RunStatus

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs/explanation/runs.md")
BEGIN = "<!-- run states: drawn by scripts/run_states_diagram.py -->"
END = "<!-- end of run states -->"


def draw(transitions: Mapping[RunStatus, Sequence[RunStatus]]) -> str:
    """Return the Mermaid state diagram of a table of transitions."""
    lines = ["stateDiagram-v2"]
    lines += [f"    [*] --> {state}" for state in list(transitions)[:1]]
    for old, after in transitions.items():
        lines += [f"    {old} --> {new}" for new in after]
        lines += [] if after else [f"    {old} --> [*]"]
    return "```mermaid\n" + "\n".join(lines) + "\n```"


def replaced(text: str, drawing: str) -> str:
    """Return the page with the drawing between its markers; `ValueError` if they are not there."""
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"the page lacks the markers {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{drawing}\n{END}{after}"


def main(arguments: Sequence[str]) -> int:
    """Draw, or with `--check` compare; 1 if the page is stale or has no place for it."""
    parser = argparse.ArgumentParser(description="Draw the states of a run into the docs.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if stale")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    options = parser.parse_args(arguments)
    page: Path = options.root / PAGE
    text = page.read_text("utf-8")
    try:
        fresh = replaced(text, draw(TRANSITIONS))
    except ValueError as error:
        print(f"{PAGE.as_posix()}: {error}", file=sys.stderr)
        return 1
    if options.check and fresh != text:
        print(f"{PAGE.as_posix()} is stale: run scripts/run_states_diagram.py", file=sys.stderr)
        return 1
    if not options.check:
        page.write_text(fresh, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
