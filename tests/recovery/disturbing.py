"""Disturbs a run of twenty steps at one system call, and judges what came of it.

``strace`` counts the calls of a run that touch the files of the store, and then lets one of them
fail, or kills the process at it. Short writes are real ones: a limit on the size of files cuts
them. Whatever was done, three things must hold:

1. Nothing acknowledged is lost: the store has every step that came before one that began.
2. Nothing is silent: the run ended right, or raised an error of ours, or was killed.
3. The run can be resumed, and then ends as if nothing had happened.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from milecastle.errors import Corrupted, MilecastleError
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Store
from milecastle.stores.jsonl import JsonlStore
from milecastle.stores.opening import find_store
from tests.recovery.twenty_steps import EXPECTED, INPUT, THREAD, make_app

ROOT = Path(__file__).resolve().parents[2]
CALLS: tuple[str, ...] = (
    "openat", "close", "write", "pwrite64", "fsync", "fdatasync", "ftruncate",
    "rename", "unlink", "mkdir",
)  # fmt: skip
KEY = ThreadKey("default", THREAD)
KILL = "signal=KILL"
FAULTS = (KILL, "error=EIO", "error=ENOSPC")
_LINE = re.compile(r"^\d+ +(\w+)\(")


class Call(NamedTuple):
    """The ``number``-th call of that name that a run makes, counted from 1."""

    name: str
    number: int


class Run(NamedTuple):
    """What a run said, how its process ended, and whether it was disturbed at a file of ours."""

    said: tuple[str, ...]
    code: int
    hit: bool


def available() -> str:
    """Why runs cannot be disturbed here; empty if they can."""
    if not shutil.which("strace"):
        return "strace is not installed"
    probe = ["strace", "-f", "-qq", "-e", "trace=fsync", "-o", "/dev/null", "true"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return f"strace cannot trace here: {done.stderr.strip()}" if done.returncode else ""


def url_of(kind: str, folder: Path) -> str:
    """A store of a kind, all of whose files are in ``folder``."""
    return f"file://{folder}" if kind == "jsonl" else f"sqlite:///{folder}/store.db"


def run(kind: str, folder: Path, *options: str, under: tuple[str, ...] = ()) -> Run:
    """Run the twenty steps in a separate process, under strace if that is given."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.recovery.twenty_steps", url_of(kind, folder), *options]
    done = subprocess.run(
        [*under, *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    code = -9 if done.returncode == 137 else done.returncode
    return Run(tuple(done.stdout.splitlines()), code, True)


def tracer(log: Path, *options: str) -> tuple[str, ...]:
    """The command that traces, with the files of each call spelled out."""
    return (
        "strace", "-f", "-y", "-o", str(log), "-e",
        f"trace={','.join(CALLS)}", *options,
    )  # fmt: skip


def calls_of(kind: str, folder: Path) -> list[Call]:
    """The calls of an undisturbed run that touch files of the store, in their order."""
    log = folder.with_suffix(".trace")
    done = run(kind, folder, under=tracer(log))
    assert (done.code, done.said[-1]) == (0, "done right"), done
    counts = dict.fromkeys(CALLS, 0)
    found: list[Call] = []
    for line in log.read_text("utf-8", "replace").splitlines():
        match = _LINE.match(line)
        if match:
            counts[match[1]] += 1
            if str(folder) in line:
                found.append(Call(match[1], counts[match[1]]))
    return found


def disturb(kind: str, folder: Path, call: Call, fault: str, *options: str) -> Run:
    """Run, with a fault at one call."""
    log = folder.with_suffix(".trace")
    injected = f"inject={call.name}:{fault}:when={call.number}"
    done = run(kind, folder, *options, under=tracer(log, "-e", injected))
    lines = log.read_text("utf-8", "replace").splitlines()
    log.unlink()
    if fault == KILL:
        calls = [line for line in lines if _LINE.match(line)]
        return done._replace(hit=done.code == -9 and str(folder) in calls[-1])
    return done._replace(hit=any("(INJECTED)" in each and str(folder) in each for each in lines))


def problems(kind: str, folder: Path, done: Run, *, killed: bool = False) -> list[str]:
    """What is wrong with a store that a run left behind; empty if nothing."""
    ended = done.code == 0 and done.said[-1:] == ("done right",)
    failed = done.code == 3 and done.said[-1].startswith("failed ")
    if not (ended or failed or (killed and done.code == -9)):
        return [f"the run came to a strange end: {done.code}, {done.said[-1:]}"]
    acknowledged = len(EXPECTED["miles"]) if ended else _begun(done.said)
    try:
        with closing(find_store(url_of(kind, folder))) as store:
            return _judged(store, acknowledged, 0 if ended else 1)
    except MilecastleError as error:
        return [f"the store is of no use any more: {type(error).__name__}: {error}"]


def _begun(said: tuple[str, ...]) -> int:
    """How many steps were acknowledged: those before the last one that began."""
    begun = [int(line.split()[1]) for line in said if line.startswith("step ")]
    return max(begun, default=0)


def _judged(store: Store, acknowledged: int, doubt: int) -> list[str]:
    """Look at the thread, resume it, and look again."""
    found: list[str] = []
    app = make_app(store, lambda text: None)
    _mend(store)
    if store.read(KEY) is not None:
        snapshot = app.state(THREAD)
        miles = snapshot.state["miles"]
        if miles != list(range(len(miles))):
            found.append("the state is not one that the run ever had")
        if not acknowledged <= len(miles) <= acknowledged + doubt:
            found.append(f"{acknowledged} steps were acknowledged and {len(miles)} are there")
        if snapshot.next:
            app.resume(THREAD)
    elif acknowledged or not doubt:
        found.append(f"{acknowledged} steps were acknowledged and no thread is there")
    else:
        app.invoke(INPUT, thread=THREAD)
    if not found and app.state(THREAD).state != EXPECTED:
        found.append("resuming led to another end")
    seqs = [entry.seq for entry in store.history(KEY)]
    if seqs != list(range(len(seqs), 0, -1)):
        found.append("the log has gaps")
    return found


def _mend(store: Store) -> None:
    """Remove a torn last line, as a person does who gets that error."""
    if isinstance(store, JsonlStore):
        try:
            store.read(KEY)
        except Corrupted as error:
            if "torn" in str(error):
                store.repair_thread(KEY)
