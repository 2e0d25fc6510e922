"""Runs the example build in a folder: ``python -m tests.process.recovery_build FOLDER MODE``.

Prints JSON: which nodes were executed and which reused, or why the run was refused. ``cheat``
makes every node complete before it has run, with outputs that are torn: the control.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from examples.incremental_build import build
from milecastle import ResumeRefused
from milecastle.builds.reuse import BuildSession, Execution, Reused


def cheat() -> None:
    """Let nodes be complete as soon as they begin."""
    honest_begin = BuildSession.begin
    honest_finish = BuildSession.finish

    def begin(session: BuildSession, node: str, state: Any) -> Reused | Execution:
        begun = honest_begin(session, node, state)
        if isinstance(begun, Execution) and begun.task is not None:
            for path, _ in begun.task.outputs:
                session.workspace.places.output(path, node).write_text("torn")
            honest_finish(session, begun, None)
            for path, _ in begun.task.outputs:
                session.workspace.places.clear(path, node)
        return begun

    def finish(session: BuildSession, execution: Execution, update: Any) -> Any:
        del session, execution
        return update

    setattr(BuildSession, "begin", begin)  # noqa: B010
    setattr(BuildSession, "finish", finish)  # noqa: B010


def main(folder: str, mode: Any, *options: str) -> None:
    if "cheat" in options:
        cheat()
    try:
        result = build(Path(folder)).run(mode)
    except ResumeRefused as refusal:
        print(json.dumps({"refused": refusal.reasons}))
    else:
        print(json.dumps({"executed": list(result.executed), "reused": list(result.reused)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
