"""run --again, --key, --discard and --take-over, cancel, delete: safe to call again."""

from __future__ import annotations

import subprocess
import sys

import pytest

from milecastle import open_store
from milecastle.cli.main import VERBS
from milecastle.views.documents import CancelDocument, DeleteDocument, RunDocument
from tests.unit.cli.commands import DEMO, Desk
from tests.unit.cli.test_encrypted_stores import SEALED, set_keys

RUN = ("run", "demo:app", "--thread", "demo", "--input")
WALLS = '{"topic": "walls"}'


@pytest.fixture
def whole(desk: Desk) -> Desk:
    """The demo without its interrupt."""
    desk.write("demo.py", DEMO.replace(', interrupt_before=["write"]', ""))
    return desk


def ran(desk: Desk, *given: str) -> RunDocument:
    return desk.json(RunDocument, *RUN, *given)


def test_run_again_prints_the_result_and_runs_nothing(whole: Desk) -> None:
    """Broken on purpose: ``--again`` and ``--key`` not passed on; ``reused`` not printed."""
    first = ran(whole, WALLS)
    again = whole.call(*RUN, WALLS)
    assert "researching" not in again.stdout
    assert "nothing was run: --again starts a new run" in again.stderr
    assert (first.reused, ran(whole, WALLS)) == (False, _reused(first))
    assert len(ran(whole, WALLS, "--again").state["notes"]) == 2
    third = ran(whole, WALLS, "--key", "k")
    assert ran(whole, '{"topic": "other"}', "--key", "k") == _reused(third)


def _reused(document: RunDocument) -> RunDocument:
    import msgspec.structs

    return msgspec.structs.replace(document, reused=True)


def test_discard_gives_a_thread_another_input(desk: Desk) -> None:
    """Broken on purpose: ``--discard`` not passed on."""
    desk.start()
    desk.err(*RUN, '{"topic": "roads"}', code=2)
    text = desk.out(*RUN, '{"topic": "roads"}', "--discard", code=3)
    assert "interrupted before write" in text
    assert desk.document("show", "demo").state["notes"] == ["a fact about roads"]


def test_cancel_closes_a_run_without_the_code(desk: Desk) -> None:
    """Broken on purpose: the verb left out of the table."""
    desk.start()
    (desk.folder / "demo.py").unlink()
    assert desk.out("cancel", "demo") == "thread demo: cancelled\n"
    assert "nothing to cancel" in desk.out("cancel", "demo")
    assert desk.json(CancelDocument, "cancel", "demo").cancelled is False
    assert desk.document("show", "demo").status == "cancelled"
    desk.err("cancel", "nobody", code=2)
    desk.write("demo.py", DEMO)
    desk.call("resume", "demo", "--app", "demo:app")


def test_cancel_needs_the_keys_of_an_encrypted_thread(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry in the clear would make the thread unreadable.

    Broken on purpose: the head not opened before the entry is written.
    """
    for name in ("MILECASTLE_KEYS", "MILECASTLE_KEY_STORE"):
        monkeypatch.delenv(name, raising=False)
    desk.write("demo.py", SEALED)
    desk.start()
    (desk.folder / "demo.py").unlink()
    assert "[MC504]" in desk.err("cancel", "demo", code=1)
    set_keys(monkeypatch)
    assert desk.json(CancelDocument, "cancel", "demo").cancelled is True
    assert desk.document("show", "demo").state["topic"] == "walls"


def test_delete_takes_the_thread_and_its_key(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken on purpose: the keyring not passed on."""
    desk.write("demo.py", SEALED)
    desk.start()
    set_keys(monkeypatch)
    assert desk.json(DeleteDocument, "delete", "demo").deleted is True
    desk.err("show", "demo", code=2)
    desk.err("delete", "demo", code=2)
    keys = open_store("sqlite:///keys.db")
    assert list(keys.store.threads("milecastle.keys")) == []
    keys.close()


def test_verbs_that_end_something_are_listed() -> None:
    """The table is what `--help` prints."""
    assert {"cancel", "delete"} <= VERBS.keys()


ENDLESS = DEMO.replace('print("researching")', 'print("researching", flush=True); input()').replace(
    ', interrupt_before=["write"]', ""
)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_running_is_said_only_of_a_process_that_is_known_to_be_alive(desk: Desk) -> None:
    """Broken on purpose: the recorded status printed; a killed run was `running` for good."""
    desk.write("demo.py", ENDLESS)
    process = subprocess.Popen(
        [sys.executable, "-m", "milecastle", *RUN, WALLS],
        cwd=desk.folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "researching\n"
    try:
        assert _statuses(desk) == ("running", "running", ["demo"], [])
        assert "MC405" in desk.err(*RUN, WALLS, code=6)
        assert "MC405" in desk.err("resume", "demo", "--app", "demo:app", code=6)
        assert "MC405" in desk.err("delete", "demo", code=6)
    finally:
        process.kill()
        process.communicate()
    assert _statuses(desk) == ("lost", "lost", [], ["demo"])
    assert f"resume: process {process.pid} on host" in desk.out("ls")
    shown = desk.call("show", "demo")
    assert f"lost: process {process.pid} on host" in shown.stdout
    assert "is gone" in desk.document("show", "demo").reason
    assert "`milecastle resume demo` continues it" in shown.stderr


def _statuses(desk: Desk) -> tuple[str, str, list[str], list[str]]:
    """What ``ls`` says, what ``show`` says, what is listed as running, and what as lost."""
    (line,) = desk.document("ls").threads
    listed = [
        [one.thread for one in desk.document("ls", "--status", status, "--limit", "3").threads]
        for status in ("running", "lost")
    ]
    return line.status, desk.document("show", "demo").status, listed[0], listed[1]
