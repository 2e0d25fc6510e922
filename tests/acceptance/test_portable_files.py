"""H: portable files. Saved at interrupts or by hand, read without running anything."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import re
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import pytest

import milecastle
from milecastle import (
    END,
    START,
    App,
    Context,
    Event,
    InvalidRequest,
    ResumeRefused,
    Send,
    StateGraph,
    Unavailable,
    UnserializableState,
    append,
    interrupt,
)
from milecastle.codec.pickles import PickleCodec
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.signing import close_file
from milecastle.errors import Corrupted, FormatTooNew, StoreError, UntrustedFile
from milecastle.testing import ManualClock, with_store
from tests.acceptance.running import Recorder, Runner, Wrap
from tests.unit.codec import gadgets

KEY = b"a secret"
GADGETS = sorted(gadgets.all_gadgets("x"))


@dataclass
class Doc:
    title: str
    pages: int = 1


class Draft(TypedDict):
    topic: str
    log: Annotated[list[str], append]
    docs: NotRequired[list[Doc]]
    trap: NotRequired[gadgets.Trap]


def note(state: Draft, name: str, config: Any) -> dict[str, Any]:
    said = f"{name}:{config['who']}" if config else name
    return {"log": [said]}


def collect(state: Draft) -> dict[str, Any]:
    return {"log": ["collect"], "docs": [Doc(state["topic"], 3)]}


def line(wrap: Wrap = lambda function: function, **options: Any) -> App[Draft]:
    """collect -> review -> publish."""
    graph: StateGraph[Draft] = StateGraph(Draft, name="line")
    graph.add_node("collect", wrap(collect))
    graph.add_node("review", wrap(note))
    graph.add_node("publish", wrap(note))
    graph.add_edges(START, "collect", "review", "publish", END)
    return graph.compile(**options)


def fork_and_join(wrap: Wrap = lambda function: function, **options: Any) -> App[Draft]:
    """left | right -> join."""
    graph: StateGraph[Draft] = StateGraph(Draft, name="fork")
    for name in ("left", "right", "join"):
        graph.add_node(name, wrap(note))
    graph.add_edge(START, "left")
    graph.add_edge(START, "right")
    graph.add_edge("left", "join")
    graph.add_edge("right", "join")
    graph.add_edge("join", END)
    return graph.compile(**options)


def invoke(run: Runner, app: App[Any], **options: Any) -> Any:
    if run.name == "asynchronous":
        return asyncio.run(app.ainvoke(**options))
    return app.invoke(**options)


def stream(run: Runner, app: App[Any], **options: Any) -> list[Event]:
    async def read() -> list[Event]:
        return [event async for event in app.astream(**options)]

    if run.name == "asynchronous":
        return asyncio.run(read())
    return list(app.stream(**options))


def saved(folder: Path) -> list[Path]:
    return sorted(folder.glob("*"))


STATE: Draft = {"topic": "walls", "log": ["before"], "docs": [Doc("a", 2)]}


@pytest.mark.requirement("H3", api="StateGraph.compile")
def test_a_file_is_saved_before_each_interrupt_event(
    run: Runner, wrap: Wrap, tmp_path: Path
) -> None:
    """When an interrupt is reported to a reader or observer, the file is already there."""
    folder = tmp_path / "made" / "when needed"
    seen: list[tuple[str, int]] = []

    class Look:
        def on_event(self, event: Event) -> None:
            if event.type == "interrupt":
                seen.append((event.node or "", len(saved(folder))))

    app = line(wrap, interrupt_before=["review"], checkpoint_dir=folder, observers=[Look()])
    before = time.time_ns() // 1_000_000
    events = stream(run, app, input={"topic": "walls"})
    assert [event["node"] for event in events if event["type"] == "interrupt"] == ["review"]
    assert seen == [("review", 1)]
    (path,) = saved(folder)
    named = re.fullmatch(r"review_(\d+)\.pkl", path.name)
    assert named
    assert before <= int(named[1]) <= time.time_ns() // 1_000_000
    loaded = app.load_checkpoint(path)
    assert loaded["node"] == "review"
    assert loaded["state"] == {"topic": "walls", "log": ["collect"], "docs": [Doc("walls", 3)]}


@pytest.mark.requirement("H3", api="StateGraph.compile")
def test_invoke_saves_the_file_too(run: Runner, wrap: Wrap, tmp_path: Path) -> None:
    """Also without a reader and without observers, with its config, with and without a store."""
    for store in (None, "memory://"):
        folder = tmp_path / str(store).strip(":/")
        app = line(wrap, interrupt_before=["review"], checkpoint_dir=folder, store=store)
        result = invoke(run, app, input={"topic": "walls"}, config={"who": "me"})
        assert result.status == "interrupted"
        (path,) = saved(folder)
        assert app.load_checkpoint(path)["config"] == {"who": "me"}
        assert invoke(run, app, file=path).state["log"] == [
            "collect",
            "review:me",
            "publish:me",
        ]


@pytest.mark.requirement("H3", api="StateGraph.compile")
def test_after_a_node_the_file_names_what_runs_next(
    run: Runner, wrap: Wrap, tmp_path: Path
) -> None:
    """At `interrupt_after` the node is done: the file is named after it and does not repeat it."""
    app = line(wrap, interrupt_after=["collect"], checkpoint_dir=tmp_path)
    invoke(run, app, input={"topic": "walls"})
    (path,) = saved(tmp_path)
    assert path.name.startswith("collect_")
    assert app.load_checkpoint(path)["node"] == "review"
    assert invoke(run, app, file=path).state["log"] == ["collect", "review", "publish"]


@pytest.mark.requirement("H3", api="StateGraph.compile")
def test_two_interrupts_in_one_millisecond_are_two_files(tmp_path: Path) -> None:
    """A file is never written over another, however many runs wait at once."""
    app = line(interrupt_before=["review"], checkpoint_dir=tmp_path)
    threads = [threading.Thread(target=app.invoke, args=({"topic": str(n)},)) for n in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    topics = {app.load_checkpoint(path)["state"]["topic"] for path in saved(tmp_path)}
    assert topics == {str(n) for n in range(24)}


@pytest.mark.requirement("H3", api="StateGraph.compile")
def test_a_name_of_a_node_never_leads_out_of_the_folder(tmp_path: Path) -> None:
    """Characters that file systems read as their own are replaced in the name."""
    graph: StateGraph[Draft] = StateGraph(Draft)
    graph.add_node("../up", note)
    graph.add_edges(START, "../up", END)
    folder = tmp_path / "inner"
    app = graph.compile(interrupt_before=["../up"], checkpoint_dir=folder)
    app.invoke({"topic": "walls"})
    (path,) = saved(folder)
    assert saved(tmp_path) == [folder]
    assert app.load_checkpoint(path)["node"] == "../up"


@pytest.mark.requirement("H3", api="StateGraph.compile")
def test_without_a_folder_interrupts_are_as_before(
    run: Runner, wrap: Wrap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written that was not asked for."""
    monkeypatch.chdir(tmp_path)
    events = stream(run, line(wrap, interrupt_before=["review"]), input={"topic": "walls"})
    assert [event.type for event in events] == ["update", "interrupt"]
    assert saved(tmp_path) == []


