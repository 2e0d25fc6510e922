"""Whatever Milecastle writes is its owner's only, unless the owner says otherwise."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import END, START, App, CheckpointStore, Keyring, StateGraph, ThreadKey, append
from milecastle.builds import Cache, FileRun, Workspace, command, files, root
from milecastle.stores.jsonl import JsonlStore

pytestmark = pytest.mark.skipif(os.name == "nt", reason="modes")


class State(TypedDict, total=False):
    token: str
    notes: Annotated[list[str], append]


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """Nothing but the mode that is asked for protects a file."""
    old = os.umask(0)
    yield
    os.umask(old)


def shared(folder: Path) -> dict[str, str]:
    """What others than the owner may read, write or enter, with its mode."""
    return {
        str(path.relative_to(folder)): oct(path.lstat().st_mode & 0o777)
        for path in folder.rglob("*")
        if path.lstat().st_mode & 0o077 and not path.is_symlink()
    }


def compiled(**settings: Any) -> App[State]:
    def tell(state: State) -> State:
        return {"token": "secret", "notes": ["n"]}

    graph = StateGraph(State, name="private")
    graph.add_node("a", tell, cache=Cache())
    graph.add_node("b", lambda: {"notes": ["m"]})
    graph.add_edges(START, "a", "b", END)
    return graph.compile(interrupt_before=["b"], **settings)


@pytest.mark.parametrize("store", ["sqlite:///{}/new.db", "file://{}/deep/store"])
def test_stores_traces_portable_files_and_caches_are_private(tmp_path: Path, store: str) -> None:
    """Every file and folder of a run, with what SQLite puts beside its file.

    Seen to fail, each for its own files, when a single `0o600` or `0o700` is opened up again.
    """
    ring = Keyring({"k": os.urandom(32)}, store=f"sqlite:///{tmp_path}/keys.db")
    app = compiled(
        store=store.format(tmp_path),
        encryption=ring,
        observers=[f"trace:{tmp_path}/logs/more/trace.jsonl"],
        checkpoint_dir=tmp_path / "portable" / "more",
        workspace=tmp_path / "workspace" / "more",
    )
    app.invoke({"token": "x"}, thread="t")
    app.save_checkpoint(tmp_path / "one.pkl", {"token": "s"}, "a")
    found = {path.name for path in tmp_path.rglob("*")}
    assert {"trace.jsonl", "portable", "one.pkl", "entries"} <= found
    assert "new.db-wal" in found or "t.jsonl" in found
    assert shared(tmp_path) == {}
    app.resume("t")
    assert app.store is not None
    CheckpointStore(app.store, encryption=ring).prune(ThreadKey("default", "t"), keep_last=1)
    assert shared(tmp_path) == {}
    app.close()
    ring.close()


def test_copy_that_a_repair_keeps_is_private(tmp_path: Path) -> None:
    """Seen to fail when `files.put` opens its file for others."""
    app = compiled(store=f"file://{tmp_path}/store")
    app.invoke({"token": "x"}, thread="t")
    store = app.store
    assert isinstance(store, JsonlStore)
    key = ThreadKey("default", "t")
    path = store.path_of(key)
    os.truncate(path, path.stat().st_size - 9)
    assert store.repair_thread(key) is not None
    assert shared(tmp_path) == {}


def test_file_of_a_store_keeps_the_mode_that_its_owner_gave_it(tmp_path: Path) -> None:
    """A database that a team shares stays shared, and so does what SQLite puts beside it."""
    path = tmp_path / "team.db"
    with closing(sqlite3.connect(path)):
        path.touch(0o660)
    path.chmod(0o660)
    app = compiled(store=f"sqlite:///{path}")
    app.invoke({"token": "x"}, thread="t")
    assert path.stat().st_mode & 0o777 == 0o660
    assert (tmp_path / "team.db-wal").stat().st_mode & 0o777 == 0o660
    app.close()


def test_workspace_is_private_and_outputs_keep_their_modes(tmp_path: Path) -> None:
    """Runs, checkpoints, traces, locks, logs of commands, blobs; an output is its node's matter.

    Seen to fail when a blob, a log or a lock is made for everybody, and when an output is
    restored with the mode that the umask gives.
    """

    def make_key() -> None:
        (root() / "id").touch(0o600)
        (root() / "id").write_text("secret")

    graph = StateGraph(State, name="keys")
    graph.add_node("make", files(outputs="id")(make_key))
    graph.add_node(command("show", ["cat", "id"], inputs="id"))
    graph.add_edges(START, "make", "show", END)
    project = tmp_path / "project"
    project.mkdir()
    workspace = Workspace(project / ".milecastle", cache_limit=0)
    run = FileRun(graph.compile(), workspace)
    run.run()
    (project / "id").unlink()
    assert run.run().reused == ("make", "show")
    found = {path.suffix or path.name for path in project.rglob("*")}
    assert {".log", ".json", ".jsonl", ".lock", "id"} <= found
    assert shared(project) == {}
