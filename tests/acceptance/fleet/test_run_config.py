"""A run's config is stored with its input, and every process that continues the run has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast

import msgspec
import pytest

from milecastle import (
    END,
    START,
    App,
    CheckpointStore,
    Context,
    ExecutionError,
    InvalidRequest,
    Keyring,
    RunFailed,
    RunInProgress,
    StateGraph,
    Store,
    ThreadKey,
    append,
    interrupt,
)
from milecastle.app.threads.pruning import prune_thread
from milecastle.engine import run as engine_run
from milecastle.fleet.schedules import Schedules
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing import crash_everywhere
from tests.acceptance.fleet.working import work

KEY = ThreadKey("default", "t")


@dataclass
class Settings:
    model: str
    tone: str = "calm"
    since: datetime = field(default=datetime(2026, 1, 1, tzinfo=UTC))


class Talk(TypedDict):
    said: Annotated[list[str], append]


def say(state: Talk, config: Settings, ctx: Context) -> dict[str, Any]:
    assert ctx.config is config
    return {"said": [f"{config.model} {config.tone}" if config else "nothing"]}


def asks(state: Talk, ctx: Context) -> dict[str, Any]:
    return {"said": [f"{interrupt('well?')} {ctx.config.model}"]}


def talking(store: Store | None, *nodes: Any, name: str = "talk", **options: Any) -> App[Talk]:
    graph = StateGraph(Talk, name=name, config=Settings)
    names = [f"{node.__name__}{number}" for number, node in enumerate(nodes or (say,))]
    for called, node in zip(names, nodes or (say,), strict=True):
        graph.add_node(called, node)
    graph.add_edges(START, *names, END)
    return graph.compile(store=store, **options)


def hello(text: str = "hello") -> Any:
    return {"said": [text]}


def said(app: App[Talk], thread: str = "t") -> list[str]:
    return app.state(thread).state["said"]


@pytest.mark.requirement("M7")
def test_a_worker_has_the_config_of_the_submitted_run(store: Store) -> None:
    """Was broken: the config not written with the input."""
    app = talking(store, say, say)
    app.submit(hello(), "t", config=Settings("large", "bold"))
    work(talking(store, say, say))
    assert said(app) == ["hello", "large bold", "large bold"]


def test_submit_many_and_plain_data_give_typed_configs(store: Store) -> None:
    """Was broken: the mapping stored as it was given."""
    app = talking(store)
    app.submit_many(
        {"a": hello(), "b": hello()}, config={"model": "m", "since": "2026-05-01T00:00:00Z"}
    )
    work(app)
    assert said(app, "a") == said(app, "b") == ["hello", "m calm"]


def test_a_config_of_another_type_is_refused_and_nothing_is_stored() -> None:
    """Was broken: the config not converted."""
    store = MemoryStore()
    with pytest.raises(InvalidRequest, match=r"the config is not a valid Settings: .*model"):
        talking(store).submit(hello(), "t", config={"tone": "rude"})
    assert store.head(KEY) is None


@pytest.mark.requirement("M7")
def test_config_is_part_of_what_makes_an_input_the_same(store: Store) -> None:
    """Was broken: the digest without the config."""
    app = talking(store)
    first = app.submit(hello(), "t", config=Settings("a"))
    again = app.submit(hello(), "t", config={"model": "a"})
    assert again.reused
    assert again.run_id == first.run_id
    for other in (Settings("b"), None):
        with pytest.raises(RunInProgress):
            app.submit(hello(), "t", config=other)
    work(app)
    assert app.invoke(hello(), "t", config=Settings("a")).reused
    assert not app.invoke(hello(), "t", config=Settings("b")).reused


def test_a_key_names_the_run_whatever_the_config() -> None:
    """Was broken: the config in a key's digest; then, the call's config instead of the run's."""
    app = talking(MemoryStore())
    first = app.submit(hello(), "t", key="k", config=Settings("a"))
    assert app.submit(hello(), "t", key="k", config=Settings("b")).run_id == first.run_id
    found = app.invoke(hello(), "t", key="k", config=Settings("b"), take_over=True)
    assert found.state["said"][1:] == ["a calm"]


def test_a_new_run_has_its_own_config_or_else_the_last(store: Store) -> None:
    """Was broken: the position's config dropped."""
    app = talking(store)
    app.invoke(hello("1"), "t", config=Settings("a"))
    app.submit(hello("2"), "t")
    work(app)
    app.submit(hello("3"), "t", config=Settings("b"))
    work(app)
    assert said(app) == ["1", "a calm", "2", "a calm", "3", "b calm"]


def test_waiting_inputs_have_their_own_configs(store: Store) -> None:
    """Was broken: the config left out of the waiting input."""
    app = talking(store)
    app.submit(hello("1"), "t", config=Settings("a"))
    app.submit(hello("2"), "t", config=Settings("b"), if_busy="queue")
    app.submit(hello("3"), "t", if_busy="queue")
    work(app)
    assert said(app) == ["1", "a calm", "2", "b calm", "3", "b calm"]


