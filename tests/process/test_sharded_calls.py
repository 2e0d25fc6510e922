"""The store of many databases: pages, tags, feeds, bells and maintenance over all of them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import psycopg
import pytest

from milecastle import InvalidRequest, Unavailable
from milecastle.cli.session import masked
from milecastle.model.keys import ThreadKey
from milecastle.model.tags import TagChange
from milecastle.stores import ShardedStore as Exported
from milecastle.stores.opening import find_shards, find_store, find_unopened
from milecastle.stores.postgres.address import parse
from milecastle.stores.postgres.shard_member import ShardMember
from milecastle.stores.sharded import MapServers, ShardedStore, read_map
from milecastle.testing.contract_claims import LANE, a_line, queued
from milecastle.testing.entries import Writer
from tests.postgres_cluster import needs_postgres, wait_until
from tests.sharded_cluster import empty_map, new_databases, new_map, write_map

pytestmark = needs_postgres


@pytest.fixture(scope="module")
def initialised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_map(tmp_path_factory.mktemp("map"))


@pytest.fixture
def path(initialised: Path) -> Path:
    empty_map(initialised)
    return initialised


def test_pages_of_all_databases_are_one_list(
    store: ShardedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, each item once. Fails if a page leaves out or repeats one, or asks for more."""
    names = [f"{number:02}" for number in range(30)]
    for number, name in enumerate(names, 1):
        writer = Writer(ThreadKey("tenant", name), number).begin(store)
        asleep = a_line(writer, status="sleeping", wake_at=100 - number, due_at=None)
        writer.append(store, thread=asleep, tags=TagChange(add=("x",)))
    asked: list[object] = []
    recent = ShardMember.recent_lines

    def counted(self: ShardMember, *given: Any) -> object:
        asked.append(given[2])
        return recent(self, *given)

    monkeypatch.setattr(ShardMember, "recent_lines", counted)
    for call, expected in (
        (store.recent_threads, names[::-1]),
        (store.waking_threads, names[::-1]),
        (store.recent_runs, names[::-1]),
    ):
        found: list[str] = []
        after: str | None = None
        for _ in range(99):
            page = call("tenant", limit=7, after=after)
            assert len(page.items) <= 7
            found += [item.key.thread for item in page.items]
            after = page.after
            if after is None:
                break
        assert found == expected
    assert set(asked) == {7}
    first = store.threads("tenant", limit=9)
    rest = store.threads("tenant", after=first[-1].key.thread)
    assert [line.key.thread for line in (*first, *rest)] == names
    assert [one.key.thread for one in store.tags.threads("tenant", "x", limit=4)] == names[:4]
    assert store.tags.of("tenant", [*names[:3], "nobody", "", "\0"]) == dict.fromkeys(
        names[:3], ("x",)
    )
    many = store.read_many([ThreadKey("tenant", name) for name in names])
    assert sorted(key.thread for key in many) == names
    inspected = [one.thread for one in store.verify("tenant")]
    assert sorted(str(name) for name in inspected) == names
    assert [one.thread for one in store.verify("tenant", ["07"])] == ["07"]
    assert list(store.repair("tenant")) == []


def test_claims_of_many_tenants_go_round_all_databases(store: ShardedStore) -> None:
    """Fails if a tenant is served twice before another was, wherever their threads are."""
    tenants = [f"t{number:02}" for number in range(12)]
    for number in range(1, 61):
        queued(store, f"{number}", number, tenant=tenants[number % 12], due_at=number)
    served = [line.key.tenant for _ in range(6) for line in store.claim("one", [LANE], limit=2)]
    assert sorted(served) == tenants
    assert len(store.claim("one", [LANE], limit=99)) == 48
    assert store.claim("one", [""], limit=99) == []


