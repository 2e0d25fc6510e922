"""The verb of maps: it initialises databases, once, and needs no graph."""

from __future__ import annotations

from pathlib import Path

import pytest

from milecastle.views.documents import ShardsDocument
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
    assert document == ShardsDocument(store="shards.toml", initialised=())
    run = ("run", "demo:graph", "--thread", "t", "--input", '{"topic": "w"}')
    monkeypatch.setenv("MILECASTLE_STORE", str(path))
    desk.call(*run)
    assert "t" in desk.out("ls")
    assert "a: PostgreSQL" in desk.out("doctor")
    assert desk.out("migrate", "--print") == ""
    assert not Path("PWNED").exists()


def test_only_a_map_has_shards(desk: Desk) -> None:
    """Fails if another store is taken for a map, or none is asked for."""
    assert "no map given" in desk.err("shards", "init", code=2)
    assert "only a map" in desk.err("shards", "init", "--store", "sqlite:///x.db", code=2)
    assert "cannot be read" in desk.err("shards", "init", "--store", "none.toml", code=2)
    assert "move" not in desk.err("shards", "burn", code=2)
