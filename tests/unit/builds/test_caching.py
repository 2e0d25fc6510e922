"""Cached results: each tenant's own, encrypted where states are, gone with their thread."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec
import msgspec.structs
import pytest

from milecastle import END, START, App, CheckpointStore, Keyring, StateGraph, ThreadKey
from milecastle.builds import Cache, FileRun, Workspace, command, files, root
from milecastle.builds.records import CacheEntry
from milecastle.stores.memory import MemoryStore

SECRET = "CANARY"


class Letter(TypedDict):
    customer: str
    topic: str
    text: NotRequired[str]


class Office:
    """Apps of several tenants over one workspace; ``written`` is what their nodes really did."""

    def __init__(self, folder: Path, *, encrypted: bool) -> None:
        self.workspace = Workspace(folder / "workspace")
        self.store = MemoryStore()
        self.ring = Keyring({"k": os.urandom(32)}, store=MemoryStore()) if encrypted else None
        self.written: list[str] = []

    def app(self, tenant: str = "acme", *, store: bool = True, kind: str = "sync") -> App[Letter]:
        def write(state: Letter) -> dict[str, Any]:
            self.written.append(state["customer"])
            return {"text": f"{SECRET} {state['customer']} about {state['topic']}"}

        async def awrite(state: Letter) -> dict[str, Any]:
            return write(state)

        graph = StateGraph(Letter, name="letters")
        cache = Cache(key=lambda state: state["topic"])
        graph.add_node("write", write if kind == "sync" else awrite, cache=cache, version="1")
        graph.add_edges(START, "write", END)
        return graph.compile(
            store=self.store if store else None,
            tenant=tenant,
            encryption=self.ring,
            workspace=self.workspace,
        )

    def write(self, customer: str, thread: Any, tenant: str = "acme", **more: Any) -> str:
        app = self.app(tenant, **more)
        given = {"customer": customer, "topic": "merger"}
        if more.get("kind") == "async":
            return asyncio.run(app.ainvoke(given, thread=thread)).state.get("text", "")
        return app.invoke(given, thread=thread).state.get("text", "")

    def direct(self) -> CheckpointStore:
        return CheckpointStore(self.store, encryption=self.ring)

    def entries(self) -> list[CacheEntry]:
        found = [self.workspace.cache.load(task) for task in self.workspace.cache.names()]
        return [entry for entry in found if entry is not None]


@pytest.fixture(params=["plain", "encrypted"])
def office(tmp_path: Path, request: pytest.FixtureRequest) -> Office:
    return Office(tmp_path, encrypted=request.param == "encrypted")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_results_are_not_shared_between_tenants(office: Office, kind: str) -> None:
    """Within a tenant a result is used again, and never in another tenant.

    Seen to fail without the tenant in the key: the second tenant read the first one's letter. The
    tenant counts whether the app or the thread names it.
    """
    assert "Acme" in office.write("Acme", "1", kind=kind)
    assert "Globex" in office.write("Globex", "1", "globex", kind=kind)
    assert "Initech" in office.write("Initech", ThreadKey("initech", "1"), kind=kind)
    assert "Acme" in office.write("Acme too", "2", kind=kind)
    assert office.written == ["Acme", "Globex", "Initech"]
    assert {entry.tenant for entry in office.entries()} == {"acme", "globex", "initech"}


def test_entry_of_another_tenant_is_not_used_even_under_the_right_key(office: Office) -> None:
    """Seen to fail when the tenant of the entry itself is not looked at."""
    office.write("Acme", "1")
    [entry] = office.entries()
    office.workspace.cache.store(
        office.workspace.places, msgspec.structs.replace(entry, tenant="globex", checksum="")
    )
    assert "Again" in office.write("Again", "2")


def test_no_cached_value_is_in_the_clear_if_states_are_encrypted(tmp_path: Path) -> None:
    """Neither in an entry nor in anything else of the workspace; the control without keys is seen.

    Seen to fail when the update is stored as the codec made it.
    """
    for encrypted in (False, True):
        office = Office(tmp_path / str(encrypted), encrypted=encrypted)
        office.write("Acme", "1")
        [entry] = office.entries()
        stored = b"".join(
            path.read_bytes() for path in office.workspace.path.rglob("*") if path.is_file()
        )
        assert (SECRET.encode() in entry.update + stored) is not encrypted
        assert (entry.tenant, entry.thread) == ("acme", "1")


def test_result_is_gone_with_the_key_of_its_thread(tmp_path: Path) -> None:
    """Once the thread is erased nobody can use the result, although its entry may still be there.

    Seen to fail when entries are encrypted with a key that outlives the thread.
    """
    office = Office(tmp_path, encrypted=True)
    office.write("Acme", "1")
    assert office.direct().erase("acme", ["1"]).erased == ("1",)
    assert len(office.entries()) == 1
    assert "New" in office.write("New", "2")
    assert "New" in office.write("Newer", "3")
    assert office.written == ["Acme", "New"]


def test_erase_removes_results_from_the_workspace(office: Office) -> None:
    """Those of the thread and of no other; with keys or without.

    Seen to fail when `erase` does not look at the workspace.
    """
    office.write("Acme", "1")
    office.write("Globex", "1", "globex")
    report = office.direct().erase("acme", ["1", "2"], workspace=office.workspace)
    assert (report.erased, report.missing, report.cached) == (("1",), ("2",), 1)
    assert [entry.tenant for entry in office.entries()] == ["globex"]
    assert "Again" in office.write("Again", "3")


def test_encrypted_result_opens_only_in_its_place(tmp_path: Path) -> None:
    """Bytes moved to another entry, plain bytes and changed bytes count as no result.

    Seen to fail when the task is not authenticated with the update.
    """
    office = Office(tmp_path, encrypted=True)
    office.write("Acme", "1")
    [entry] = office.entries()
    app = office.app()
    app.invoke({"customer": "B", "topic": "other"}, thread="1b")
    [other] = [one for one in office.entries() if one.task_hash != entry.task_hash]
    for update in (other.update, b"\x80", entry.update[:-1] + bytes([entry.update[-1] ^ 1])):
        moved = msgspec.structs.replace(entry, update=update, thread=other.thread, checksum="")
        office.workspace.cache.store(office.workspace.places, moved)
        count = len(office.written)
        assert f"C{count}" in office.write(f"C{count}", f"t{count}")


def test_run_without_a_thread_leaves_no_result_if_states_are_encrypted(office: Office) -> None:
    """There is no key for it; without encryption it is stored.

    Seen to fail when it is stored in the clear.
    """
    office.write("Acme", None, store=False)
    assert len(office.entries()) == (0 if office.ring else 1)


# -- file runs -------------------------------------------------------------------------------


class Note(TypedDict, total=False):
    said: str


def note_app(workspace: Workspace, ring: Keyring | None, runs: list[str]) -> App[Note]:
    def make() -> dict[str, str]:
        runs.append("make")
        (root() / "note.txt").write_text("public")
        return {"said": SECRET}

    graph = StateGraph(Note, name="notes")
    graph.add_node("make", files(outputs="note.txt", version="1")(make))
    graph.add_node(command("show", ["cat", "note.txt"], inputs="note.txt"))
    graph.add_edges(START, "make", "show", END)
    return graph.compile(workspace=workspace, encryption=ring)


def test_updates_of_file_runs_are_encrypted_and_reused(tmp_path: Path) -> None:
    """What a node returned is in no file of the workspace, and is there in the next run.

    Seen to fail when the update is stored as the codec made it. After its key is erased, the node
    runs again: what does not open is not reused.
    """
    workspace, runs = Workspace(tmp_path / "w"), list[str]()
    ring = Keyring({"k": os.urandom(32)}, store=MemoryStore())
    app = note_app(workspace, ring, runs)
    assert app.build({}).state == {"said": SECRET}
    again = app.build({})
    assert (again.state, again.reused_nodes) == ({"said": SECRET}, ("make", "show"))
    updates = [workspace.cache.load(task) for task in workspace.cache.names()]
    assert not any(SECRET.encode() in entry.update for entry in updates if entry)
    CheckpointStore(MemoryStore(), encryption=ring).erase("default", ["notes"])
    assert "its update cannot be decoded (KeyNotFound)" in str(app.plan())
    assert list(app.build({}).executed) == ["make", "show"]


def test_erase_removes_file_runs_with_their_logs_and_files(tmp_path: Path) -> None:
    """Records, checkpoints, traces, what a command printed, entries and blobs; no other thread's.

    Seen to fail when runs, entries or blobs are left, and when threads share cache entries.
    """
    workspace, runs = Workspace(tmp_path / "w"), list[str]()
    app = note_app(workspace, None, runs)
    for thread in ("one", "two"):
        app.build({}, thread=thread)
    report = CheckpointStore(MemoryStore()).erase("default", ["one", "no"], workspace=workspace)
    assert (report.erased, report.missing, report.cached) == (("one",), ("no",), 2)
    assert [record.key.thread for record in workspace.runs([])] == ["two"]
    assert len(list((workspace.path / "trace").iterdir())) == 1
    assert app.build({}, thread="two").reused_nodes == ("make", "show")
    CheckpointStore(MemoryStore()).erase("default", ["two"], workspace=workspace)
    left = [path for path in workspace.path.rglob("*") if path.is_file()]
    assert {path.name for path in left if not path.name.endswith(".lock")} <= {"index"}


def test_erase_from_a_file_store_reaches_the_cache_in_its_folder(tmp_path: Path) -> None:
    """Its folder is the workspace: nothing has to be named.

    Seen to fail when the folder of the store is not looked at.
    """
    office = Office(tmp_path, encrypted=False)
    office.workspace = Workspace(tmp_path / "store")
    graph = StateGraph(Letter, name="letters")
    graph.add_node("write", lambda: {"text": SECRET}, cache=Cache(), version="1")
    graph.add_edges(START, "write", END)
    stored = graph.compile(store=f"file://{tmp_path}/store", workspace=office.workspace)
    stored.invoke({"customer": "A", "topic": "t"}, thread="1")
    assert stored.store is not None
    report = CheckpointStore(stored.store).erase("default", ["1"])
    assert (report.erased, report.cached) == (("1",), 1)
    assert office.entries() == []


def test_two_threads_of_file_runs_keep_their_own_entries(tmp_path: Path) -> None:
    """Seen to fail when the thread is not part of what a task depends on."""
    workspace, runs = Workspace(tmp_path / "w"), list[str]()
    app = note_app(workspace, Keyring({"k": os.urandom(32)}, store=MemoryStore()), runs)
    for thread in ("one", "two", "one", "two"):
        app.build({}, thread=thread)
    assert runs == ["make", "make"]
    assert FileRun(app, workspace, thread="one", encryption=app.encryption).plan().executed == ()
