"""The verb of maps: it initialises databases, once, and needs no graph."""

from __future__ import annotations

from pathlib import Path

import pytest

from milecastle.model.keys import ThreadKey
from milecastle.views.documents import MoveLine, ShardsDocument
from tests.postgres_cluster import needs_postgres
from tests.sharded_cluster import new_databases, write_map
from tests.unit.cli.commands import Desk


@needs_postgres
def test_databases_are_initialised_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if it says that it did what it did not, or imports the app of the folder."""
    path = write_map(desk.folder / "shards.toml", new_databases(2))
    desk.write("planted.py", "open('PWNED', 'w').close()\nraise SystemExit")
    desk.write("pyproject.toml", '[tool.milecastle]\napp = "planted:app"\nstore = "shards.toml"\n')
    refused = desk.err("ls", code=4)
    assert "belongs to no map" in refused
    assert desk.out("shards", "init") == "initialised a\ninitialised b\n"
    assert desk.out("shards", "init", "--store", str(path)) == "every database is initialised\n"
    document = desk.json(ShardsDocument, "shards", "init", "--store", "shards.toml")
    assert document == ShardsDocument(store="shards.toml")
    run = ("run", "demo:graph", "--thread", "t", "--input", '{"topic": "w"}')
    monkeypatch.setenv("MILECASTLE_STORE", str(path))
    desk.call(*run)
    assert "t" in desk.out("ls")
    assert "a: PostgreSQL" in desk.out("doctor")
    assert desk.out("migrate", "--print") == ""
    shard = ThreadKey("default", "t").shard
    to = "ab"[1 - shard % 2]
    moved = desk.json(ShardsDocument, "shards", "move", str(shard), "--to", to)
    assert moved.moved == (MoveLine(shard=shard, to=to),)
    assert "t" in desk.out("ls")
    said = desk.out("shards", "move", f"{shard}-{shard}", "--to", to)
    assert said == f"shard {shard} was already in {to}\n"
    back = "ab"[shard % 2]
    assert (
        desk.out("shards", "move", str(shard), "--to", back) == f"shard {shard} is now in {back}\n"
    )
    assert not desk.json(ShardsDocument, "shards", "plan", "--sample", "0").planned
    said = desk.out("shards", "plan", "--sample", "0.01")
    assert said == "the databases are about equally large and busy\n"
    assert not Path("PWNED").exists()


def test_only_a_map_has_shards(desk: Desk) -> None:
    """Fails if another store is taken for a map, or none is asked for."""
    assert "no map given" in desk.err("shards", "init", code=2)
    assert "only a map" in desk.err("shards", "init", "--store", "sqlite:///x.db", code=2)
    assert "cannot be read" in desk.err("shards", "init", "--store", "none.toml", code=2)
    assert "init" in desk.err("shards", "burn", code=2)
    assert "write: shards move" in desk.err("shards", "move", "7", "--store", "x.toml", code=2)
    assert "17 or 0-99" in desk.err("shards", "move", "all", "--to", "a", code=2)