def test_a_discarded_run_takes_its_config_with_it() -> None:
    """Was broken: the new run on the discarded one's config."""
    app = talking(MemoryStore())
    app.invoke(hello("1"), "t", config=Settings("a"))
    app.submit(hello("2"), "t", config=Settings("b"))
    app.submit(hello("3"), "t", if_busy="cancel")
    work(app)
    assert said(app) == ["1", "a calm", "3", "a calm"]


def test_retry_replaces_the_config_in_the_log(store: Store) -> None:
    """Was broken: the retry's config used and not written."""

    def fails_when_small(state: Talk, config: Settings) -> dict[str, Any]:
        if config.model == "small":
            raise ValueError("too small")
        return {"said": [config.model]}

    app = talking(store, fails_when_small, asks)
    app.submit(hello(), "t", config=Settings("small"))
    work(app)
    with pytest.raises(RunFailed):
        app.wait("t")
    app.retry("t", config={"model": "large"})
    work(app)
    app.answer("t", "yes")
    work(talking(store, fails_when_small, asks))
    assert said(app) == ["hello", "large", "yes large"]


def test_an_answer_and_a_resume_replace_the_config() -> None:
    """Was broken: only the input's config written."""
    app = talking(MemoryStore(), asks, asks, say)
    app.invoke(hello(), "t", config=Settings("a"))
    app.answer("t", "one", config=Settings("b"))
    work(app)
    app.resume("t", "two", config=Settings("c", "cold"))
    app.invoke(hello("more"), "t")
    assert said(app)[1:4] == ["one b", "two c", "c cold"]
    assert said(app)[4] == "more"


def test_a_resume_without_answer_writes_its_config_before_a_node_runs() -> None:
    """Was broken: no entry for the resume, so that a takeover went back to the old config."""
    seen: list[str] = []

    def breaks(state: Talk, config: Settings) -> dict[str, Any]:
        seen.append(config.model)
        raise ValueError("again")

    app = talking(MemoryStore(), breaks)
    for config in (Settings("a"), Settings("b"), None):
        with pytest.raises(ExecutionError, match="again"):
            app.invoke(hello() if config and config.model == "a" else None, "t", config=config)
    assert seen == ["a", "b", "b"]


def test_a_fork_has_the_config_of_its_branch() -> None:
    """Was broken: the journal of a fork without the position's config."""
    app = talking(MemoryStore(), asks, say)
    app.invoke(hello(), "t", config=Settings("a"))
    app.resume("t", "yes", config=Settings("b"))
    waiting = next(one for one in app.history("t") if one.source == "interrupt")
    app.fork("t", at=waiting.seq, as_thread="u")
    app.resume("u", "yes")
    app.fork("t", at=waiting.seq)
    app.update_state("t", {"said": ["updated"]})
    app.resume("t", "yes")
    assert said(app, "u") == ["hello", "yes a", "a calm"]
    assert said(app) == ["hello", "updated", "yes a", "a calm"]


def test_snapshots_and_pruning_keep_the_config(tmp_path: Path) -> None:
    """Was broken: snapshots and pruning without the config."""

    def grows(state: Talk, ctx: Context) -> dict[str, Any]:
        return {"said": ["x" * 500, ctx.config.model]}

    store = SqliteStore(tmp_path / "s.db")
    app = talking(store, *[grows] * 40, asks)
    app.invoke(hello(), "t", config=Settings("a"))
    prune_thread(store, app.runner.stored("t")[0].codec, KEY, keep_last=2)
    assert app.resume("t", "yes").state["said"][-1] == "yes a"
    CheckpointStore(store).prune(KEY, keep_last=1)  # without the graph's types
    app.invoke(hello("on"), "t")
    assert app.resume("t", "and").state["said"][-1] == "and a"


def test_no_reader_of_the_state_sees_the_config() -> None:
    """Was broken: a follower showed it as a key of the state."""
    app = talking(MemoryStore(), asks, asks)
    app.invoke(hello(), "t", config=Settings("a"))
    app.resume("t", "yes", config=Settings("b"))
    app.resume("t", "yes", config=Settings("c"))
    states: list[Any] = [event.state for event in app.follow("t")]
    states += [app.state("t", at=seq + 1).state for seq in range(len(states))]
    latest = CheckpointStore(app.store, types=[Settings]).get_latest(KEY)
    states.append(latest.state if latest else None)
    assert {tuple(state) for state in states} == {("said",)}


def test_subgraphs_have_the_config_of_their_parent(store: Store) -> None:
    """Was broken: the child's plan without the stored config."""
    inner = talking(None, asks, name="inner")
    graph = StateGraph(Talk, name="outer", config=Settings)
    graph.add_node("inner", inner, take=lambda found: {"said": found["said"][1:]})
    graph.add_edges(START, "inner", END)
    app = graph.compile(store=store)
    app.submit(hello(), "t", config=Settings("a"))
    work(app)
    app.answer("t", "yes")
    work(app)
    assert said(app) == ["hello", "yes a"]


