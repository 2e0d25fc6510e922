"""Code changes under live threads: migrations, and resuming by an explicit permission."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast

import pytest

from milecastle import (
    END,
    START,
    App,
    CheckpointStore,
    Command,
    ExecutionError,
    InvalidRequest,
    ResumeRefused,
    StateGraph,
    Store,
    ThreadKey,
    append,
)
from milecastle.errors import RoutingError
from milecastle.testing import WrappedStore, with_store
from tests.every_store import EVERY_KIND, Stores

KEY = ThreadKey("default", "t")


class Old(TypedDict, total=False):
    title: str
    log: Annotated[list[str], append]
    score: int


class New(TypedDict, total=False):
    name: str
    log: Annotated[list[str], append]


@pytest.fixture(name="store", params=EVERY_KIND)
def a_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    stores = Stores(tmp_path)
    yield stores.open(request.param)
    stores.close()


def note(state: Any, name: str) -> dict[str, Any]:
    return {"log": [name]}


def line(state: type, store: Store | None, *names: str, stop: str) -> App[Any]:
    graph: StateGraph[Any] = StateGraph(state, name="line")
    for name in names:
        graph.add_node(name, note)
    graph.add_edges(START, *names, END)
    return graph.compile(store=store, interrupt_before=[stop])


def paused(store: Store) -> App[Any]:
    """A thread ``t`` that waits before ``check`` of the old graph."""
    old = line(Old, store, "fetch", "check", "send", stop="check")
    assert old.invoke({"title": "walls", "score": 3}, "t").status == "interrupted"
    return old


def test_refusal_of_a_thread_says_what_would_migrate_it(store: Store) -> None:
    old = paused(store)
    new = line(New, store, "fetch", "verify", "send", stop="send")
    with pytest.raises(ResumeRefused) as caught:
        new.resume("t")
    assert f"app.migrate('{old.fingerprint}', ...)" in str(caught.value)


def test_a_migration_brings_state_and_next_over_and_the_history_says_so(store: Store) -> None:
    old = paused(store)
    new = line(New, store, "fetch", "verify", "send", stop="send")

    def over(state: dict[str, Any], next: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
        assert next == ("check",)
        return {"name": state["title"], "log": state["log"]}, ["verify"]

    new.migrate(old.fingerprint, over)
    assert new.resume("t").status == "interrupted"
    assert new.resume("t").state == {"name": "walls", "log": ["fetch", "verify", "send"]}
    entry = next(known for known in new.history("t") if known.note)
    assert (entry.source, entry.note) == ("update", f"migrated from {old.fingerprint[:8]}")
    assert entry.fingerprint == new.fingerprint
    assert new.state("t", at=2).next == ("check",)


def test_a_migration_that_leads_nowhere_writes_nothing(store: Store) -> None:
    old = paused(store)
    new = line(New, store, "fetch", "verify", "send", stop="send")
    new.migrate(old.fingerprint, lambda state, nodes: ({"log": []}, nodes))
    before = [known.id for known in new.history("t")]
    with pytest.raises(InvalidRequest, match="'check', which is not a node"):
        new.resume("t")
    assert [known.id for known in new.history("t")] == before


def test_a_migration_may_read_types_that_the_state_no_longer_has(store: Store) -> None:
    @dataclass
    class Paper:
        words: int

    class Before(TypedDict):
        paper: Paper

    class After(TypedDict):
        words: int

    def idle(state: Any) -> None:
        return None

    def graph_of(state: type) -> App[Any]:
        graph: StateGraph[Any] = StateGraph(state, name="papers")
        graph.add_node("read", idle)
        graph.add_edges(START, "read", END)
        return graph.compile(store=store, interrupt_before=["read"])

    old = graph_of(Before)
    old.invoke({"paper": Paper(7)}, "p")
    new = graph_of(After)
    new.migrate(
        old.fingerprint,
        lambda state, nodes: ({"words": state["paper"].words}, nodes),
        types=[Paper],
    )
    assert new.resume("p").state == {"words": 7}


def test_a_thread_that_ended_is_migrated_when_it_gets_a_new_input(store: Store) -> None:
    old = paused(store)
    old.resume("t")
    new = line(New, store, "fetch", "verify", "send", stop="send")
    new.migrate(
        old.fingerprint, lambda state, nodes: ({"name": state["title"], "log": state["log"]}, nodes)
    )
    result = new.invoke({"name": "trails"}, "t")
    assert result["log"] == ["fetch", "check", "send", "fetch", "verify"]


def test_explicit_permission_resumes_and_is_recorded(store: Store) -> None:
    paused(store)
    new = line(New, store, "fetch", "check", "send", stop="send")
    with pytest.raises(ResumeRefused, match="accept_changes=True"):
        new.resume("t")
    assert new.resume("t", accept_changes=True).status == "interrupted"
    assert new.resume("t").state == {"log": ["fetch", "check", "send"]}
    marks = [known.note for known in new.history("t") if known.note]
    assert len(marks) == 1
    assert marks[0].startswith("changes accepted: ")


def test_no_word_runs_a_node_that_is_gone(store: Store) -> None:
    paused(store)
    new = line(Old, store, "fetch", "verify", "send", stop="send")
    with pytest.raises(ResumeRefused, match="'check' would run next but was removed"):
        new.resume("t", accept_changes=True)


def test_a_migration_stays_with_the_app_whatever_store_it_gets(store: Store) -> None:
    old = paused(store)
    new = line(New, None, "fetch", "verify", "send", stop="send")
    assert not with_store(new, store).compatibility("t")
    new.migrate(old.fingerprint, lambda state, nodes: ({"log": []}, ["verify"]))
    fit = with_store(new, store).compatibility("t")
    assert (fit.reasons, fit.note) == ((), f"migrated from {old.fingerprint[:8]}")


@dataclass
class Bare:
    title: str = ""


@dataclass
class Logged:
    title: str = ""
    log: Annotated[list[str], append] = field(default_factory=lambda: ["created"])


def test_reducer_builds_on_the_default_of_a_field_that_was_added(store: Store) -> None:
    """Also in the log. Fails if the default is not stored: it is lost when the thread is read."""
    graph: StateGraph[Any] = StateGraph(Bare, name="line")
    for name in ("fetch", "check"):
        graph.add_node(name, of_nothing)
    graph.add_edges(START, "fetch", "check", END)
    graph.compile(store=store, interrupt_before=["check"]).invoke({"title": "walls"}, "t")
    app = line(Logged, store, "fetch", "check", stop="check")
    assert app.resume("t").state == Logged("walls", ["created", "check"])
    assert app.state("t").state == Logged("walls", ["created", "check"])


def of_nothing(state: Any) -> None:
    return None


def test_stored_command_to_what_is_no_longer_declared_is_refused(store: Store) -> None:
    """Its node has run, and its sibling failed. Fails if the stored target is followed."""

    def broken(state: Any) -> None:
        raise ValueError("no")

    def choosing(target: str, sibling: Any) -> App[Any]:
        def choose(state: Any) -> Command[Any]:
            return Command(goto=target)

        graph: StateGraph[Any] = StateGraph(Old, name="choosing")
        graph.add_node("choose", choose, goto=[target])
        graph.add_node("sibling", sibling)
        graph.add_node("left", note)
        graph.add_node("right", note)
        graph.add_edge(START, "choose")
        graph.add_edge(START, "sibling")
        graph.add_conditional_edges("sibling", lambda state: END, ["left", "right", END])
        graph.add_edge("left", END)
        graph.add_edge("right", END)
        return graph.compile(store=store)

    with pytest.raises(ExecutionError):
        choosing("left", broken).invoke({}, "t")
    app = choosing("right", of_nothing)
    with pytest.raises(RoutingError, match="did not declare"):
        app.resume("t", accept_changes=True)
    assert app.state("t").state == {"log": []}


def test_put_refuses_a_next_node_that_the_graph_does_not_have(store: Store) -> None:
    """It was accepted, and resuming raised a bare ``KeyError``."""
    app = paused(store)
    log = CheckpointStore(store)
    known = log.get_latest(KEY)
    assert known is not None
    with pytest.raises(InvalidRequest, match="no node 'nope' to run next; it has 'check'"):
        log.put(KEY, known.state, next=["nope"])
    assert app.resume("t").status == "completed"


def test_unknown_next_node_is_refused_on_resume(store: Store) -> None:
    """A store may have been written to directly; equal fingerprints skipped every check."""
    app = paused(store)
    log = CheckpointStore(Unrecorded(store))
    log.put(KEY, {"title": "rivers", "log": []}, next=["nope"])
    assert app.compatibility("t").reasons == (
        "node 'nope' would run next, but the graph has no such node",
    )
    for call in (
        lambda: app.resume("t"),
        lambda: app.resume("t", accept_changes=True),
        lambda: list(app.stream(None, "t")),
    ):
        with pytest.raises(ResumeRefused, match="node 'nope' would run next"):
            call()


class Unrecorded(WrappedStore):
    """Knows no manifest, so that nothing is checked when a state is put."""

    def manifest(self, key: Any, fingerprint: str) -> None:
        return None


def test_put_checks_types_inside_of_types(store: Store) -> None:
    """A dict was accepted where the state has a dataclass."""

    class State(TypedDict):
        paper: Paper
        papers: list[Paper]

    graph: StateGraph[Any] = StateGraph(State, name="papers")
    graph.add_node("read", idle)
    graph.add_edges(START, "read", END)
    app = graph.compile(store=store, interrupt_before=["read"])
    good = {"paper": Paper(7), "papers": [Paper(8)]}
    app.invoke(good, "t")
    log = CheckpointStore(store, types=[Paper])
    bad: dict[str, dict[str, Any]] = {
        r"\$\.paper is dict, but it is declared as Paper": {"paper": {"words": 7}},
        r"\$\.papers\[1\] is dict": {"papers": [Paper(1), {"words": 7}]},
        r"\$\.paper\.words is str, but it is declared as int": {"paper": Paper(cast("Any", "7"))},
    }
    for message, values in bad.items():
        with pytest.raises(InvalidRequest, match=message):
            log.put(KEY, {**good, **values}, next=["read"])
    log.put(KEY, good, next=["read"])
    assert app.resume("t").state == good


@dataclass
class Paper:
    words: int


def idle(state: Any) -> None:
    return None
