"""gc, verify, repair, copy, migrate, doctor, completion: caring for stores."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec.structs
import pytest

from milecastle import ThreadKey, open_store
from milecastle.model.memory import MemoryWrite, path_of
from milecastle.stores.sqlite import SqliteStore
from tests.postgres_cluster import needs_postgres, new_schema, the_cluster
from tests.unit.cli.commands import DEMO, Desk

FILES = "file://kept"


def filled(url: str, thread: str = "long", count: int = 300) -> None:
    store = open_store(url)
    for number in range(count):
        store.put(ThreadKey("default", thread), {"number": number})
    store.close()


def in_files(desk: Desk) -> Path:
    """The demo's thread, copied to files; where it is."""
    desk.start()
    desk.call("copy", "sqlite:///runs.db", FILES)
    return desk.folder / "kept" / "threads" / "default" / "demo.jsonl"


# -- gc


def test_gc_says_what_would_go_and_lets_it_go(desk: Desk) -> None:
    filled("sqlite:///runs.db", "long")
    dry = desk.document("gc", "--keep-last", "20", "--dry-run")
    assert (dry.dry_run, dry.pruned, dry.threads) == (True, 1, 1)
    assert "would delete" in desk.out("gc", "--keep-last", "20", "--dry-run")
    assert len(desk.document("history", "long").checkpoints) == 300
    assert desk.document("gc", "--keep-last", "20").dropped == dry.dropped
    assert len(desk.document("history", "long").checkpoints) == 300 - dry.dropped


def test_gc_by_age_lets_ended_threads_go_whole(desk: Desk) -> None:
    filled("sqlite:///runs.db", "old", 3)
    desk.start("waits")
    assert desk.document("gc", "--older-than", "30d").deleted == ()
    assert "deleted thread old" in desk.out("gc", "--older-than", "0s")
    assert [line.thread for line in desk.document("ls").threads] == ["waits"]


def test_gc_of_named_threads_only(desk: Desk) -> None:
    filled("sqlite:///runs.db", "a", 3)
    filled("sqlite:///runs.db", "b", 3)
    assert desk.document("gc", "--older-than", "0s", "--thread", "a").deleted == ("a",)
    assert "there is no thread 'c'" in desk.err("gc", "--older-than", "0s", "--thread", "c", code=2)


def test_gc_needs_a_rule_and_an_age_that_is_one(desk: Desk) -> None:
    desk.start()
    assert "nothing selected" in desk.err("gc", code=2)
    assert "is not an age" in desk.err("gc", "--older-than", "soon", code=2)


TYPED = """\
from dataclasses import dataclass
from typing import TypedDict
from milecastle import END, START, ExecutionConfig, StateGraph

@dataclass
class Page:
    number: int

class Book(TypedDict):
    page: Page

graph = StateGraph(Book)

@graph.node
def turn(state: Book) -> dict:
    return {"page": Page(state["page"].number + 1)}

graph.add_edge(START, "turn")
graph.add_edge("turn", "turn", when=lambda state: state["page"].number < 300)
graph.add_edge("turn", END)
graph.with_default_config(ExecutionConfig(max_steps=500))
app = graph.compile(store="sqlite:///runs.db")
if __name__ == "__main__":
    app.invoke({"page": Page(0)}, thread="book")
"""


def test_gc_leaves_alone_what_needs_the_code_unless_it_gets_it(desk: Desk) -> None:
    path = desk.write("book.py", TYPED)
    subprocess.run([sys.executable, str(path)], check=True, cwd=desk.folder)
    alone = desk.document("gc", "--keep-last", "170")
    assert (alone.undecoded, alone.dropped) == (("book",), 0)
    assert "book was skipped" in desk.call("gc", "--keep-last", "170").stderr
    done = desk.document("gc", "--keep-last", "170", "--app", "book:app")
    assert done.undecoded == ()
    assert done.dropped > 0