@pytest.mark.requirement("H3", api="StateGraph.compile")
def test_a_file_that_cannot_be_saved_fails_the_call(tmp_path: Path, run: Runner) -> None:
    """The caller learns of it; the thread waits in the store all the same."""
    blocked = tmp_path / "file"
    blocked.touch()
    app = line(interrupt_before=["review"], checkpoint_dir=blocked, store="memory://")
    with pytest.raises(Unavailable, match="cannot be written"):
        invoke(run, app, input={"topic": "walls"}, thread="t")
    assert app.state("t").next == ("review",)
    app = line(interrupt_before=["review"], checkpoint_dir=tmp_path / "new", store="memory://")
    with pytest.raises(UnserializableState) as caught:
        invoke(run, app, input={"topic": "walls"}, config={"lock": threading.Lock(), "who": "me"})
    assert caught.value.path == "$.config.lock"


@pytest.mark.requirement("H4", api="App.save_checkpoint")
def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    """State, node, config, timestamp and version come back; the file replaces an older one."""
    app, path = line(), tmp_path / "a.pkl"
    app.save_checkpoint(path, {"topic": "old"}, "collect")
    before = time.time()
    app.save_checkpoint(path, STATE, "review", {"who": "me", "n": [1]})
    loaded = app.load_checkpoint(path)
    assert list(loaded) == ["state", "node", "config", "timestamp", "version"]
    assert loaded["state"] == STATE
    assert (loaded["node"], loaded["config"]) == ("review", {"who": "me", "n": [1]})
    assert before <= loaded["timestamp"] <= time.time()
    assert loaded["version"] == "1.0"
    assert saved(tmp_path) == [path]


@pytest.mark.requirement("H4", api="App.resume_from_checkpoint")
def test_resuming_runs_the_saved_node(run: Runner, wrap: Wrap, tmp_path: Path) -> None:
    """By any of the three ways, without a store."""
    app, path = line(wrap), str(tmp_path / "a.pkl")
    app.save_checkpoint(path, STATE, "review", {"who": "me"})
    log = ["before", "review:me", "publish:me"]
    assert app.resume_from_checkpoint(path).state["log"] == log
    result = invoke(run, app, file=path)
    assert result.state["log"] == log
    assert result.status == "completed"
    events = stream(run, app, file=path)
    assert [event.node for event in events] == ["review", "publish"]


@pytest.mark.requirement("H4", api="App.resume_from_checkpoint")
def test_the_given_config_goes_over_the_saved_one(run: Runner, wrap: Wrap, tmp_path: Path) -> None:
    """Key by key; what is not given stays."""
    seen: list[Any] = []

    def look(state: Draft, config: Any) -> dict[str, Any]:
        seen.append(config)
        return {}

    graph: StateGraph[Draft] = StateGraph(Draft)
    graph.add_node("look", wrap(look))
    graph.add_edges(START, "look", END)
    app, path = graph.compile(), tmp_path / "a.pkl"
    app.save_checkpoint(path, STATE, "look", {"who": "me", "n": 1})
    app.resume_from_checkpoint(path, {"who": "you"})
    invoke(run, app, file=path, config={"more": True})
    stream(run, app, file=path)
    app.resume_from_checkpoint(path, "no mapping")
    assert seen == [
        {"who": "you", "n": 1},
        {"who": "me", "n": 1, "more": True},
        {"who": "me", "n": 1},
        "no mapping",
    ]