def test_an_encrypted_config_is_not_readable(tmp_path: Path) -> None:
    """Was broken (the control): the same without encryption finds the words."""
    found: list[tuple[bool, bool]] = []
    for encrypts in (False, True):
        path = tmp_path / f"{encrypts}.db"
        keys = Keyring({"main": b"k" * 32}, store=MemoryStore()) if encrypts else None
        app = talking(SqliteStore(path), encryption=keys)
        app.submit(hello(), "t", config=Settings("recognizable-model"))
        app.submit(hello("2"), "t", config=Settings("recognizable-too"), if_busy="queue")
        app.store.close()
        data = path.read_bytes()
        found.append((b"recognizable-model" in data, b"recognizable-too" in data))
        app = talking(SqliteStore(path), encryption=keys)
        work(app)
        assert said(app) == ["hello", "recognizable-model calm", "2", "recognizable-too calm"]
    assert found == [(True, True), (False, False)]


def test_a_config_does_not_take_a_run_off_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Was broken: the config as one of the reserved channels."""
    monkeypatch.setattr(engine_run, "Step", None)
    app = talking(MemoryStore(), say, say)
    app.invoke(hello("1"), "t", config=Settings("a"))
    app.submit(hello("2"), "t")
    work(app)
    assert said(app) == ["1", "a calm", "a calm", "2", "a calm", "a calm"]


def test_an_undeclared_config_is_passed_and_not_stored() -> None:
    """Was broken: the live object encoded."""
    seen: list[Any] = []

    def look(state: Talk, config: Any) -> dict[str, Any]:
        seen.append(config)
        return {"said": [interrupt("well?")]}

    graph = StateGraph(Talk)
    graph.add_node("look", look).add_edges(START, "look", END)
    app, live = graph.compile(store=MemoryStore()), object()
    app.invoke(hello(), "t", config=live)
    app.resume("t", "yes")
    assert seen == [live, None]
    for call in (app.submit, app.submit_many):
        given: Any = hello() if call == app.submit else {"u": hello()}
        with pytest.raises(InvalidRequest, match=r"StateGraph\(State, config=Settings\)"):
            call(given, config={"model": "a"})
    with pytest.raises(InvalidRequest, match=r"StateGraph\(State, config=Settings\)"):
        graph.schedule(timedelta(hours=1), config={"model": "a"})


def test_a_schedule_gives_its_config_to_each_run(store: Store) -> None:
    """Was broken: the schedule's config not given to the call."""
    graph = StateGraph(Talk, config=Settings)
    graph.add_node("say", say).add_edges(START, "say", END)
    graph.schedule(timedelta(hours=1), name="hourly", input=hello(), config=Settings("s"))
    app = graph.compile(store=store)
    ticks = datetime.now(UTC) - timedelta(hours=2), datetime.now(UTC)
    handles = Schedules(app).backfill("hourly", *ticks)
    work(app)
    for handle in handles:
        assert app.state(handle.thread).state["said"] == ["hello", "s calm"]


def test_no_crash_changes_a_run_with_a_config() -> None:
    """Was broken: a takeover without the stored config."""
    app = talking(MemoryStore(), say, asks, say)
    report = crash_everywhere(app, hello(), config=Settings("a"), answer=lambda question: "yes")
    assert report.crashes > 10


def test_a_portable_file_has_the_config_of_the_stored_run(tmp_path: Path) -> None:
    """Was broken: the file with the config of the call, which a worker's call has not."""
    store = MemoryStore()
    app = talking(store, asks, checkpoint_dir=tmp_path)
    app.submit(hello(), "t", config=Settings("a"))
    work(app)
    file = next(tmp_path.iterdir())
    assert app.load_checkpoint(file)["config"] == Settings("a")
    other = talking(MemoryStore(), asks)
    other.invoke(file=file, thread="u")
    assert other.resume("u", "yes").state["said"] == ["hello", "yes a"]


@pytest.mark.parametrize("kind", ["struct", "typed dict"])
def test_other_classes_of_configs(kind: str) -> None:
    """Was broken: the type not registered with the thread's codec."""

    class Record(msgspec.Struct):
        model: str

    class Options(TypedDict):
        model: str

    def look(state: Talk, config: Any) -> dict[str, Any]:
        return {"said": [config["model"] if kind == "typed dict" else config.model]}

    graph = StateGraph(Talk, config=Record if kind == "struct" else Options)
    graph.add_node("look", look).add_edges(START, "look", END)
    app = graph.compile(store=MemoryStore())
    app.submit(hello(), "t", config={"model": "m"})
    work(app)
    assert said(app) == ["hello", "m"]
    with pytest.raises(InvalidRequest, match="the config is not a valid"):
        app.submit(hello("2"), "t", config={"model": 1})
    with pytest.raises(TypeError, match="takes the class"):
        StateGraph(Talk, config=cast(Any, {"model": "m"}))