COUNTING = """\
from typing import TypedDict
from milecastle import END, START, ExecutionConfig, StateGraph

class Count(TypedDict):
    n: int

graph = StateGraph(Count)

@graph.node
def up(state: Count) -> dict:
    return {"n": state["n"] + 1}

graph.add_edge(START, "up")
graph.add_edge("up", "up", when=lambda state: state["n"] < 90)
graph.add_edge("up", END)
graph.with_default_config(ExecutionConfig(max_steps=100))
app = graph.compile(store="sqlite:///runs.db")
"""


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_gc_says_why_it_kept_more(desk: Desk, dry: list[str]) -> None:
    """Seen to fail: `--keep-last 1` left dozens of checkpoints and said nothing."""
    desk.write("counting.py", COUNTING)
    desk.call("run", "counting:app", "--thread", "c", "--input", '{"n": 0}')
    document = desk.document("gc", "--keep-last", "1", "--dry-run")
    (kept,) = document.kept_more
    assert (kept.thread, kept.why) == ("c", "head")
    told = desk.call("gc", "--keep-last", "1", *dry).stderr
    assert f"1 thread kept more than --keep-last (c has {kept.checkpoints}): their heads" in told
    left = len(desk.document("history", "c").checkpoints)
    assert left == (91 if dry else kept.checkpoints)
    assert desk.document("gc", "--keep-last", "200").kept_more == ()


def test_gc_says_that_checkpoints_are_young(desk: Desk) -> None:
    desk.start()
    document = desk.document("gc", "--keep-last", "1", "--older-than", "1d")
    (kept,) = document.kept_more
    assert (kept.thread, kept.checkpoints, kept.why) == ("demo", 3, "young")
    assert document.dropped == 0
    told = desk.call("gc", "--keep-last", "1", "--older-than", "1d").stderr
    assert "1 thread kept more than --keep-last (demo has 3): those are newer" in told


# -- verify and repair


def test_everything_that_is_whole_is_counted(desk: Desk) -> None:
    desk.start("a")
    desk.start("b")
    assert desk.out("verify") == "2 threads, 6 checkpoints, 2 runs: no damage found\n"
    assert desk.document("verify", "a").checkpoints == 3


def test_a_flipped_bit_in_a_file_is_found_with_its_place(desk: Desk) -> None:
    path = in_files(desk)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    document = desk.document("verify", "--store", FILES, code=1)
    (damage,) = document.damage
    assert damage.thread == "demo"
    assert str(path) in damage.place
    assert "line" in damage.place
    text = desk.call("verify", "--store", FILES, code=1)
    assert str(path) in text.stdout
    assert "`milecastle repair`" in text.stderr


def test_a_damaged_first_line_does_not_hide_the_other_logs(desk: Desk) -> None:
    path = in_files(desk)
    filled(FILES, "other", 2)
    path.write_bytes(b"x" + path.read_bytes()[1:])
    document = desk.document("verify", "--store", FILES, code=1)
    assert (document.threads, document.checkpoints) == (2, 2)
    assert [damage.thread for damage in document.damage] == [None]
    assert desk.document("repair", "--store", FILES, code=1).damage[0].thread is None


def test_a_damaged_row_of_sqlite_is_found_with_its_place(desk: Desk) -> None:
    desk.start()
    with sqlite3.connect("runs.db") as connection:
        (payload,) = connection.execute("SELECT payload FROM entries LIMIT 1").fetchone()
        spoilt = payload[:-1] + bytes([payload[-1] ^ 1])
        connection.execute("UPDATE entries SET payload = ? WHERE payload = ?", (spoilt, payload))
    connection.close()
    document = desk.document("verify", code=1)
    assert document.damage[0].thread == "demo"
    assert "runs.db" in document.damage[0].place


def test_torn_line_is_removed_and_a_copy_is_saved(desk: Desk) -> None:
    path = in_files(desk)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"length":500,"seq":')
    assert desk.document("verify", "--store", FILES, code=1).damage[0].thread == "demo"
    assert "[MC402]" in desk.err("show", "demo", "--store", FILES, code=1)
    (line,) = desk.document("repair", "--store", FILES).repaired
    assert line.thread == "demo"
    assert Path(line.kept).read_bytes() != whole
    assert path.read_bytes() == whole
    assert "1 thread, 0 repaired" in desk.out("repair", "--store", FILES)
    desk.call("verify", "--store", FILES)


