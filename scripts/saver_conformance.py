"""Print the tables of savers and what they pass, for docs/evidence/langgraph.md.

LangGraph's conformance suite, which is async, and the clauses of ours, which are sync, are run on
LangGraph's own savers and on ours. Run as ``python scripts/saver_conformance.py``.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from importlib import import_module  # noqa: TID251 - savers that may not be installed
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

Places = Iterator[str]
Kinds = dict[str, tuple[str, Places]]
"""The savers: for each its class and empty places for it."""


@asynccontextmanager
async def _opened(kind: str, where: str) -> AsyncGenerator[Any]:
    """A saver on an empty place."""
    if kind == "InMemorySaver":
        yield import_module("langgraph.checkpoint.memory").InMemorySaver()
    elif kind == "SqliteSaver":
        savers = import_module("langgraph.checkpoint.sqlite.aio")
        async with savers.AsyncSqliteSaver.from_conn_string(where) as saver:
            await saver.setup()
            yield saver
    elif kind == "PostgresSaver":
        savers = import_module("langgraph.checkpoint.postgres.aio")
        async with savers.AsyncPostgresSaver.from_conn_string(where) as saver:
            await saver.setup()
            yield saver
    else:
        ours = import_module("milecastle.integrations.langgraph").MilecastleSaver
        async with ours(where) as saver:
            yield saver


@contextmanager
def _making(kind: str, where: str) -> Generator[Callable[[], Any], None, None]:
    """A function that makes savers on a place; in memory it is always the same one."""
    with ExitStack() as stack:
        if kind == "InMemorySaver":
            only = import_module("langgraph.checkpoint.memory").InMemorySaver()
            yield lambda: only
        elif kind == "SqliteSaver":
            savers = import_module("langgraph.checkpoint.sqlite")

            def make() -> Any:
                connection = sqlite3.connect(where, check_same_thread=False)
                return savers.SqliteSaver(stack.enter_context(closing(connection)))

            yield make
        elif kind == "PostgresSaver":
            savers = import_module("langgraph.checkpoint.postgres")
            _emptied(where)

            def make() -> Any:
                return stack.enter_context(savers.PostgresSaver.from_conn_string(where))

            make().setup()
            yield make
        else:
            ours = import_module("milecastle.integrations.langgraph").MilecastleSaver
            yield lambda: stack.enter_context(ours(where))


def _emptied(url: str) -> None:
    psycopg = import_module("psycopg")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")


def _row(label: str, kind: str, places: Places) -> str:
    conformance = import_module("langgraph.checkpoint.conformance")

    async def make() -> Any:
        async with _opened(kind, next(places)) as saver:
            yield saver

    registered = conformance.checkpointer_test(name=label)(make)
    report = asyncio.run(conformance.validate(registered))
    passed = sum(found.tests_passed for found in report.results.values())
    failed = sum(len(found.failures or ()) for found in report.results.values())
    missing = [name for name, found in report.results.items() if not found.detected]
    return f"| {label} | {passed} | {failed} | {', '.join(missing) or '-'} |"


def _holds(clause: Callable[[Any], None], kind: str, where: str) -> str:
    try:
        with _making(kind, where) as make:
            clause(make)
    except Exception as error:  # of whatever saver
        return f"no ({type(error).__name__})"
    return "yes"


def main() -> None:
    """Print both tables."""
    from benchmarks.postgres_server import postgres_server
    from tests.contract.langgraph_clauses import CLAUSES

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        files = (f"{folder}/{number}.db" for number in count())
        kinds: Kinds = {
            "InMemorySaver": ("InMemorySaver", files),
            "SqliteSaver": ("SqliteSaver", files),
            "MilecastleSaver, SQLite": ("ours", (f"sqlite:///{path}" for path in files)),
        }
        cluster = stack.enter_context(postgres_server())
        if cluster is not None:
            kinds["PostgresSaver"] = ("PostgresSaver", (cluster.url for _ in count()))
            ours = (cluster.url_of(f"ours{number}") for number in count())
            kinds["MilecastleSaver, PostgreSQL"] = ("ours", ours)
        print("| saver | passed | failed | not offered |\n|---|---|---|---|", flush=True)
        for label, (kind, places) in kinds.items():
            print(_row(label, kind, places), flush=True)
        print(f"\n| clause | {' | '.join(kinds)} |\n|{'---|' * (len(kinds) + 1)}", flush=True)
        for clause in CLAUSES:
            found = [_holds(clause, kind, next(places)) for kind, places in kinds.values()]
            print(f"| {clause.__name__.replace('_', ' ')} | {' | '.join(found)} |", flush=True)


if __name__ == "__main__":
    main()
