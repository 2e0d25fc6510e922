"""States that are classes: reading runs none of their code, and what they refuse is not saved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
from pydantic import BaseModel

from milecastle import (
    END,
    START,
    App,
    CheckpointConfig,
    Command,
    InvalidRequest,
    InvalidUpdate,
    ResumeRefused,
    Send,
    StateGraph,
    ThreadKey,
    append,
)
from milecastle.errors import RoutingError
from milecastle.stores.memory import MemoryStore
from tests.acceptance.running import Runner, Wrap

KEY = ThreadKey("default", "t")
RAN: list[str] = []


@dataclass
class Plain:
    n: int = 0
    log: Annotated[list[str], append] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        RAN.append("__post_init__")


@dataclass(frozen=True, slots=True)
class Frozen:
    n: int = 0
    log: Annotated[list[str], append] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        RAN.append("__post_init__")


class Written:
    def __init__(self, n: int = 0, log: list[str] | None = None) -> None:
        RAN.append("__init__")
        self.n, self.log = n, log or []


@dataclass(init=False, eq=False)
class OwnInit(Written):
    n: int = 0
    log: Annotated[list[str], append] = field(default_factory=list[str])


class Model(BaseModel):
    n: int = 0
    log: Annotated[list[str], append] = []
    _hidden: int = 7

    def model_post_init(self, context: Any) -> None:
        RAN.append("model_post_init")


def counting(state_type: type[Any], **options: Any) -> App[Any]:
    """a -> b; each adds one."""

    def count(state: Any, name: str) -> dict[str, Any]:
        return {"n": state.n + 1, "log": [name]}

    graph: StateGraph[Any] = StateGraph(state_type)
    graph.add_node("a", count)
    graph.add_node("b", count)
    graph.add_edges(START, "a", "b", END)
    return graph.compile(**options)


READS: dict[str, Callable[[App[Any], Path], Any]] = {
    "state": lambda app, path: app.state("t").state,
    "astate": lambda app, path: asyncio.run(app.astate("t")).state,
    "state of an older checkpoint": lambda app, path: app.state("t", at=1) and app.state("t").state,
    "follow": lambda app, path: list(app.follow("t"))[-1].state,
    "load_checkpoint": lambda app, path: app.load_checkpoint(path)["state"],
}


@pytest.mark.parametrize("state_type", [Plain, Frozen, OwnInit, Model])
@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_reading_a_thread_runs_no_code_of_its_state(
    state_type: type[Any], read: Callable[[App[Any], Path], Any], tmp_path: Path
) -> None:
    """The object is of the state's class, and has its fields.

    Tried: ``present`` in place of ``view``; each constructor leaves its mark.
    """
    app = counting(state_type, store="memory://", interrupt_before=["b"], checkpoint_dir=tmp_path)
    app.invoke({"n": 1}, "t")
    (path,) = tmp_path.iterdir()
    RAN.clear()
    state = read(app, path)
    app.diff("t", 1, 2)
    list(app.history("t"))
    assert RAN == []
    assert type(state) is state_type
    assert (state.n, state.log) == (2, ["a"])
    assert app.resume("t").state.n == 3
    assert RAN


def test_model_that_was_read_has_the_defaults_of_its_private_attributes() -> None:
    app = counting(Model, store="memory://")
    app.invoke({}, "t")
    assert app.state("t").state._hidden == 7
    assert app.state("t").state == Model(n=2, log=["a", "b"])


@dataclass
class Small:
    """A state that refuses to be more than two, or to have two notes with that."""

    n: int = 0
    log: Annotated[list[str], append] = field(default_factory=list[str])
    limit: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if self.n > self.limit or (self.n == self.limit and len(self.log) > 1):
            raise ValueError(f"secret {self.n}")


@pytest.mark.parametrize("interval", [1, 3])
def test_refused_step_is_not_committed_and_names_its_node(
    run: Runner, wrap: Wrap, interval: int
) -> None:
    """The thread stays before the step, whatever the interval.

    Tried: no check; the step was saved, and the next node was blamed with a raw ``ValueError``.
    """
    ran: list[str] = []

    def good(state: Small, name: str) -> dict[str, Any]:
        ran.append(name)
        return {"log": [name]}

    def bad(state: Small) -> dict[str, Any]:
        ran.append("bad")
        return {"n": 3}

    graph: StateGraph[Small] = StateGraph(Small)
    graph.add_node("good", wrap(good))
    graph.add_node("bad", wrap(bad))
    graph.add_node("after", wrap(good))
    graph.add_edges(START, "good", "bad", "after", END)
    store = MemoryStore()
    app = graph.compile(checkpoint=CheckpointConfig(store=store, interval=interval))
    for _ in range(2):
        with pytest.raises(InvalidUpdate, match=r"node 'bad' gave .* Small refuses") as caught:
            run.invoke(app, {"n": 0}, "t")
        assert caught.value.node == "bad"
        assert isinstance(caught.value.__cause__, ValueError)
        assert "secret" not in str(caught.value)
        assert (app.state("t").state.n, app.state("t").next) == (0, ("bad",))
    assert ran == ["good", "bad", "bad"]
    failure = store.failure(KEY, store.runs(KEY)[0].run_id)
    assert failure is not None
    assert (failure.node, failure.error_type) == ("bad", "InvalidUpdate")


def test_refused_parallel_step_names_the_node_that_wrote_the_value(run: Runner, wrap: Wrap) -> None:
    """Of two writers the one whose update is refused alone."""

    def fine(state: Small) -> dict[str, Any]:
        return {"log": ["fine"]}

    def bad(state: Small) -> dict[str, Any]:
        return {"n": 3}

    graph: StateGraph[Small] = StateGraph(Small)
    graph.add_node("one", wrap(fine))
    graph.add_node("two", wrap(bad))
    graph.add_node("three", wrap(fine))
    for name in ("one", "two", "three"):
        graph.add_edges(START, name, END)
    app = graph.compile(store="memory://")
    with pytest.raises(InvalidUpdate, match="node 'two' gave"):
        run.invoke(app, {"n": 0}, "t")
    assert app.state("t").state == Small()


def test_what_a_state_refuses_is_refused_wherever_it_comes_from(run: Runner, wrap: Wrap) -> None:
    """Inputs, updates by hand, commands of routers, items of a fan-out; nothing is written."""

    def fine(state: Small) -> dict[str, Any]:
        return {"n": 1}

    graph: StateGraph[Small] = StateGraph(Small)
    graph.add_node("a", wrap(fine))
    graph.add_node("b", wrap(fine))
    graph.add_edges(START, "a", "b", END)
    app = graph.compile(store="memory://", interrupt_before=["b"])
    with pytest.raises(InvalidRequest, match=r"the input does not match.*Small refuses"):
        run.invoke(app, {"n": 3}, "t")
    assert list(app.history("t")) == []
    run.invoke(app, {"n": 0}, "t")
    with pytest.raises(InvalidRequest, match=r"the update does not match.*Small refuses"):
        run.update_state(app, "t", {"n": 3})
    assert app.state("t").state.n == 1

    def routed(router: Any) -> App[Small]:
        graph: StateGraph[Small] = StateGraph(Small)
        graph.add_node("a", wrap(fine))
        graph.add_node("b", wrap(fine))
        graph.add_edge(START, "a")
        graph.add_conditional_edges("a", router, ["b"])
        graph.add_edge("b", END)
        return graph.compile(store="memory://")

    app = routed(lambda state: Command(update={"n": 3}, goto="b"))  # pyright: ignore[reportUnknownLambdaType]
    with pytest.raises(InvalidUpdate, match="Small refuses"):
        run.invoke(app, {"n": 0}, "t")
    assert app.state("t").state.n == 1
    app = routed(lambda state: [Send("b", {"n": 1}), Send("b", {"n": 3})])  # pyright: ignore[reportUnknownLambdaType]
    with pytest.raises(RoutingError, match="a Send to 'b' gives values that Small refuses"):
        run.invoke(app, {"n": 0}, "t")
    assert app.state("t").state.n == 1


def test_stored_state_that_is_refused_now_is_not_run(
    run: Runner, wrap: Wrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is shown; a resume says which class refuses it. Tried: no check of what is read."""

    def fine(state: Small) -> dict[str, Any]:
        return {"n": 1}

    graph: StateGraph[Small] = StateGraph(Small)
    graph.add_node("a", wrap(fine))
    graph.add_edges(START, "a", END)
    app = graph.compile(store="memory://", interrupt_before=["a"])
    run.invoke(app, {"n": 2}, "t")
    monkeypatch.setattr(Small, "limit", 1)
    assert app.state("t").state.n == 2
    with pytest.raises(ResumeRefused, match="Small refuses it with ValueError"):
        run.resume(app, "t")
