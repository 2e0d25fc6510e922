"""Small promises that were not kept, one test each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from milecastle import (
    END,
    START,
    App,
    CheckpointConfig,
    CheckpointStore,
    Event,
    InvalidRequest,
    ResumeRefused,
    Retry,
    StateGraph,
    ThreadKey,
    UnserializableState,
    append,
)
from milecastle.builds.records import FailureFile, encode
from tests.unit.cli.commands import Desk


class Log(TypedDict):
    log: Annotated[list[Any], append]


def _app(**given: Any) -> App[Log]:
    graph = StateGraph(Log)
    graph.add_node("a", lambda state: {"log": ["a"]})
    graph.add_node("b", lambda state: {"log": ["b"]})
    graph.add_edges(START, "a", "b", END)
    return graph.compile(**given)


@pytest.mark.requirement("U1", api="milecastle run")
def test_a_node_that_exits_the_process_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``milecastle run`` ended with exit code 0 and without a word."""
    monkeypatch.chdir(tmp_path)
    desk = Desk(tmp_path)
    text = (tmp_path / "demo.py").read_text()
    desk.write("demo.py", text.replace('    print("researching")', "    import sys; sys.exit(0)"))
    said = desk.err("run", "demo:app", "--thread", "t", "--input", '{"topic": "x"}', code=1)
    assert "a node called sys.exit(0); the run has not completed" in said


@pytest.mark.requirement("O1", api="Event")
def test_a_resumed_run_starts_at_its_step() -> None:
    """``graph_start`` of a resumed run had step 0."""
    events: list[Event] = []

    class Told:
        def on_event(self, event: Event) -> None:
            events.append(event)

    app = _app(store="memory://", interrupt_before=["b"], observers=[Told()])
    app.invoke({"log": []}, "t")
    app.resume("t")
    assert [event.step for event in events if event.type == "graph_start"] == [0, 1]


@pytest.mark.requirement("H6", api="App.save_checkpoint")
def test_an_error_of_a_portable_file_names_the_field(tmp_path: Path) -> None:
    """The message had ``$[key 9][key 0]``."""
    app = _app()
    with pytest.raises(UnserializableState, match=r"\$\.state\.log\[0\] cannot be stored"):
        app.save_checkpoint(tmp_path / "x", {"log": [object()]}, "a")
    with pytest.raises(UnserializableState, match=r"\$\.config\[key 0\] cannot be stored"):
        app.save_checkpoint(tmp_path / "x", {"log": []}, "a", {"k": object()})


@pytest.mark.requirement("C3", api="CheckpointConfig")
def test_settings_of_another_type_are_refused() -> None:
    """``preserve="no"`` preserved, and ``delay=nan`` was a delay."""
    wrong: Any = "no"
    with pytest.raises(InvalidRequest, match="preserve must be True or False"):
        CheckpointConfig(preserve=wrong)
    with pytest.raises(InvalidRequest, match="delay must be a number, not nan"):
        Retry(delay=float("nan"))


@pytest.mark.requirement("R2", api="Workspace")
def test_a_failure_without_a_node_omits_it() -> None:
    """``failure.json`` had ``"node": null``."""
    file = FailureFile(
        run_id="r",
        failure_class="graph",
        resumable=False,
        error_type="E",
        message="m",
        traceback=(),
        causes=(),
        attempt=1,
        time="2026-01-01T00:00:00.000000Z",
        format=1,
        kind="files",
        tenant="default",
        thread="t",
    )
    assert b'"node"' not in encode(file)


@pytest.mark.requirement("S2", api="CheckpointStore.put")
def test_a_state_that_was_put_can_be_invoked() -> None:
    """It was refused, with advice that cannot apply to a thread that has ended."""
    app = _app(store="memory://")
    store = CheckpointStore(app.store)
    store.put(ThreadKey("default", "t"), {"log": ["x"]})
    assert app.invoke({"log": ["i"]}, "t")["log"] == ["x", "i", "a", "b"]
    store.put(ThreadKey("default", "wrong"), {"other": 1})
    with pytest.raises(ResumeRefused, match="other"):
        app.invoke({"log": ["i"]}, "wrong")
