"""What the page on PostgreSQL says is done on a real server: its SQL, a backup and a restore."""

from __future__ import annotations

import re
from typing import TypedDict

import pytest

from milecastle import END, START, App, StateGraph
from milecastle.stores.postgres import migrate
from milecastle.stores.postgres.address import parse
from tests.docs.pages import blocks, read
from tests.postgres_cluster import needs_postgres, new_schema, the_cluster

pytestmark = needs_postgres

PAGE = "docs/how-to/postgresql-in-production.md"


class Order(TypedDict):
    item: str


def orders(url: str) -> App[Order]:
    graph = StateGraph(Order, name="orders")
    graph.add_node("pack", lambda state: {"item": state["item"].upper()})
    graph.add_node("ship", lambda state: {"item": f"{state['item']} shipped"})
    graph.add_edges(START, "pack", "ship", END)
    return graph.compile(store=url, interrupt_before=["ship"])


def statements() -> list[str]:
    """The SQL of the page: its blocks, and the queries and functions in its text."""
    text = read(PAGE)
    shown = [block.text.rstrip(";") for block in blocks(text) if block.language == "sql"]
    inline = re.findall(r"`(SELECT [^`]+)`", text)
    calls = [f"SELECT {call}" for call in re.findall(r"`(pg_\w+\('[^`]+'\))`", text)]
    return [*shown, *inline, *calls]


def test_sql_of_the_page_runs() -> None:
    """Fails if a table or a column of the page has another name."""
    url = the_cluster().url_of(new_schema())
    migrate(url)
    found = statements()
    assert len(found) >= 3
    for statement in found:
        the_cluster().execute(statement.replace("milecastle.", f"{parse(url).schema}.").encode())


def test_dump_of_the_schema_is_restored_and_its_threads_resume() -> None:
    """Fails if the dump lacks something: seen with the data of `migrations` left out."""
    cluster = the_cluster()
    if not (cluster.binaries / "pg_dump").exists():
        pytest.skip("this PostgreSQL comes without pg_dump")
    schema = new_schema()
    app = orders(cluster.url_of(schema))
    app.invoke({"item": "lamp"}, thread="order-1")
    before = list(app.history("order-1"))
    app.close()

    server = ("-h", "127.0.0.1", "-p", cluster.port, "-U", "postgres")
    file = cluster.folder / f"{schema}.sql"
    cluster.run("pg_dump", *server, "--schema", schema, "-f", file, "postgres")
    cluster.run("createdb", *server, schema)
    cluster.run("psql", *server, "-q", "-v", "ON_ERROR_STOP=1", "-f", file, schema)

    restored = orders(cluster.url_of(schema).replace("/postgres?", f"/{schema}?") + "&migrate=off")
    assert list(restored.history("order-1")) == before
    assert restored.resume("order-1")["item"] == "LAMP shipped"
    restored.close()
    cluster.run("dropdb", *server, schema)