def test_repair_of_one_thread(desk: Desk) -> None:
    path = in_files(desk)
    path.write_bytes(path.read_bytes() + b'{"length":')
    assert "torn line removed" in desk.out("repair", "demo", "--store", FILES)


def test_there_is_nothing_to_repair_in_a_database(desk: Desk) -> None:
    desk.start()
    assert "nothing to repair" in desk.call("repair").stderr
    assert desk.document("repair").repaired == ()


# -- copy


def test_a_copy_has_the_same_history_and_a_second_one_adds_nothing(desk: Desk) -> None:
    desk.start("a")
    desk.start("b")
    assert desk.out("copy", "sqlite:///runs.db", FILES) == (
        "2 threads, 2 changed, 6 checkpoints copied\n"
    )
    assert desk.document("copy", "sqlite:///runs.db", FILES).changed == 0
    here = desk.document("history", "a").checkpoints
    assert desk.document("history", "a", "--store", FILES).checkpoints == here


def test_one_thread_is_copied(desk: Desk) -> None:
    desk.start("a")
    desk.start("b")
    assert desk.document("copy", "sqlite:///runs.db", FILES, "--thread", "b").threads == 1
    assert [line.thread for line in desk.document("ls", "--store", FILES).threads] == ["b"]


def test_long_term_memory_is_copied_if_asked(desk: Desk) -> None:
    write = MemoryWrite(path=path_of(("users", "u7")), key="tea", value=b"tea")
    with closing(SqliteStore("runs.db")) as store:
        store.memory.write("default", [write])
    other = "sqlite:///other.db"
    assert desk.document("copy", "sqlite:///runs.db", other).items == 0
    assert desk.out("copy", "sqlite:///runs.db", other, "--memory") == (
        "0 threads, 0 changed, 0 checkpoints and 1 item copied\n"
    )
    assert "long-term memory" in desk.err("copy", "sqlite:///runs.db", FILES, "--memory", code=2)


def test_another_history_under_the_same_name_is_a_conflict(desk: Desk) -> None:
    desk.start()
    filled(FILES, "demo", 2)
    text = desk.err("copy", "sqlite:///runs.db", FILES, code=6)
    assert "[MC401]" in text
    assert "a different history under this name" in text


def test_a_source_that_is_not_there_is_unreachable(desk: Desk) -> None:
    desk.err("copy", "sqlite:///none.db", FILES, code=4)


# -- migrate and doctor


def test_tables_that_are_up_to_date_need_no_migration(desk: Desk) -> None:
    desk.start()
    assert "nothing to do" in desk.call("migrate").stderr
    document = desk.document("migrate", "--print")
    assert (document.pending, document.applied, document.sql) == (False, False, "")
    assert desk.document("migrate", "--store", FILES).sql == ""


def test_what_is_missing_is_printed_and_then_done(desk: Desk) -> None:
    sqlite3.connect("empty.db").close()
    (desk.folder / "empty.db").touch()
    url = ("--store", "sqlite:///empty.db")
    assert "CREATE TABLE" in desk.out("migrate", "--print", *url)
    assert desk.document("migrate", "--print", *url).pending
    assert desk.document("doctor", *url).checks[2].verdict == "warning"
    assert desk.out("migrate", *url) == "the tables are up to date now\n"
    assert not desk.document("migrate", "--print", *url).pending


def test_a_store_must_be_named_to_be_migrated(desk: Desk) -> None:
    assert "no store given" in desk.err("migrate", code=2)


def test_a_healthy_store_has_nothing_to_do(desk: Desk) -> None:
    desk.start()
    document = desk.document("doctor", "--app", "demo:app")
    assert document.ok
    names = "versions settings migrations permissions disk store queue clock app"
    assert [check.name for check in document.checks] == names.split()
    assert {check.verdict for check in document.checks} == {"ok"}
    assert "has 1 thread of 'default'" in desk.out("doctor")