def test_lanes_with_many_sleeping_groups_are_passed(
    store: ShardedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a look that ended early begins at the same place again."""
    monkeypatch.setattr("milecastle.stores.postgres.claiming.VISITS", 3)
    for number in range(1, 20):
        due = 5 if number > 14 else 2**53
        queued(store, "x", number, tenant=f"t{number:02}", due_at=due)
    for number in range(20, 60):
        queued(store, f"{number}", number, tenant="waits longest", due_at=1)
    found = [line for _ in range(24) for line in store.claim("one", [LANE], limit=1)]
    assert len(found) == 24
    assert len({line.key.tenant for line in found}) > 3


def test_values_and_bells_come_from_every_database(store: ShardedStore) -> None:
    """Fails if a thread's feed, or a bell, is that of another database."""
    rang, heard = Event(), list[bytes]()
    listening = store.listen(rang.set)
    try:
        wait_until(lambda: listening.is_connected)
        soon_heard = list[bytes]()
        for number in range(6):
            key = ThreadKey("tenant", f"{number}")
            rang.clear()
            queued(store, key.thread, number + 1)
            assert rang.wait(30)
            end = store.feed.subscribe(key, heard.append)
            soon = store.feed.subscribe_soon(key, lambda payload: None)
            store.feed.publish(key, b"%d" % number)
            wait_until(lambda: len(heard) > len(soon_heard))
            soon_heard.append(heard[-1])
            end()
            soon()
        assert soon_heard == [b"%d" % number for number in range(6)]
    finally:
        listening.close()


def test_a_map_is_opened_by_its_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a path, a name or a URL of the file is not recognised as a map."""
    monkeypatch.chdir(path.parent)
    assert Exported is ShardedStore
    for url in (str(path), "shards.toml", f"shards://{path}", "shards://shards.toml"):
        with closing(find_store(url)) as store:
            assert isinstance(store, ShardedStore)
            assert store.part_of is not None
            assert store.maintenance is not None
        assert isinstance(find_unopened(url), MapServers)
        assert list(find_shards(url).initialise()) == []
    assert masked("shards.toml") == "shards.toml"
    assert masked("/etc/milecastle/shards.toml") == "/etc/milecastle/shards.toml"
    with pytest.raises(InvalidRequest, match="only a map of databases has shards"):
        find_shards("memory://")


def test_the_databases_of_a_map_are_migrated_together(tmp_path: Path) -> None:
    """Fails if one is left out, or the SQL does not say which one it is for."""
    path = write_map(tmp_path / "shards.toml", new_databases(2))
    servers = MapServers(read_map(path))
    pending = servers.pending_migrations()
    assert (pending.version, pending.sql.count("-- database ")) == (0, 2)
    assert servers.migrate() == pending.sql
    assert servers.migrate() == ""
    assert servers.pending_migrations().sql == ""
    checks = {check.name: check.found for check in servers.examine()}
    assert len(checks) == len(servers.examine())
    assert all(found.startswith("a: ") and "; b: " in found for found in checks.values())


def test_a_map_of_one_database_asks_without_a_thread(tmp_path: Path) -> None:
    """Fails if a map of one cannot claim, or waits in another way than one database does."""
    path = new_map(tmp_path, 1)
    with closing(ShardedStore(path)) as store:
        queued(store, "x")
        assert len(store.claim("one", [LANE], limit=9)) == 1
        url = read_map(path).urls["a"]
        with psycopg.connect(**parse(url).connect) as connection:
            found = connection.execute(b"SELECT count(*) FROM milecastle.placements").fetchone()
            assert found == (1024,)


def test_groups_of_commits_are_formed_for_each_database(store: ShardedStore, path: Path) -> None:
    """Fails if parts are made again each time, or one writes what is another's."""
    shards = read_map(path)
    writers = [Writer(ThreadKey("tenant", f"{number}"), number).begin(store) for number in range(9)]
    parts = {shards.owners[writer.key.shard]: store.part_of(writer.key) for writer in writers}
    assert len(parts) == 3
    for writer in writers:
        part = store.part_of(writer.key)
        assert part is parts[shards.owners[writer.key.shard]]
        assert part.writers == 4
        assert list(part.commit_many([writer.batch(writer.plan())])) == [None]
        head = part.head(writer.key)
        assert head is not None
        assert head.seq == 2


def test_a_history_that_cannot_be_read_on_names_its_database(
    store: ShardedStore, path: Path
) -> None:
    """Fails if what is read later raises the error of the database alone."""
    writer = Writer(ThreadKey("tenant", "t")).begin(store)
    listed = store.history(writer.key)
    store.close()
    with pytest.raises(Unavailable, match="of the map"):
        list(listed)
