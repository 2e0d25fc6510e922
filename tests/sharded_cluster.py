"""Maps of databases for the tests: three databases of the test cluster, or schemas of one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from psycopg import sql

from milecastle.model.keys import SHARDS
from milecastle.stores.sharded import initialise, read_map
from tests.postgres_cluster import emptied, new_schema, the_cluster

NAMES = ("a", "b", "c")


def new_databases(count: int = 3) -> dict[str, str]:
    """The URLs of new databases of the test cluster, by name."""
    urls: dict[str, str] = {}
    for name in NAMES[:count]:
        database = new_schema()
        the_cluster().execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
        urls[name] = the_cluster().url.rpartition("/")[0] + f"/{database}"
    return urls


def write_map(path: Path, urls: Mapping[str, str], *, version: int = 1) -> Path:
    """A map that deals the shards out to databases, one after the other."""
    names = list(urls)
    lines = [f"version = {version}", "", "[databases]"]
    lines += [f'{name} = "{url}"' for name, url in urls.items()]
    lines += ["", "[shards]"]
    lines += [f'{shard} = "{names[shard % len(names)]}"' for shard in range(SHARDS)]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def new_map(folder: Path, count: int = 3) -> Path:
    """A map of new databases, which is initialised."""
    path = write_map(folder / "shards.toml", new_databases(count))
    initialise(read_map(path))
    return path


def empty_map(path: Path) -> None:
    """Empty the tables of all databases: cheaper than new ones."""
    for url in read_map(path).urls.values():
        emptied(url)
