"""Stores that others wrote: the verbs that maintain stores ask them by the port, or say so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from milecastle import register_store
from milecastle.ports.maintenance import Check, Finding, Inspected, Maintenance, Pending, Repaired
from milecastle.ports.store import Store
from milecastle.stores.jsonl import JsonlStore
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite import SqliteStore
from tests.unit.cli.commands import Desk

STORE = "barn://red"


class Barn(JsonlStore):
    """A store of somebody else's, with tables that can be behind and a beam that can be rotten."""

    opened = 0
    version = 2
    rotten = False

    def __init__(self, url: str) -> None:
        Barn.opened += 1
        super().__init__(url.removeprefix("barn://"))

    def verify(self, tenant: str, threads: Sequence[str] = ()) -> Iterator[Inspected]:
        if Barn.rotten:
            yield Inspected(findings=(Finding("beam 3", "rotten"),), is_thread=False)
        yield from super().verify(tenant, threads)

    @classmethod
    def unopened(cls, url: str) -> Yard:
        return Yard()


class Yard:
    """What a barn is asked while its door is shut."""

    def pending_migrations(self) -> Pending:
        sql = "ALTER BARN;\n" if Barn.version < 2 else ""
        return Pending(version=Barn.version, latest=2, sql=sql)

    def migrate(self) -> str:
        sql, Barn.version = self.pending_migrations().sql, 2
        return sql

    def examine(self) -> tuple[Check, ...]:
        return (Check("hay", "warning", "it is low", "bring hay"),)


class Shed(MemoryStore):
    """A store that implements nothing but ``Store``."""


@pytest.fixture(autouse=True)
def barns(desk: Desk) -> Iterator[None]:
    desk.start()
    desk.call("copy", "sqlite:///runs.db", "file://red")
    register_store("barn", Barn)
    register_store("shed", lambda url: Shed())
    yield
    Barn.opened, Barn.version, Barn.rotten = 0, 2, False


def test_verify_reports_what_a_store_finds_below_its_threads(desk: Desk) -> None:
    """Seen to fail with a ``verify`` that ignored the port."""
    assert desk.document("verify", "--store", STORE).checkpoints == 3
    Barn.rotten = True
    document = desk.document("verify", "--store", STORE, code=1)
    (damage,) = document.damage
    assert (damage.thread, damage.place, damage.problem) == (None, "beam 3", "rotten")
    assert (document.threads, document.checkpoints) == (1, 3)


def test_doctor_shows_the_checks_of_a_store(desk: Desk) -> None:
    checks = {check.name: check for check in desk.document("doctor", "--store", STORE).checks}
    assert checks["hay"].advice == "bring hay"
    assert checks["migrations"].found == "the tables are up to date (version 2)"
    assert checks["store"].found == "barn://red has 1 thread of 'default'"
    assert checks["clock"].verdict == "ok"


def test_store_behind_is_not_opened_before_it_is_migrated(desk: Desk) -> None:
    """Seen to fail with a ``Session.unopened`` that always opened the store."""
    Barn.version = 1
    checks = {check.name: check for check in desk.document("doctor", "--store", STORE).checks}
    assert checks["migrations"].verdict == "warning"
    assert "store" not in checks
    assert desk.out("migrate", "--print", "--store", STORE) == "ALTER BARN;\n"
    assert Barn.opened == 0
    assert desk.document("migrate", "--store", STORE).applied
    assert "nothing to do" in desk.call("migrate", "--store", STORE).stderr


def test_repair_works_by_the_port(desk: Desk) -> None:
    path = desk.folder / "red" / "threads" / "default" / "demo.jsonl"
    path.write_bytes(path.read_bytes() + b'{"length":')
    assert "torn line removed" in desk.out("repair", "--store", STORE)


@pytest.mark.parametrize("verb", ["verify", "repair", "migrate"])
def test_store_without_the_port_gets_a_clear_message(desk: Desk, verb: str) -> None:
    said = desk.call(verb, "--store", "shed://").stderr
    assert "shed://" in said
    assert "it has no milecastle.stores.Maintenance" in said


def test_doctor_opens_a_store_without_the_port(desk: Desk) -> None:
    checks = {check.name: check for check in desk.document("doctor", "--store", "shed://").checks}
    assert "it has no" in checks["migrations"].found
    assert checks["store"].verdict == "ok"


def test_stores_implement_the_port(tmp_path: Path) -> None:
    """A protocol with a method more would leave out all of them, and no verb would say so."""
    stores: list[Store] = [JsonlStore(tmp_path), SqliteStore(tmp_path / "a.db")]
    assert all(store.maintenance is not None for store in stores)
    assert Shed().maintenance is None


def test_stores_without_threads_repair_nothing(tmp_path: Path) -> None:
    stores = (JsonlStore(tmp_path), SqliteStore(tmp_path / "a.db"))
    found: list[Repaired] = [line for store in stores for line in store.repair("t")]
    assert found == []


def test_stores_that_lack_nothing_have_no_migration(tmp_path: Path) -> None:
    """Fails if a store of files answers with something else than no SQL."""
    stores: list[Maintenance] = [JsonlStore(tmp_path), SqliteStore(tmp_path / "a.db")]
    assert [store.migrate() for store in stores] == ["", ""]


def test_command_line_imports_no_store_to_maintain_another() -> None:
    verbs = ("verify", "repair", "migrate", "doctor")
    imports = "".join(f"import milecastle.cli.verbs.{verb}\n" for verb in verbs)
    shown = "print([name for name in sys.modules if name.startswith('milecastle.stores.')])"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{imports}{shown}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "['milecastle.stores.opening']\n"
