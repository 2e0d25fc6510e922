"""The command itself: how fast it helps, how it fails, what its verbs have in common."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from milecastle import (
    Conflict,
    DefinitionError,
    InvalidRequest,
    MilecastleError,
    ResumeRefused,
    RunCancelled,
    StoreError,
    Unavailable,
)
from milecastle.cli import exits
from milecastle.cli.main import VERBS, cli
from milecastle.cli.printing import ProgressReport
from milecastle.errors import CodecError, Corrupted, FormatTooNew
from milecastle.views.documents import DOCUMENTS
from tests.unit.cli.commands import DEMO, Desk

SLOWEST_HELP = 0.150


def command(verb: str) -> click.Command:
    found = cli.get_command(click.Context(cli), verb)
    assert found is not None
    return found


def seconds_of_work(*arguments: str) -> float:
    """What a fresh process costs: its own time where that is known, not that of its neighbours."""
    began, before = time.perf_counter(), os.times()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    took, after = time.perf_counter() - began, os.times()
    own = after.children_user + after.children_system
    own -= before.children_user + before.children_system
    return min(took, own) if own else took


def test_help_comes_at_once() -> None:
    """In 150 ms; or, on a slower machine, in twice what the imports take by then.

    Processor time, best of some. The test below counts the imports, which is more exact.
    """
    took, imports = [1.0], [1.0]
    while len(took) < 8 and min(took) >= SLOWEST_HELP:
        took.append(seconds_of_work("-m", "milecastle", "--help"))
        imports.append(seconds_of_work("-c", "import milecastle, click"))
    assert min(took) < max(SLOWEST_HELP, 2 * min(imports))


def test_a_slow_command_would_be_seen() -> None:
    assert seconds_of_work("-c", "sum(range(10_000_000))") > SLOWEST_HELP


def test_help_imports_no_verb_and_nothing_heavy() -> None:
    code = (
        "import sys\nfrom milecastle.cli.main import cli\n"
        "cli(['--help'], standalone_mode=False)\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "milecastle.cli.main" in loaded
    assert [name for name in loaded if name.startswith("milecastle.cli.verbs.")] == []
    assert loaded & {"asyncio", "sqlite3", "psycopg", "rich", "tomllib"} == set()


@pytest.mark.parametrize("verb", VERBS)
def test_the_table_says_what_the_verb_says_of_itself(verb: str) -> None:
    found = command(verb)
    assert found.name == verb
    assert (found.help or "").partition("\n")[0] == VERBS[verb]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_json_store_tenant_and_debug(verb: str) -> None:
    options = {name for parameter in command(verb).params for name in parameter.opts}
    assert {"--json", "--store", "--tenant", "--debug"} <= options
    assert verb in DOCUMENTS


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_says_what_it_does(verb: str) -> None:
    options = [one for one in command(verb).params if isinstance(one, click.Option)]
    assert [one.name for one in options if not one.help] == []


def test_help_of_a_verb_and_an_unknown_verb(desk: Desk) -> None:
    assert "List threads." in desk.out("ls", "--help")
    assert "Did you mean 'history'?" in desk.err("histroy", code=2)
    assert "`milecastle --help` lists them" in desk.err("xyz", code=2)
    assert cli.get_command(click.Context(cli), "xyz") is None  # completion asks
    assert re.fullmatch(r"milecastle \d+\.\d+.*\n", desk.out("--version"))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ResumeRefused("t", ["x"]), 5),
        (InvalidRequest("x"), 2),
        (Conflict(tenant="a", thread="b", expected=1, head=2), 6),
        (Corrupted("x", place="y"), 1),
        (FormatTooNew(found=2, supported=1, place="x"), 1),
        (Unavailable("x"), 4),
        (StoreError("x"), 4),
        (DefinitionError([]), 1),
        (RunCancelled(), 1),
        (CodecError("x"), 1),
    ],
)
def test_every_error_has_its_exit_code(error: MilecastleError, code: int) -> None:
    assert exits.code_of(error) == code


def test_unexpected_error_is_reported_without_a_traceback(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.start()

    def fail(*_: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr("milecastle.views.listing.thread_line", fail)
    text = desk.err("ls", code=1)
    assert "unexpected KeyError: 'oops'; --debug shows the traceback" in text
    assert "Traceback" in desk.err("ls", "--debug", code=1)
    assert desk.error("ls", code=1).error.type == "KeyError"


def test_reader_that_stops_is_not_an_error(desk: Desk) -> None:
    for number in range(3):
        desk.start(f"t{number}")
    piped = f"{sys.executable} -m milecastle history t0 | head -c 1"
    done = subprocess.run(piped, shell=True, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("S", "")


@pytest.mark.skipif(os.name != "posix", reason="signals")
def heed_interrupts() -> None:
    """A process that was started in the background would ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_the_run_at_its_last_commit_and_says_how_to_resume(desk: Desk) -> None:
    slow = DEMO.replace(', interrupt_before=["write"]', "").replace(
        'if state["topic"] == "trouble":',
        'open("writing", "w").close()\n    import time\n    time.sleep(30)\n    if False:',
    )
    desk.write("demo.py", slow)
    given = ("run", "demo:app", "--thread", "x", "--input", '{"topic": "w"}')
    run = subprocess.Popen(
        [sys.executable, "-m", "milecastle", *given],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=heed_interrupts,  # noqa: PLW1509 - no other thread holds a lock here
    )
    try:
        until = time.monotonic() + 30
        while not Path("writing").exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=60)
    finally:
        run.kill()
        run.communicate()
    assert run.returncode == 130
    assert "Continue with: milecastle resume x --app demo:app" in said
    assert "Traceback" not in said
    assert desk.document("show", "x").checkpoint.next == ("write",)
    desk.write("demo.py", slow.replace("time.sleep(30", "time.sleep(0"))
    desk.call("resume", "x", "--app", "demo:app")


def test_short_work_says_nothing_and_long_work_says_where_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = 0.0
    progress = ProgressReport("copying", lambda: now)
    assert list(progress.over(["a", "b"])) == ["a", "b"]
    assert capsys.readouterr().err == ""
    for now in (1.0, 2.0, 3.0, 4.5):  # noqa: B007 - the clock reads it
        progress.at("c")
    assert capsys.readouterr().err == ("copying: 4 done, now c\ncopying: 6 done, now c\n")
