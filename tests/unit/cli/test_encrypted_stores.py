"""Verbs on encrypted threads: with the keys of the environment, or those of the app."""

from __future__ import annotations

from base64 import b64encode

import pytest

from milecastle import open_store
from tests.unit.cli.commands import DEMO, Desk

KEYS = f"main={b64encode(b'k' * 32).decode()}"
SEALED = DEMO.replace("import END", "import Keyring, END").replace(
    'store="sqlite:///runs.db"',
    'store="sqlite:///runs.db", encryption=Keyring({"main": b"k" * 32}, store="sqlite:///keys.db")',
)
VERBS = (("show", "demo"), ("diff", "demo@1", "demo@2"))


@pytest.fixture
def sealed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """The demo, encrypted, at its interrupt; no keys are set."""
    for name in ("MILECASTLE_KEYS", "MILECASTLE_KEY_STORE"):
        monkeypatch.delenv(name, raising=False)
    desk.write("demo.py", SEALED)
    desk.start()
    return desk


def set_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILECASTLE_KEYS", KEYS)
    monkeypatch.setenv("MILECASTLE_KEY_STORE", "sqlite:///keys.db")


@pytest.mark.parametrize("given", VERBS, ids=lambda given: given[0])
def test_without_keys_a_state_is_not_shown_and_the_message_says_how(
    sealed: Desk, given: tuple[str, ...]
) -> None:
    text = sealed.err(*given, code=1)
    assert "[MC504]" in text
    assert "MILECASTLE_KEYS and MILECASTLE_KEY_STORE, or --app" in text
    assert "walls" not in text


def test_a_history_needs_no_keys(sealed: Desk) -> None:
    assert [line.seq for line in sealed.document("history", "demo").checkpoints] == [3, 2, 1]


def test_with_keys_of_the_environment_states_are_shown(
    sealed: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_keys(monkeypatch)
    (sealed.folder / "demo.py").unlink()
    assert sealed.document("show", "demo").state["topic"] == "walls"
    assert "a fact about walls" in sealed.out("diff", "demo@1", "demo@2")


def test_with_the_keys_of_the_app_states_are_shown(sealed: Desk) -> None:
    assert sealed.document("show", "demo", "--app", "demo:app").state["topic"] == "walls"


def test_what_is_not_encrypted_is_read_all_the_same(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_keys(monkeypatch)
    desk.start()
    assert desk.document("show", "demo").state["topic"] == "walls"
    desk.write("counting.py", COUNTING.replace(", encryption=ring", ""))
    desk.call("run", "counting:app", "--thread", "long", "--input", '{"n": 0}')
    assert desk.document("gc", "--keep-last", "170").dropped > 0


COUNTING = """\
from typing import TypedDict
from milecastle import END, START, ExecutionConfig, Keyring, StateGraph

class Count(TypedDict):
    n: int

graph = StateGraph(Count)
graph.add_node("more", lambda state: {"n": state["n"] + 1})
graph.add_edge(START, "more")
graph.add_edge("more", "more", when=lambda state: state["n"] < 300)
graph.add_edge("more", END)
graph.with_default_config(ExecutionConfig(max_steps=500))
ring = Keyring({"main": b"k" * 32}, store="sqlite:///keys.db")
app = graph.compile(store="sqlite:///runs.db", encryption=ring)
"""


def test_gc_of_an_encrypted_thread_needs_its_key(
    sealed: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed.write("counting.py", COUNTING)
    sealed.call("run", "counting:app", "--thread", "long", "--input", '{"n": 0}')
    given = ("gc", "--keep-last", "170")
    assert sealed.document(*given).undecoded == ("long",)
    assert "long was skipped: it is encrypted" in sealed.call(*given).stderr
    set_keys(monkeypatch)
    done = sealed.document(*given)
    assert (done.undecoded, done.pruned) == ((), 1)
    assert sealed.document("show", "long").state == {"n": 300}
    assert sealed.document("gc", "--older-than", "0s").deleted == ("long",)
    assert len(open_store("sqlite:///keys.db").store.threads("milecastle.keys")) == 1
