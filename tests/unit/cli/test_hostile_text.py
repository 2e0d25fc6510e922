"""Names and values that a stranger chose: no verb hands them to a terminal as instructions."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

import pytest

from milecastle.cli.main import VERBS
from milecastle.support.printable import is_unsafe, printable
from tests.unit.cli.commands import Desk
from tests.unit.cli.pseudo_terminal import run_at_a_terminal

EVIL = "a\x1b]52;c;Y3VybA==\x07\x1b[1A\x1b[2Kdone\x9b31mC1\x7f\u202egnp\u2028\nERROR forged\r\t"
"""The clipboard, an earlier line, a C1 control, a bidirectional override, a forged line."""

HOSTILE = f"""\
from typing import TypedDict
from milecastle import END, START, StateGraph, interrupt

EVIL = {EVIL!r}

class Note(TypedDict):
    note: str

graph = StateGraph(Note, name=EVIL)

def ask(state: Note) -> dict:
    return {{"note": EVIL + str(interrupt(EVIL, show=state["note"]))}}

@graph.node
def boom(state: Note) -> dict:
    raise ValueError(EVIL)

graph.add_node(EVIL, ask)
graph.add_edges(START, EVIL, "boom", END)
app = graph.compile(store="sqlite:///runs.db")
"""

CALLS: dict[str, tuple[int, list[str]]] = {
    "run": (3, ["hostile:app", "--trace", "--input", json.dumps({"note": EVIL}), "--thread", EVIL]),
    "build": (1, ["hostile:app", "--workspace", ".work", "--thread", EVIL]),
    "plan": (0, ["hostile:app", "--workspace", ".work", "--thread", EVIL]),
    "check": (0, ["hostile:app", "--threads"]),
    "tag": (0, [EVIL, "--add", EVIL]),
    "ls": (0, []),
    "show": (0, [EVIL]),
    "history": (0, [EVIL]),
    "diff": (0, [f"{EVIL}@1"]),
    "fork": (0, [f"{EVIL}@1", "--as", f"{EVIL}2", "--app", "hostile:app"]),
    "update": (0, [f"{EVIL}2", "--set", f"note={EVIL}", "--app", "hostile:app"]),
    "graph": (0, ["--thread", EVIL]),
    "resume": (5, [f"{EVIL}3", "--app", "hostile:app"]),
    "answer": (1, [EVIL, EVIL, "--trace", "--app", "hostile:app"]),
    "replay": (0, ["hostile:app"]),
    "audit": (0, [EVIL, "--app", "hostile:app"]),
    "cancel": (0, [f"{EVIL}2"]),
    "delete": (0, [f"{EVIL}2"]),
    "submit": (0, ["hostile:app", "--input", json.dumps({"note": EVIL}), "--thread", f"{EVIL}4"]),
    "queue": (0, []),
    "worker": (0, ["hostile:app", "--until-idle"]),
    "workers": (0, ["--threads"]),
    "serve": (2, ["hostile:app", "--tokens", EVIL]),
    "dev": (2, [EVIL]),
    "mcp": (2, [EVIL]),
    "demo": (2, [EVIL]),
    "init": (0, [EVIL]),
    "schedules": (0, ["--app", "hostile:app"]),
    "retry": (5, [f"{EVIL}4", "--app", "hostile:app"]),
    "runs": (0, []),
    "gc": (0, ["--keep-last", "1"]),
    "restore": (2, [EVIL]),
    "verify": (0, []),
    "repair": (0, []),
    "copy": (0, ["sqlite:///runs.db", "file://kept", "--thread", EVIL]),
    "send": (0, [EVIL, EVIL, "--topic", EVIL, "--by", EVIL, "--app", "hostile:app"]),
    "mailbox": (0, [EVIL, "--app", "hostile:app"]),
    "migrate": (0, []),
    "shards": (2, ["init", "--store", f"{EVIL}.toml"]),
    "why": (0, [EVIL]),
    "doctor": (0, []),
    "explain": (0, ["MC301"]),
    "completion": (0, ["bash"]),
}
"""Every verb, in an order in which each has something to show."""


def unsafe_in(text: str) -> set[str]:
    """What of a text a terminal would obey, and the line that is forged."""
    found = {char for char in text if char != "\n" and is_unsafe(char)}
    return found | ({"forged line"} if "\nERROR" in text else set())


def test_every_verb_escapes_stored_text(desk: Desk) -> None:
    """Seen to fail for 11 verbs before text was escaped where it leaves."""
    assert set(CALLS) == set(VERBS)
    desk.write("hostile.py", HOSTILE)
    for verb, (code, given) in CALLS.items():
        result = desk.call(verb, *given, code=code)
        assert (verb, unsafe_in(result.stdout), unsafe_in(result.stderr)) == (verb, set(), set())
    for verb in ("ls", "show", "runs", "history"):
        given = CALLS[verb][1]
        assert "ERROR forged" in desk.out(verb, *given), "the test has nothing to show"


def test_json_is_escaped_and_reads_back_the_same(desk: Desk) -> None:
    """Seen to fail with C1 controls and bidirectional overrides as they were."""
    desk.write("hostile.py", HOSTILE)
    for verb in ("run", "ls", "show", "history", "runs"):
        code, given = CALLS[verb]
        text = desk.out(verb, *given, "--json", code=code)
        assert (verb, unsafe_in(text)) == (verb, set())
        assert json.dumps(EVIL)[1:-1] in json.dumps(json.loads(text))


@pytest.mark.parametrize("arguments", [["show", EVIL], [EVIL], ["run", EVIL], ["ls", f"--{EVIL}"]])
def test_mistakes_are_reported_on_lines_that_cannot_be_forged(
    desk: Desk, arguments: list[str]
) -> None:
    desk.start()
    assert unsafe_in(desk.err(*arguments, code=2)) == set()


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("colour", ["", "1"])
def test_a_real_terminal_receives_no_instructions(desk: Desk, colour: str) -> None:
    """Colours are ours: they are the only escape sequences that may arrive."""
    desk.write("hostile.py", HOSTILE)
    desk.call("run", *CALLS["run"][1], code=3)
    for verb in ("ls", "show", "runs", "history"):
        written = run_at_a_terminal([verb, *CALLS[verb][1]], {"NO_COLOR": colour})
        own = written.replace("\r\n", "\n")
        for code in ("0", "1", "33", "36"):
            own = own.replace(f"\x1b[{code}m", "")
        assert (verb, unsafe_in(own)) == (verb, set())


def test_printing_is_the_only_module_that_writes_to_a_stream() -> None:
    """Seen to fail with `click.echo(drawing)` in the verb `graph`."""
    folder = Path(__file__).resolve().parents[3] / "src" / "milecastle" / "cli"
    writers = {
        path.name
        for path in folder.rglob("*.py")
        for item in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(item, ast.Call)
        and ast.unparse(item.func) in {"click.echo", "click.secho", "print", "sys.stdout.write"}
    }
    assert writers == {"printing.py"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 漢字 😀", "plain é 漢字 😀"),
        ("ideographic\u3000space\u00a0", "ideographic\u3000space\u00a0"),
        ("a\nb", "a\\nb"),
        ("\x1b[1A\x7f\x85\x9b", "\\x1b[1A\\x7f\\x85\\x9b"),
        ("\u202e\u2066\u200b\ufeff\u2028", "\\u202e\\u2066\\u200b\\ufeff\\u2028"),
        ("\U000e0041\ud800", "\\U000e0041\\ud800"),
    ],
)
def test_only_what_is_obeyed_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
