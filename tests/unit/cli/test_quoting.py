"""Names as words of a shell: whatever a name holds, it stays one word and runs nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TypedDict

import pytest

from milecastle import END, START, StateGraph
from milecastle.cli.addressing import bash_word, command_text
from tests.unit.cli.commands import Desk

NAMES = [
    "z1 $(touch PWNED)",
    "z2;touch PWNED;",
    "z3';touch PWNED;'",
    'z4";touch PWNED;"',
    "z5`touch PWNED`",
    "z6 * ? [a-z] ~",
    "z7 \\ backslash",
    "z8 &|<>(){}!#",
    "z9,with,commas:and:colons",
    "zé 漢字",
    "-z",
]
UNTYPEABLE = ["zz\nplain,evil", "zz\x1b[2K", "zz\u202e"]

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


class State(TypedDict):
    n: int


def fill_store() -> None:
    def one(state: State) -> dict[str, int]:
        return {"n": 1}

    graph = StateGraph(State)
    graph.add_node(one)
    graph.add_edges(START, "one", END)
    app = graph.compile(store="sqlite:///runs.db")
    for name in [*NAMES, *UNTYPEABLE]:
        app.invoke({"n": 0}, thread=name)


def in_bash(script: str, *words: str) -> str:
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", *words],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    return done.stdout


COMPLETE = """\
eval "$(python -m milecastle completion bash)"
COMP_WORDS=(milecastle show "$1") COMP_CWORD=2
_milecastle_completion milecastle
printf '%s\\n' "${COMPREPLY[@]}"
"""


@needs_bash
def test_bash_completes_names_that_read_back_as_they_are(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen to fail with the script of click, which inserts names unquoted and expands globs."""
    fill_store()
    commands = desk.folder / "bin"
    commands.mkdir()
    for name, words in (("python", ""), ("milecastle", "-m milecastle ")):
        path = desk.write(f"bin/{name}", f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    offered = in_bash(COMPLETE, "z").splitlines()
    read_back = [in_bash(f"printf '%s\\n' {word}").removesuffix("\n") for word in offered]
    assert sorted(read_back) == sorted(name for name in NAMES if name.startswith("z"))
    assert not Path("PWNED").exists()


@needs_bash
@pytest.mark.parametrize("opened", ["", "'", '"'])
@pytest.mark.parametrize("name", NAMES)
def test_a_completed_name_runs_nothing_also_in_open_quotes(
    desk: Desk, opened: str, name: str
) -> None:
    script = f"printf '%s' {opened}{bash_word(name)}{opened}"
    subprocess.run(["bash", "--norc", "-c", script], capture_output=True, check=False)
    assert not Path("PWNED").exists()


@needs_bash
@pytest.mark.parametrize("name", [*NAMES, *UNTYPEABLE])
def test_a_hint_can_be_pasted(desk: Desk, name: str) -> None:
    """Seen to fail with names put into hints as they are."""
    text = command_text("answer", name, "ANSWER", app="demo:app")
    assert text.isprintable()
    given = in_bash(f"milecastle() {{ printf '%s\\0' \"$@\"; }}; {text}").split("\0")[:-1]
    assert [word for word in given if word != "--"] in (
        ["answer", name, "ANSWER", "--app", "demo:app"],
        ["answer", "--app", "demo:app", name, "ANSWER"],
    )
    assert not Path("PWNED").exists()


def test_hints_of_the_verbs_are_quoted(desk: Desk) -> None:
    desk.start("a b;c")
    assert "`milecastle history 'a b;c'` lists them" in desk.err("show", "a b;c@9", code=2)
    given = ("run", "demo:app", "--thread", "-x y", "--input", '{"topic": "walls"}')
    told = desk.call(*given, code=3).stderr
    assert "Continue with: milecastle resume --app demo:app -- '-x y'" in told
