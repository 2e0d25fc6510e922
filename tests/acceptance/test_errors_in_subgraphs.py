"""Errors in subgraphs: what they stop, and how they and log lines name the subgraph's thread.

The thread of a subgraph has a name that no user chose: the parent's, an entry's id and the task,
with a control character (U+001F) in between. Messages name the parent's thread and the nodes.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from milecastle import (
    END,
    START,
    App,
    Conflict,
    MilecastleError,
    Retry,
    StateGraph,
    Store,
    ThreadKey,
    Unavailable,
    interrupt,
)
from milecastle.cli.main import cli
from milecastle.errors import Corrupted
from milecastle.observers.logs import LoggingObserver
from milecastle.ports.store import Chain, Opened
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite import SqliteStore
from milecastle.support.printable import printable
from milecastle.testing import FailingStore, WrappedStore
from tests.acceptance.running import Runner
from tests.acceptance.test_checkpoints import Count, nested

NAMED = "'t > sub > inner'"


def within(store: Store | None, work: Callable[[Any], Any], **settings: Any) -> App[Count]:
    """A node in a graph in a graph in a graph. ``work`` is what it does."""
    deepest: StateGraph[Count] = StateGraph(Count)
    deepest.add_node("work", work, retry=Retry(attempts=2, delay=0, on=OSError))
    deepest.add_edges(START, "work", END)
    middle: StateGraph[Count] = StateGraph(Count)
    middle.add_node("inner", deepest.compile())
    middle.add_edges(START, "inner", END)
    graph: StateGraph[Count] = StateGraph(Count)
    graph.add_node("sub", middle.compile())
    graph.add_edges(START, "sub", END)
    return graph.compile(store=store, **settings)


def fail(state: Count) -> None:
    raise ValueError("on purpose")


def fail_often(state: Count) -> None:
    raise OSError("on purpose")


def ask(state: Count) -> dict[str, Any]:
    return {"log": [interrupt("?", answer=str)]}


WORK: dict[str, Callable[[Any], Any]] = {
    "a node raises": fail,
    "every attempt raises": fail_often,
    "an unknown key": lambda state: {"nothing": 1},
    "a value that cannot be stored": lambda state: {"log": [object()]},
    "not an update": lambda state: 3,
}


def texts(error: BaseException) -> Iterator[str]:
    """Everything that a traceback of this error prints."""
    seen: set[int] = set()
    links: list[BaseException | None] = [error]
    while links:
        link = links.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            links += [link.__cause__, link.__context__]
            yield from (str(link), repr(link), *getattr(link, "__notes__", ()))


def records(store: Store) -> Iterator[str]:
    """The text of every failure record."""
    for info in store.threads("default"):
        for run in store.runs(info.key):
            failure = store.failure(info.key, run.run_id)
            if failure is not None:
                yield from (failure.message, *failure.causes)


def refuse_marks(found: Iterator[str]) -> str:
    """Fail if a text has the separator, or its escape; return all of them."""
    text = "\n".join(found)
    assert "\x1f" not in text
    assert "x1f" not in text
    return text


@pytest.mark.parametrize("what", WORK)
def test_failure_in_a_subgraph_names_the_thread_and_the_nodes(
    run: Runner, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen to fail: the name of the subgraph's thread was in the message as it is in the store."""
    store = MemoryStore()
    app = within(store, WORK[what], observers=[LoggingObserver()])
    with caplog.at_level(logging.DEBUG), pytest.raises(MilecastleError) as caught:
        run.invoke(app, {"n": 0}, "t")
    assert "thread 't'" in str(caught.value)
    assert "thread 't > sub" in refuse_marks(texts(caught.value))
    refuse_marks(records(store))
    assert "thread=t > sub > inner" in refuse_marks(iter(caplog.messages))


def test_save_that_fails_in_a_subgraph_names_the_thread_and_the_nodes(run: Runner) -> None:
    """At each of its commits. Seen to fail, as above."""
    named: set[str] = set()
    for at in range(1, 20):
        store = FailingStore(MemoryStore(), at=at)
        try:
            run.invoke(within(store, lambda state: {"n": 1}), {"n": 0}, "t")
        except MilecastleError as error:
            text = refuse_marks(texts(error))
            named |= {name for name in ("'t'", "'t > sub'", NAMED) if f"thread {name}" in text}
        else:
            assert named == {"'t'", "'t > sub'", NAMED}
            return
    raise AssertionError("no run ended without a failed save")


def test_subgraph_that_lost_its_thread_names_it(run: Runner) -> None:
    """Its thread is written to by another. Seen to fail, as above."""
    app = within(MemoryStore(), lambda state: {"n": app.cancel("t")})
    with pytest.raises(Conflict) as caught:
        run.invoke(app, {"n": 0}, "t")
    assert NAMED in refuse_marks(texts(caught.value))
    refuse_marks(records(app.store))


def test_damaged_subgraph_is_named_by_errors_and_by_the_command_line(
    tmp_path: Path,
) -> None:
    """Seen to fail, as above; the command line printed ``\\\\x1f``."""
    path = tmp_path / "runs.db"
    app = within(SqliteStore(path), ask)
    app.invoke({"n": 0}, "t")
    app.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE entries SET payload = x'00' WHERE id >> 32 IN "
            "(SELECT id FROM threads WHERE thread LIKE '%inner')"
        )
    app = within(SqliteStore(path), ask)
    with pytest.raises(Corrupted) as caught:
        app.resume("t", "yes")
    assert "t > sub > inner" in refuse_marks(texts(caught.value))
    app.close()
    store = ["--store", f"sqlite:///{path}"]
    for verb in (["verify"], ["ls"], ["show", "t"], ["history", "t"], ["runs"], ["doctor"]):
        refuse_marks(iter([CliRunner().invoke(cli, [*verb, *store]).output]))


class UnreadableSubgraphs(WrappedStore):
    """A store that cannot read the threads of subgraphs, until it is whole."""

    whole = False

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        self._check(key)
        return super().read(key, seq)

    def open(self, key: ThreadKey) -> Opened | None:
        self._check(key)
        return super().open(key)

    def _check(self, key: ThreadKey) -> None:
        if "\x1f" in key.thread and not self.whole:
            raise Unavailable("the store is down")


@pytest.mark.requirement("C2", api="Unavailable")
@pytest.mark.parametrize("policy", [{}, {"retry": Retry(delay=0)}, {"on_error": "rescue"}])
def test_a_read_that_fails_in_a_subgraph_stops_the_whole_run(
    run: Runner, policy: dict[str, Any]
) -> None:
    """Seen to fail: it was taken for a failure of the node, and ``on_error`` handled it, so that
    the run completed without the subgraph.
    """
    store = UnreadableSubgraphs(MemoryStore())
    app = nested(store, [], lambda: None, **policy)
    with pytest.raises(Unavailable):
        run.invoke(app, {"n": 0}, "t")
    store.whole = True
    assert run.invoke(app, {"n": 0}, "t").state == {"n": 0, "log": ["a", "b", "beside"]}


def test_names_that_only_look_like_a_subgraph_are_escaped() -> None:
    """The separator alone is a control character like any other."""
    assert printable("a\x1fb") == r"a\x1fb"
    assert printable("t\x1f01-ab.2\x1fsub") == "t > sub"
