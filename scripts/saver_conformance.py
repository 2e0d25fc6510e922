"""Print the table of savers and the clauses that they pass, for docs/evidence/langgraph.md.

LangGraph's conformance suite is run on its own savers and on ours. A clause that a saver does not
offer is not counted. Run as ``python scripts/saver_conformance.py``.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from importlib import import_module  # noqa: TID251 - savers that may not be installed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]


@asynccontextmanager
async def _opened(kind: str, where: str) -> AsyncIterator[Any]:
    """A saver on an empty place."""
    if kind == "InMemorySaver":
        yield import_module("langgraph.checkpoint.memory").InMemorySaver()
    elif kind == "AsyncSqliteSaver":
        savers = import_module("langgraph.checkpoint.sqlite.aio")
        async with savers.AsyncSqliteSaver.from_conn_string(where) as saver:
            await saver.setup()
            yield saver
    elif kind == "AsyncPostgresSaver":
        savers = import_module("langgraph.checkpoint.postgres.aio")
        async with savers.AsyncPostgresSaver.from_conn_string(where) as saver:
            await saver.setup()
            yield saver
    else:
        ours = import_module("milecastle.integrations.langgraph").MilecastleSaver
        async with ours(where) as saver:
            yield saver


def _row(label: str, kind: str, places: Any) -> str:
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


def main() -> None:
    """Print one line for each saver."""
    from benchmarks.postgres_server import postgres_server

    print("| saver | passed | failed | not offered |\n|---|---|---|---|", flush=True)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        files = (f"{folder}/{number}.db" for number in range(1000))
        print(_row("InMemorySaver", "InMemorySaver", files), flush=True)
        print(_row("AsyncSqliteSaver", "AsyncSqliteSaver", files), flush=True)
        urls = (f"sqlite:///{path}" for path in files)
        print(_row("MilecastleSaver, SQLite", "ours", urls), flush=True)
        cluster = stack.enter_context(postgres_server())
        if cluster is not None:
            theirs = (cluster.url for _ in range(1000))
            print(_row("AsyncPostgresSaver", "AsyncPostgresSaver", theirs), flush=True)
            ours = (cluster.url_of(f"ours{number}") for number in range(1000))
            print(_row("MilecastleSaver, PostgreSQL", "ours", ours), flush=True)


if __name__ == "__main__":
    main()