@pytest.mark.requirement("H4", api="App.resume_from_checkpoint")
def test_an_interrupt_at_the_saved_node_is_over(run: Runner, wrap: Wrap, tmp_path: Path) -> None:
    """Resuming from a file passes its interrupt; the next interrupt stops the run again."""
    app = line(wrap, interrupt_before=["review", "publish"], checkpoint_dir=tmp_path)
    invoke(run, app, input={"topic": "walls"})
    (first,) = saved(tmp_path)
    assert invoke(run, app, file=first).next == ("publish",)
    second = next(path for path in saved(tmp_path) if path.name.startswith("publish_"))
    result = invoke(run, app, file=second)
    assert result.state["log"] == ["collect", "review", "publish"]
    assert result.step == 3


@pytest.mark.requirement("H4", api="App.resume_from_checkpoint")
def test_with_a_store_a_file_begins_a_thread(run: Runner, wrap: Wrap, tmp_path: Path) -> None:
    """Its history says where it came from; a thread that has checkpoints is left alone."""
    path = tmp_path / "a.pkl"
    app = line(wrap, store="memory://")
    app.save_checkpoint(path, STATE, "review")
    result = invoke(run, app, file=path, thread="t")
    history = list(app.history("t"))
    assert [(known.seq, known.source, known.next) for known in history] == [
        (3, "step", ()),
        (2, "step", ("publish",)),
        (1, "fork", ("review",)),
    ]
    assert history[-1].note == "from file a.pkl"
    assert history[-1].parent_id is None
    assert app.state("t").state == result.state
    with pytest.raises(InvalidRequest, match="already has checkpoints"):
        invoke(run, app, file=path, thread="t")
    other = invoke(run, app, file=path)
    assert other.thread.thread not in ("", "t")
    assert len(list(app.history(other.thread))) == 3


@pytest.mark.requirement("H4", api="App.resume_from_checkpoint")
def test_a_thread_from_a_file_is_resumed_like_any_other(tmp_path: Path) -> None:
    """If the run dies right after it began, the thread continues from the store."""
    path = tmp_path / "a.pkl"
    app = line(store="memory://", interrupt_before=["review"])
    app.save_checkpoint(path, STATE, "review")
    events: Any = app.stream(thread="t", file=path, mode="events")
    for event in events:
        if event.type == "checkpoint_save":
            break
    events.close()
    assert [known.seq for known in app.history("t")] == [1]
    assert app.resume("t").state["log"] == ["before", "review", "publish"]


@pytest.mark.requirement("H4", api="App.save_checkpoint")
def test_what_is_asked_must_make_sense(tmp_path: Path) -> None:
    """Unknown nodes, states that do not fit and two beginnings at once are refused."""
    app, path = line(), tmp_path / "a.pkl"
    with pytest.raises(InvalidRequest, match="no node 'gone'"):
        app.save_checkpoint(path, STATE, "gone")
    with pytest.raises(InvalidRequest, match="'colour'"):
        app.save_checkpoint(path, {"colour": 1}, "review")
    with pytest.raises(UnserializableState) as caught:
        app.save_checkpoint(path, {**STATE, "docs": [threading.Lock()]}, "review")
    assert caught.value.path == "$.state.docs[0]"
    assert saved(tmp_path) == []
    app.save_checkpoint(path, STATE, "review")
    with pytest.raises(InvalidRequest, match="without an input"):
        app.invoke({"topic": "x"}, file=path)
    with pytest.raises(InvalidRequest, match="empty"):
        line(signing_key=b"").save_checkpoint(path, STATE, "review")


@dataclass
class Typed:
    topic: str
    log: Annotated[list[str], append]
    extra: int = 7


def test_a_dataclass_state_is_loaded_as_what_it_is(tmp_path: Path) -> None:
    """H4: the state is saved by its fields and comes back in its own type."""

    def node(state: Typed) -> dict[str, Any]:
        return {"log": [state.topic]}

    graph: StateGraph[Typed] = StateGraph(Typed)
    graph.add_node("only", node)
    graph.add_edges(START, "only", END)
    app, path = graph.compile(), tmp_path / "a.pkl"
    app.save_checkpoint(path, Typed("walls", []), "only")
    assert app.load_checkpoint(path)["state"] == Typed("walls", [], 7)
    assert pickle.loads(path.read_bytes())["state"] == {"topic": "walls", "log": [], "extra": 7}
    assert app.resume_from_checkpoint(path).state == Typed("walls", ["walls"])
    app.save_checkpoint(path, {"topic": "walls"}, "only")
    assert app.load_checkpoint(path)["state"] == Typed("walls", [], 7)
    with pytest.raises(InvalidRequest, match="'topic'"):
        app.save_checkpoint(path, {"log": []}, "only")


@pytest.mark.requirement("H5", api="App.load_checkpoint")
def test_a_file_is_valid_pickle(tmp_path: Path) -> None:
    """The standard library reads it, signed or not, with objects of the declared types."""
    for key in (None, KEY):
        path = tmp_path / "a.pkl"
        line(signing_key=key).save_checkpoint(path, STATE, "review", {"who": "me"})
        with path.open("rb") as file:
            loaded = pickle.load(file)
        assert loaded["state"] == STATE
        assert (loaded["node"], loaded["config"]) == ("review", {"who": "me"})
        assert (loaded["graph"], loaded["version"]) == ("line", "1.0")
        assert isinstance(loaded["timestamp"], float)