def test_a_doctor_says_what_to_do(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "store: --store" in desk.out("doctor")
    assert "the first run creates it" in desk.out("doctor", "--store", "sqlite:///new.db")
    text = desk.out("doctor", "--store", "sqlite:///no/such/folder.db", code=4)
    assert "create the folder first" in text
    desk.start()
    assert "`milecastle check none:app`" in desk.out("doctor", "--app", "none:app", code=1)
    monkeypatch.setattr("milecastle.cli.verbs.doctor.shutil.disk_usage", _full_disk)
    assert "free some space" in desk.out("doctor", code=1)


def test_a_doctor_warns_of_little_room(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a disk that is nearly full is ok, or is already a failure."""
    desk.start()
    monkeypatch.setattr("milecastle.cli.verbs.doctor.shutil.disk_usage", _small_disk)
    document = desk.document("doctor")
    (disk,) = (check for check in document.checks if check.name == "disk")
    assert (document.ok, disk.verdict) == (True, "warning")
    assert "milecastle gc" in disk.advice


def test_a_doctor_finds_a_file_of_a_newer_version(desk: Desk) -> None:
    """Fails if the version is not compared, or the advice is that of another file."""
    desk.start()
    with closing(sqlite3.connect("runs.db")) as database:
        database.execute("PRAGMA user_version = 999")
    text = desk.out("doctor", code=1)
    assert "the file has version 999" in text
    assert "upgrade milecastle" in text


def test_a_doctor_finds_a_damaged_row(desk: Desk) -> None:
    """A list goes on without it. Fails if the warning of the list is not looked at."""
    desk.start()
    with closing(sqlite3.connect("runs.db")) as database, database:
        database.execute("UPDATE threads SET runs = runs + 1")
    assert "table threads, row 1" in desk.out("doctor", code=4)


def test_a_doctor_of_files_needs_no_migrations(desk: Desk) -> None:
    """Fails if a store without tables is asked for a version."""
    in_files(desk)
    assert "files need none" in desk.out("doctor", "--store", FILES)


def test_a_doctor_of_an_app_without_a_store_asks_for_none(desk: Desk) -> None:
    """Fails if it warns that no store is set: the app has what it wants."""
    desk.write(
        "plain.py", DEMO.replace('store="sqlite:///runs.db", interrupt_before=["write"]', "")
    )
    document = desk.document("doctor", "--app", "plain:app")
    assert [check.name for check in document.checks] == ["versions", "settings", "app"]


class _Usage:
    free = 1000


class _LittleUsage:
    free = 200 << 20


def _closed(*_: object) -> bool:
    return False


def _full_disk(path: object) -> _Usage:
    return _Usage()


def _small_disk(path: object) -> _LittleUsage:
    return _LittleUsage()


def test_a_doctor_finds_a_file_that_is_something_else(desk: Desk) -> None:
    desk.write("runs.db", "this is not a database, and is long enough to be seen as none" * 30)
    assert "is it the right file?" in desk.out("doctor", code=1)


def test_a_doctor_finds_a_folder_that_cannot_be_written(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.start()
    monkeypatch.setattr("milecastle.cli.verbs.doctor.os.access", _closed)
    assert "give this user write permission" in desk.out("doctor", code=1)


def test_a_doctor_finds_a_clock_that_went_back(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.start()
    monkeypatch.setattr("milecastle.cli.verbs.doctor.time.time", lambda: 1_000_000_000.0)
    assert "in the future" in desk.out("doctor")


# -- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_its_completion(desk: Desk, shell: str) -> None:
    assert "_MILECASTLE_COMPLETE" in desk.out("completion", shell)
    assert desk.document("completion", shell).shell == shell


def test_threads_are_completed(desk: Desk) -> None:
    desk.start("demo-a")
    desk.start("other")
    assert complete("milecastle show de", 2) == ["plain,demo-a"]
    assert complete("milecastle sho", 1) == ["plain,show"]
    assert complete("milecastle ls --st", 2) == ["plain,--store", "plain,--status"]


def complete(words: str, word: int) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "milecastle"],
        env={
            **os.environ,
            "_MILECASTLE_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(word),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(done.stdout.split(), key=lambda line: (line != "plain,--store", line))


def test_completion_without_a_store_is_empty(desk: Desk) -> None:
    assert complete("milecastle show de", 2) == []


def test_all_json_is_json_and_nothing_else(desk: Desk) -> None:
    desk.start()
    for verb in (["ls"], ["verify"], ["doctor"], ["history", "demo"], ["show", "none"]):
        code = 2 if verb == ["show", "none"] else 0
        json.loads(desk.out(*verb, "--json", code=code))


@needs_postgres
def test_postgresql_is_looked_at_without_being_changed(desk: Desk) -> None:
    schema = new_schema()
    url = ("--store", the_cluster().url_of(schema))
    pending = desk.document("doctor", *url)
    assert [(one.name, one.verdict) for one in pending.checks[2:3]] == [("migrations", "warning")]
    assert "CREATE TABLE" in desk.out("migrate", "--print", *url)
    assert desk.document("migrate", "--print", *url).pending
    assert desk.document("migrate", *url).applied
    assert not desk.document("migrate", "--print", *url).pending
    role = f"reader_{schema}"
    the_cluster().execute(f"CREATE ROLE {role} LOGIN".encode())
    the_cluster().execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}".encode())
    the_cluster().execute(f"GRANT SELECT ON {schema}.format TO {role}".encode())
    text = desk.out("doctor", "--store", the_cluster().url_of(schema, role), code=1)
    assert "tables are not accessible to this role" in text
    assert "is the server running" in desk.out(
        "doctor", "--store", "postgresql://127.0.0.1:1/x", code=4
    )


SUBGRAPHS = """\
from typing import TypedDict
from milecastle import END, START, StateGraph

class State(TypedDict):
    n: int

inner = StateGraph(State, name="inner")
inner.add_node("add", lambda state: {"n": state["n"] + 1})
inner.add_edges(START, "add", END)
outer = StateGraph(State, name="outer")
outer.add_node("sub", inner.compile())
outer.add_edges(START, "sub", END)
app = outer.compile(store="sqlite:///runs.db", interrupt_before=["sub"])
"""


def test_threads_of_subgraphs_stay_with_theirs(desk: Desk) -> None:
    desk.write("nested.py", SUBGRAPHS)
    desk.call("run", "nested:app", "--thread", "n", "--input", '{"n": 1}', code=3)
    desk.call("resume", "n", "--app", "nested:app")
    assert [line.thread for line in desk.document("ls").threads] == ["n"]
    everything = [line.thread for line in desk.document("ls", "--subgraphs").threads]
    assert len(everything) == 2
    assert desk.document("verify").threads == 2
    assert [line.thread for line in desk.document("runs").runs] == ["n"]
    assert [line.thread for line in desk.document("runs", "--subgraphs").runs] == everything
    assert [line.thread for line in desk.document("runs", "n", "--subgraphs").runs] == everything
    assert desk.document("copy", "sqlite:///runs.db", FILES, "--thread", "n").threads == 2
    assert desk.document("check", "nested:app", "--threads").threads == ()
    foreseen = desk.document("gc", "--older-than", "0s", "--dry-run")
    assert (foreseen.threads, foreseen.deleted) == (1, ("n",))
    assert desk.document("gc", "--older-than", "0s") == msgspec.structs.replace(
        foreseen, dry_run=False
    )
    assert desk.document("ls", "--subgraphs").threads == ()


def test_damaged_run_is_skipped_in_a_list_and_an_error_of_its_thread(desk: Desk) -> None:
    """Fails if one thread hides the runs of all, or is left out without a word."""
    desk.start("one")
    desk.start("two")
    with closing(sqlite3.connect("runs.db")) as database, database:
        order = "UPDATE runs SET retry_count = 7 WHERE thread = (SELECT id FROM threads"
        assert database.execute(f"{order} WHERE thread = 'one')").rowcount == 1
    listed = desk.call("runs")
    assert "one was skipped" in listed.stderr
    assert "two" in listed.stdout
    assert "checksum" in desk.err("runs", "one", code=1)


def test_gc_names_a_damaged_thread_and_goes_on(desk: Desk) -> None:
    """Fails if it asks for the code of the graph, or ends at the first that is damaged."""
    desk.start("one")
    desk.start("two")
    with closing(sqlite3.connect("runs.db")) as database, database:
        database.execute("UPDATE entries SET step = step + 1 WHERE id / 4294967296 = 1")
    text = desk.call("gc", "--keep-last", "1").stderr
    assert "`milecastle verify` reports the details" in text
