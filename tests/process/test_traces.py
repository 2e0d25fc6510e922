"""One trace for a run over several processes: what each of them has exported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.every_store import Stores
from tests.process.fleet_chaos import ROOT

Exported = list[dict[str, Any]]


class Processes:
    """Does one thing after another with a thread, each in a new process."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._file = folder / "spans.jsonl"

    def do(self, what: str, *, dies: bool = False) -> Exported:
        """Do something; return every span that was exported so far."""
        command = [sys.executable, "-m", "tests.process.traced", self._url, what, str(self._file)]
        more = {"MILECASTLE_DIES": "1"} if dies else {}
        done = subprocess.run(
            command, cwd=ROOT, timeout=120, env={**os.environ, **more}, check=False
        )
        assert done.returncode == (9 if dies else 0)
        return [json.loads(line) for line in self._file.read_text("utf-8").splitlines()]


def service(span: dict[str, Any]) -> str:
    return str(span["resource"]["attributes"]["service.name"])


def named(spans: Exported, name: str) -> Exported:
    return [span for span in spans if span["name"] == name]


def id_of(span: dict[str, Any]) -> str:
    return str(span["context"]["span_id"])


@pytest.mark.requirement("O3")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_one_run_over_processes_and_a_resume_is_one_trace(kind: str, tmp_path: Path) -> None:
    """Submitted by one process, run by the worker of another until it asks, resumed by a third:
    one root, and every parent is exported. Fails if the context is not stored with the run, or if
    a later segment becomes a root."""
    process = Processes(Stores(tmp_path).url(kind, "traces"), tmp_path)
    process.do("submit")
    process.do("work")
    spans = process.do("resume")
    assert len({span["context"]["trace_id"] for span in spans}) == 1
    known = {id_of(span) for span in spans}
    roots = [span["name"] for span in spans if span["parent_id"] is None]
    assert roots == ["request"]
    assert {span["parent_id"] for span in spans} - {None} <= known
    (submit,) = named(spans, "submit order")
    runs = named(spans, "run order")
    assert [service(run) for run in runs] == ["work", "resume"]
    assert [run["parent_id"] for run in runs] == [id_of(submit)] * 2
    links = [link["context"]["span_id"] for link in runs[1]["links"]]
    assert links == [id_of(runs[0])]
    (own,), (task,) = named(spans, "own work"), named(spans, "task pack")
    assert own["parent_id"] == id_of(task)


@pytest.mark.requirement("O3")
def test_a_run_that_takes_over_from_a_dead_process_is_in_its_trace(tmp_path: Path) -> None:
    """The dead process exported its finished steps, and the next one continues their trace.
    Fails if a run that supersedes another takes nothing over from it."""
    process = Processes(Stores(tmp_path).url("sqlite"), tmp_path)
    process.do("submit")
    process.do("work")
    process.do("resume", dies=True)
    spans = process.do("again")
    assert len({span["context"]["trace_id"] for span in spans}) == 1
    assert [span["name"] for span in spans if span["parent_id"] is None] == ["request"]
    (last,) = [run for run in named(spans, "run order") if service(run) == "again"]
    assert last["attributes"]["milecastle.run.status"] == "completed"
    assert {service(span) for span in named(spans, "step")} == {"work", "resume", "again"}
    (link,) = last["links"]
    dead = {span["parent_id"] for span in named(spans, "step") if service(span) == "resume"}
    assert dead == {link["context"]["span_id"]}