LOADING = ["load_checkpoint", "resume_from_checkpoint", "invoke", "stream", "ainvoke", "astream"]


def load(app: App[Any], way: str, path: Path) -> None:
    if way in ("load_checkpoint", "resume_from_checkpoint"):
        getattr(app, way)(path)
    elif way == "invoke":
        app.invoke(file=path)
    elif way == "stream":
        list(app.stream(file=path))
    elif way == "ainvoke":
        asyncio.run(app.ainvoke(file=path))
    else:

        async def read() -> None:
            async for _ in app.astream(file=path):
                pass

        asyncio.run(read())


def good_parts(app: App[Draft]) -> dict[str, bytes]:
    """Everything in a file but its state, as opcodes."""
    return {
        "graph": gadgets.text("line"),
        "fingerprint": gadgets.text(app.fingerprint),
        "manifest": gadgets.data(app.graph.manifest.to_bytes()),
        "node": gadgets.text("review"),
        "next": gadgets.many(gadgets.text("review")),
        "step": b"K\x01",
        "timestamp": b"G" + bytes(8),
        "config": b"N",
        "results": b"}(u",
    }


def test_the_parts_around_a_gadget_are_those_of_a_good_file(tmp_path: Path) -> None:
    """H5: the control. With a harmless text in the gadget's place the file is opened."""
    app, path = line(), tmp_path / "a.pkl"
    content = gadgets.inside(gadgets.text("walls"), **good_parts(app))
    path.write_bytes(close_file(content, None))
    assert app.load_checkpoint(path)["state"]["topic"] == "walls"


@pytest.mark.requirement("H5", api="App.load_checkpoint")
@pytest.mark.parametrize("name", GADGETS)
def test_a_hostile_file_leaves_no_trace_on_any_load_path(tmp_path: Path, name: str) -> None:
    """As it is, in an unsigned file, and in one that a stolen key signed."""
    mark = tmp_path / "mark"
    body = gadgets.all_gadgets(str(mark))[name]
    plain, strict = line(), line(signing_key=KEY)
    content = gadgets.inside(body, **good_parts(plain))
    path = tmp_path / "a.pkl"
    modules = set(sys.modules)
    for app, data in (
        (plain, gadgets.alone(body)),
        (plain, content),
        (plain, close_file(content, None)),
        (strict, close_file(content, None)),
        (strict, close_file(content, KEY)),
    ):
        path.write_bytes(data)
        for way in LOADING:
            with pytest.raises((UntrustedFile, Corrupted)):
                load(app, way, path)
    # Other threads of the process may import what they like; the file names what it is after.
    new = {name.partition(".")[0] for name in set(sys.modules) - modules}
    assert not {name for name in new if name.encode() in body}
    assert not mark.exists()


@pytest.mark.requirement("H5", api="StateGraph.compile")
def test_an_app_with_a_key_opens_only_what_it_signed(tmp_path: Path) -> None:
    """Unsigned files, files of another key and files that were changed are refused."""
    path = tmp_path / "a.pkl"
    app = line(signing_key=KEY)
    app.save_checkpoint(path, STATE, "review")
    assert app.resume_from_checkpoint(path).status == "completed"
    assert line(signing_key=KEY.decode()).load_checkpoint(path)["node"] == "review"
    assert line().load_checkpoint(path)["node"] == "review"
    data = path.read_bytes()
    for bad in (data.replace(b"walls", b"wells"), data[:-1]):
        path.write_bytes(bad)
        for way in LOADING:
            with pytest.raises(UntrustedFile):
                load(app, way, path)
    for other in (line(), line(signing_key=b"another")):
        other.save_checkpoint(path, STATE, "review")
        for way in LOADING:
            with pytest.raises(UntrustedFile):
                load(app, way, path)


@pytest.mark.requirement("H5", api="StateGraph.compile")
def test_files_of_interrupts_are_signed_too(tmp_path: Path) -> None:
    """What `checkpoint_dir` collects opens with the key of the app."""
    app = line(signing_key=KEY, interrupt_before=["review"], checkpoint_dir=tmp_path)
    app.invoke({"topic": "walls"})
    (path,) = saved(tmp_path)
    assert app.resume_from_checkpoint(path).status == "completed"
    with pytest.raises(UntrustedFile):
        line(signing_key=b"another").load_checkpoint(path)


@pytest.mark.requirement("H6", api="App.load_checkpoint")
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path) -> None:
    """Not there, a folder, empty, cut short, damaged, something else: each says so, and which."""
    app, path = line(), tmp_path / "a.pkl"
    with pytest.raises(InvalidRequest, match=r"no portable file .*a\.pkl"):
        app.load_checkpoint(path)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        app.load_checkpoint(tmp_path)
    app.save_checkpoint(path, STATE, "review")
    good = path.read_bytes()
    for size in (0, 1, 10, 60, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:size])
        with pytest.raises(Corrupted, match="cut short") as caught:
            app.load_checkpoint(path)
        assert caught.value.place == str(path)
    path.write_bytes(good.replace(b"before", b"beforf"))
    with pytest.raises(Corrupted, match="checksum"):
        app.resume_from_checkpoint(path)
    for data in (b"not a pickle", pickle.dumps({"state": {}, "node": "review"})):
        path.write_bytes(data)
        with pytest.raises(UntrustedFile, match="not a portable file"):
            app.load_checkpoint(path)
    path.write_bytes(close_file(gadgets.inside(gadgets.text("walls")), None))
    with pytest.raises(UntrustedFile, match="is not a portable file"):
        app.load_checkpoint(path)


@pytest.mark.requirement("H6", api="App.load_checkpoint")
def test_a_file_of_a_newer_version_says_so(tmp_path: Path) -> None:
    """The version stands first, so that this is known whatever the newer format is."""
    app, path = line(), tmp_path / "a.pkl"
    app.save_checkpoint(path, STATE, "review")
    path.write_bytes(path.read_bytes().replace(b"1.0", b"2.0", 1))
    with pytest.raises(FormatTooNew, match="upgrade milecastle"):
        app.load_checkpoint(path)


@pytest.mark.parametrize("version", [b"1.0", b"2.0"])
@pytest.mark.parametrize("key", [None, KEY], ids=["unsigned", "signed"])
def test_file_from_before_the_first_release_says_so(
    tmp_path: Path, key: bytes | None, version: bytes
) -> None:
    """Fails if it is called damaged, or newer than this version.

    Such files have other words before their checksum and their signature.
    """
    app, path = line(signing_key=key), tmp_path / "a.pkl"
    app.save_checkpoint(path, STATE, "review")
    old = path.read_bytes().replace(b"#milecastle:", b"#milecastle-").replace(b"1.0", version, 1)
    path.write_bytes(old)
    for call in (app.load_checkpoint, app.resume_from_checkpoint):
        with pytest.raises(StoreError, match="before the first release"):
            call(path)
    assert path.read_bytes() == old


class Other(TypedDict):
    colour: str


@pytest.mark.requirement("H6", api="App.load_checkpoint")
def test_a_file_of_another_graph_says_so(tmp_path: Path) -> None:
    """By the rules of a resume: what was only added is fine, what is gone is named."""

    def paint(state: Other) -> dict[str, Any]:
        return {}

    graph: StateGraph[Other] = StateGraph(Other, name="other")
    graph.add_node("paint", paint)
    graph.add_edges(START, "paint", END)
    other: App[Any] = graph.compile()
    path = tmp_path / "a.pkl"
    line().save_checkpoint(path, STATE, "review")  # with a type that the other does not declare
    for way in LOADING:
        with pytest.raises(ResumeRefused, match=r"file '.*' was not resumed.*graph 'line'"):
            load(other, way, path)
    other.save_checkpoint(path, {"colour": "red"}, "paint")
    with pytest.raises(ResumeRefused, match="'colour' was removed"):
        line().load_checkpoint(path)


@pytest.mark.requirement("H6", api="App.resume_from_checkpoint")
def test_a_graph_that_only_grew_takes_the_file(tmp_path: Path) -> None:
    """The history of the new thread notes what changed."""
    path = tmp_path / "a.pkl"
    line().save_checkpoint(path, STATE, "review")
    graph: StateGraph[Draft] = StateGraph(Draft, name="line")
    for name, node in (("collect", collect), ("review", note), ("publish", note), ("more", note)):
        graph.add_node(name, node)
    graph.add_edges(START, "collect", "review", "publish", "more", END)
    app = graph.compile(store="memory://")
    result = app.resume_from_checkpoint(path, thread="t")
    assert result.state["log"] == ["before", "review", "publish", "more"]
    assert "node 'more' added" in list(app.history("t"))[-1].note


@pytest.mark.requirement("H6", api="App.load_checkpoint")
def test_a_file_that_lies_about_its_graph_is_refused(tmp_path: Path) -> None:
    """The fingerprint fits, the node or the state does not."""
    app, path = line(), tmp_path / "a.pkl"
    parts = good_parts(app)
    for change in (
        {"node": gadgets.text("gone")},
        {"next": gadgets.many(gadgets.text("gone"))},
        {"next": b"(t"},
    ):
        path.write_bytes(close_file(gadgets.inside(b"N", **{**parts, **change}), None))
        with pytest.raises(ResumeRefused, match="no such node"):
            app.resume_from_checkpoint(path)
    content = gadgets.inside(b"N", **parts).replace(b"topic", b"tropic"[:5])
    path.write_bytes(close_file(content, None))
    with pytest.raises(ResumeRefused, match="'tropi'"):
        app.resume_from_checkpoint(path)


@pytest.mark.requirement("H7", api="App.load_checkpoint")
def test_file_at_a_fan_in_holds_the_parallel_results(
    run: Runner, wrap: Wrap, tmp_path: Path
) -> None:
    """Applied to the state, and one by one. Tried: ``_merged`` never set; no results are found."""
    app = fork_and_join(wrap, interrupt_before=["join"], checkpoint_dir=tmp_path)
    invoke(run, app, input={"topic": "walls"})
    (path,) = saved(tmp_path)
    loaded = app.load_checkpoint(path)
    assert loaded["node"] == "join"
    assert loaded["state"]["log"] == ["left", "right"]
    assert loaded["results"] == {"left": {"log": ["left"]}, "right": {"log": ["right"]}}
    assert pickle.loads(path.read_bytes())["results"] == loaded["results"]
    assert invoke(run, app, file=path).state["log"] == ["left", "right", "join"]


@pytest.mark.requirement("H7", api="StateGraph.compile")
def test_file_among_parallel_branches_holds_the_last_committed_step(
    run: Runner, wrap: Wrap, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning says so; resuming skips none of the branches.

    Tried: only the first of the next nodes saved; then ``left`` is lost.
    """
    app = fork_and_join(wrap, interrupt_before=["right"], checkpoint_dir=tmp_path)
    with caplog.at_level(logging.WARNING, "milecastle"):
        invoke(run, app, input={"topic": "walls"})
    (path,) = saved(tmp_path)
    (record,) = caplog.records
    assert "parallel branches" in record.message
    assert "last committed step (0)" in record.message
    assert "left, right" in record.message
    loaded = app.load_checkpoint(path)
    assert loaded["node"] == "right"
    assert loaded["state"]["log"] == []
    assert "results" not in loaded
    assert invoke(run, app, file=path).state["log"] == ["left", "right", "join"]


class Fan(TypedDict):
    items: list[int]
    item: NotRequired[int]
    out: Annotated[list[str], append]


def fan_out(work: Any, **options: Any) -> App[Fan]:
    """split -> work, once for each item -> join; and tail, which waits for all of them."""

    def split(state: Fan) -> list[Send]:
        return [Send("work", {"item": item}) for item in state["items"]]

    def say(state: Fan, name: str) -> dict[str, Any]:
        return {"out": [name]}

    graph: StateGraph[Fan] = StateGraph(Fan, name="fan")
    graph.add_node("split", say)
    graph.add_node("work", work)
    graph.add_node("join", say)
    graph.add_node("tail", say, defer=True)
    graph.add_edges(START, "split", "tail", END)
    graph.add_conditional_edges("split", split, ["work"])
    graph.add_edges("work", "join", END)
    return graph.compile(**options)


def work(state: Fan) -> dict[str, Any]:
    return {"out": [f"work {state.get('item', 'without its item')}"]}


@pytest.mark.requirement("H7", api="App.resume_from_checkpoint")
@pytest.mark.parametrize("store", [None, "memory://"])
def test_file_at_a_fan_out_holds_the_items_and_deferred_nodes(
    run: Runner, wrap: Wrap, tmp_path: Path, store: str | None
) -> None:
    """Before the items run, and after: with what each of them returned.

    Tried: files without ``pending``, and with the nodes that edges led to as what runs next.
    """
    stops: dict[str, Any] = {"interrupt_before": ["work", "join"], "checkpoint_dir": tmp_path}
    app = fan_out(wrap(work), store=store, **stops)
    assert invoke(run, app, input={"items": [1, 2]}).status == "interrupted"
    (first,) = saved(tmp_path)
    assert app.load_checkpoint(first)["node"] == "work"
    assert invoke(run, app, file=first).next == ("join", "tail")
    second = next(path for path in saved(tmp_path) if path.name.startswith("join_"))
    results = app.load_checkpoint(second)["results"]
    assert results == {"work#0": {"out": ["work 1"]}, "work#1": {"out": ["work 2"]}}
    result = invoke(run, app, file=second)
    assert result.status == "completed"
    assert result.state["out"] == ["split", "work 1", "work 2", "join", "tail"]


@pytest.mark.requirement("H7", api="App.resume_from_checkpoint")
def test_file_holds_the_answers_and_questions_of_tasks(
    run: Runner, wrap: Wrap, tmp_path: Path
) -> None:
    """An answer that was given is not asked for again, in another store.

    Tried: ``pending`` without ``__answers__``; the first question is open again.
    """

    def ask(state: Fan) -> dict[str, Any]:
        first = interrupt("first?", answer=str)
        return {"out": [first, interrupt("second?", answer=str)]}

    app = fan_out(wrap(ask), store="memory://", checkpoint_dir=tmp_path)
    invoke(run, app, input={"items": [7]}, thread="t")
    (first,) = saved(tmp_path)
    app.resume("t", "yes")
    (second,) = {*saved(tmp_path)} - {first}
    other = fan_out(wrap(ask), store="memory://")
    for path, open in ((first, "first?"), (second, "second?")):
        waiting = invoke(run, other, file=path, thread=path.name)
        assert [found.question for found in waiting.interrupts] == [open]
    result = other.resume(second.name, "no")
    assert result.state["out"] == ["split", "yes", "no", "join", "tail"]


@pytest.mark.requirement("H7", api="App.resume_from_checkpoint")
def test_file_holds_the_times_that_tasks_wait_for(tmp_path: Path) -> None:
    """A sleep ends when it would have ended in the thread.

    Tried: ``pending`` without ``__waits__``; the sleep starts again.
    """

    def work(state: Fan, ctx: Context) -> dict[str, Any]:
        if state.get("item") == 1:
            return {"out": [interrupt("ok?", answer=str)]}
        ctx.sleep(3600)
        return {"out": ["slept"]}

    clock = ManualClock(0)
    app = fan_out(work, store="memory://", checkpoint_dir=tmp_path)
    app = with_store(app, app.store, clock=clock)
    app.invoke({"items": [1, 2]}, thread="t")
    (path,) = saved(tmp_path)
    clock.advance(1800)
    result = app.resume_from_checkpoint(path, thread="u")
    assert (result.status, result.wake_at) == ("interrupted", app.state("t").wake_at)
    clock.advance(1801)
    app.resume("u", "fine")
    assert app.state("u").state["out"] == ["split", "fine", "slept", "join", "tail"]


def test_file_that_would_lose_answers_of_a_subgraph_is_refused(
    run: Runner, wrap: Wrap, tmp_path: Path
) -> None:
    """H7: the call fails with the reason; the thread waits in the store.

    Tried: ``_portable`` without its check; the first question is asked again, silently.
    """

    def ask(state: Draft) -> dict[str, Any]:
        first = interrupt("first?", answer=str)
        return {"log": [first, interrupt("second?", answer=str)]}

    inner: StateGraph[Draft] = StateGraph(Draft, name="inner")
    inner.add_node("ask", wrap(ask))
    inner.add_edges(START, "ask", END)
    outer: StateGraph[Draft] = StateGraph(Draft, name="outer")
    outer.add_node("sub", inner.compile())
    outer.add_edges(START, "sub", END)
    app = outer.compile(store="memory://", checkpoint_dir=tmp_path)
    invoke(run, app, input={"topic": "walls"}, thread="t")
    (path,) = saved(tmp_path)
    assert path.name.startswith("ask_")
    with pytest.raises(InvalidRequest, match=r"subgraph of task 'sub' has received answers"):
        app.resume("t", "yes")
    assert saved(tmp_path) == [path]
    assert [found.question for found in app.state("t").interrupts] == ["second?"]
    again = invoke(run, app, file=path, thread="u")
    assert [found.question for found in again.interrupts] == ["first?"]
    assert outer.compile(store=app.store).resume("t", "no").state["log"] == ["yes", "no"]


HOSTILE: list[dict[str, Any]] = [
    {"__sends__": ["review"]},
    {"__sends__": ["gone", {}]},
    {"__sends__": ["review", 7]},
    {"__waits__": {"review/0": ["review", ["review"], None, []]}},
    {"__waits__": {"gone/0": ["gone", None, 7, []]}},
    {"__waits__": {"review/~0": ["review", None, "later", []]}},
    {"__waits__": {"review/0": ["review", None, None, ["topic"]]}},
    {"__asked__": {"review/0": ["review"]}},
    {"__asked__": {"gone/0": ["gone", "gone", "?", None, None, True]}},
    {"__sleeps__": {"review/0": ["review", "later"]}},
    {"__gotos__": {}},
    {"more": 1},
]


@pytest.mark.parametrize("pending", HOSTILE)
def test_file_with_pending_work_of_no_run_is_refused(
    tmp_path: Path, pending: dict[str, Any]
) -> None:
    """H5: the engine never sees it. Tried: no ``_check_pending``; each raises something else."""
    app, path = line(), tmp_path / "a.pkl"
    body = PickleCodec(TypeRegistry()).dumps(pending)[2:-1]
    content = gadgets.inside(gadgets.text("walls"), **good_parts(app), pending=body)
    path.write_bytes(close_file(content, None))
    for way in LOADING:
        with pytest.raises(UntrustedFile, match="is not a portable file"):
            load(app, way, path)


@pytest.mark.requirement("H7", api="StateGraph.compile")
def test_question_in_a_branch_leaves_a_file_that_waits_for_the_answer(
    run: Runner, wrap: Wrap, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The sibling had finished: it runs again, for the file has only the last committed step."""

    def ask(state: Draft) -> dict[str, Any]:
        return {"log": [f"asked {interrupt('ok?', answer=bool)}"]}

    graph: StateGraph[Draft] = StateGraph(Draft)
    graph.add_node("first", wrap(collect))
    graph.add_node("ask", wrap(ask))
    graph.add_node("side", wrap(note))
    graph.add_edges(START, "first", "ask", END)
    graph.add_edges("first", "side", END)
    app = graph.compile(store="memory://", checkpoint_dir=tmp_path)
    invoke(run, app, input={"topic": "walls"}, thread="t")
    (path,) = saved(tmp_path)
    assert "parallel branches" in caplog.text
    loaded = app.load_checkpoint(path)
    assert (loaded["node"], loaded["state"]["log"]) == ("ask", ["collect"])
    assert invoke(run, app, file=path, thread="u").status == "interrupted"
    assert app.resume("u", True).state["log"] == ["collect", "asked True", "side"]
    assert app.resume("t", False).state["log"] == ["collect", "asked False", "side"]


@pytest.mark.requirement("H1", api="StateGraph.compile")
@pytest.mark.parametrize("store", [None, "memory://"])
def test_interrupt_after_the_last_node_gives_its_event_and_its_file(
    run: Runner, wrap: Wrap, tmp_path: Path, store: str | None
) -> None:
    """Nothing is left to wait for: the run completes, and the file resumes to its end.

    Tried: ``_complete`` without the interrupts; there is neither event nor file.
    """
    app = line(wrap, interrupt_after=["publish"], checkpoint_dir=tmp_path, store=store)
    events = stream(run, app, input={"topic": "walls"})
    assert [event.type for event in events] == ["update"] * 3 + ["interrupt"]
    log = ["collect", "review", "publish"]
    assert (events[-1]["node"], events[-1]["state"]["log"]) == ("publish", log)
    (path,) = saved(tmp_path)
    assert path.name.startswith("publish_")
    loaded = app.load_checkpoint(path)
    assert (loaded["node"], loaded["state"]["log"]) == (END, log)
    for result in (
        invoke(run, app, input={"topic": "walls"}),
        invoke(run, app, file=path),
    ):
        assert (result.status, result.next, result.state["log"]) == ("completed", (), log)
    assert len(saved(tmp_path)) == 2


@pytest.mark.requirement("H3", api="StateGraph.compile")
def test_saving_and_loading_log_one_line_each(
    run: Runner, wrap: Wrap, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the file, the node and the step, and nothing of the state."""
    caplog.set_level(logging.INFO, "milecastle")
    app = line(wrap, interrupt_before=["review"], checkpoint_dir=tmp_path)
    invoke(run, app, input={"topic": "a secret"})
    (path,) = saved(tmp_path)
    size = path.stat().st_size
    invoke(run, app, file=path)
    app.save_checkpoint(path, STATE, "publish")
    app.load_checkpoint(path)
    assert [record.levelname for record in caplog.records] == ["INFO"] * 4
    what = [record.message.removeprefix(f"{path}") for record in caplog.records]
    assert what[:2] == [
        f"saved portable file {path}: node 'review' after step 1, {size} bytes",
        f"loaded portable file {path}: node 'review' after step 1, {size} bytes",
    ]
    assert [line.partition(":")[0].partition(" ")[0] for line in what[2:]] == ["saved", "loaded"]
    assert "secret" not in caplog.text


@pytest.mark.requirement("H4", api="App.resume_from_checkpoint")
def test_file_resumes_in_another_process(tmp_path: Path) -> None:
    """Saved by a script, resumed by a program that imports the script."""
    script = """
        import sys
        from dataclasses import dataclass
        from typing import TypedDict
        from milecastle import END, START, StateGraph

        @dataclass
        class Doc:
            title: str

        class Draft(TypedDict):
            doc: Doc

        graph = StateGraph(Draft, name="draft")

        @graph.node
        def review(state: Draft) -> dict:
            return {"doc": Doc(state["doc"].title + "!")}

        graph.add_edges(START, "review", END)
        app = graph.compile(interrupt_before=["review"], checkpoint_dir="files")
        if __name__ == "__main__":
            app.invoke({"doc": Doc("walls")})
    """
    other = """
        import pathlib, demo
        (path,) = pathlib.Path("files").iterdir()
        print(demo.app.resume_from_checkpoint(path).state)
    """
    tmp_path.joinpath("demo.py").write_text(textwrap.dedent(script), "utf-8")
    tmp_path.joinpath("other.py").write_text(textwrap.dedent(other), "utf-8")
    paths = [
        str(Path(milecastle.__file__).parents[1]),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    outputs = [
        subprocess.run(
            [sys.executable, "-W", "error", name],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for name in ("demo.py", "other.py")
    ]
    assert outputs == ["", "{'doc': Doc(title='walls!')}\n"]


def test_a_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H6: a disk that fails in the middle leaves the old file and no other."""
    app, path = line(), tmp_path / "a.pkl"
    app.save_checkpoint(path, STATE, "review")
    good = path.read_bytes()

    def full(fd: int, data: bytes) -> None:
        os.write(fd, data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("milecastle.app.portable.files.append", full)
    with pytest.raises(Unavailable, match="No space left"):
        app.save_checkpoint(path, {"topic": "new"}, "review")
    assert saved(tmp_path) == [path]
    assert path.read_bytes() == good


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H3: bytes first, then the name, then the folder."""
    done: list[str] = []

    def sync(fd: int) -> None:
        done.append(f"bytes, {len(list(tmp_path.glob('*.pkl')))} files")

    def sync_folder(folder: Path) -> None:
        done.append(f"folder, {len(list(folder.glob('*.pkl')))} files")

    monkeypatch.setattr("milecastle.app.portable.files.sync", sync)
    monkeypatch.setattr("milecastle.app.portable.files.sync_folder", sync_folder)
    line().save_checkpoint(tmp_path / "a.pkl", STATE, "review")
    assert done == ["bytes, 0 files", "folder, 1 files"]
    done.clear()
    line(interrupt_before=["review"], checkpoint_dir=tmp_path).invoke({"topic": "x"})
    assert done == ["bytes, 1 files", "folder, 2 files"]


def test_a_disk_without_links_takes_files_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H3: the name is taken by renaming, and no other file's."""

    def no_links(*args: Any) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", no_links)
    app = line(interrupt_before=["review"], checkpoint_dir=tmp_path)
    for _ in range(5):
        app.invoke({"topic": "x"})
    assert len(saved(tmp_path)) == 5
    assert all(app.load_checkpoint(path)["node"] == "review" for path in saved(tmp_path))


def test_events_of_a_resumed_file_are_in_order(run: Runner, wrap: Wrap, tmp_path: Path) -> None:
    """H4: a run from a file is reported as one that resumes from a checkpoint."""
    seen = Recorder()
    app, path = line(wrap, observers=[seen]), tmp_path / "a.pkl"
    app.save_checkpoint(path, STATE, "publish")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        invoke(run, app, file=path)
    assert seen.types[:3] == ["graph_start", "checkpoint_load", "checkpoint_resume"]
    assert seen.types[-1] == "graph_complete"
