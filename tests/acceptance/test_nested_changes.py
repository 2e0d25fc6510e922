"""Changes inside of types and subgraphs: noticed before a node runs against them."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from types import GenericAlias
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import pytest

from milecastle import (
    END,
    START,
    App,
    Keyring,
    ResumeRefused,
    StateGraph,
    ThreadKey,
    append,
    interrupt,
)
from milecastle.model.manifest import Manifest
from milecastle.stores.memory import MemoryStore
from tests.acceptance.running import Runner

KEY = ThreadKey("default", "t")

Fields = dict[str, Any]


def as_typed_dict(fields: Fields) -> Any:
    make: Any = TypedDict
    return make("Item", fields)


def as_dataclass(fields: Fields) -> Any:
    made = dataclasses.make_dataclass("Item", list(fields.items()))
    made.__module__, made.__qualname__ = __name__, "Item"
    return made


def as_struct(fields: Fields) -> Any:
    made = msgspec.defstruct("Item", list(fields.items()))
    made.__module__, made.__qualname__ = __name__, "Item"
    return made


def as_model(fields: Fields) -> Any:
    pydantic = pytest.importorskip("pydantic")
    made = pydantic.create_model("Item", **{name: (hint, ...) for name, hint in fields.items()})
    made.__module__, made.__qualname__ = __name__, "Item"
    return made


FORMS: dict[str, Callable[[Fields], Any]] = {
    "TypedDict": as_typed_dict,
    "dataclass": as_dataclass,
    "struct": as_struct,
    "pydantic": as_model,
}

WITHIN: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "itself": (lambda item: item, lambda value: value),
    "a list": (lambda item: GenericAlias(list, (item,)), lambda value: [value]),
    "a dict of optional": (
        lambda item: GenericAlias(dict, (str, item | None)),
        lambda value: {"x": value},
    ),
    "another type": (
        lambda item: as_typed_dict({"inner": item}) | None,
        lambda value: {"inner": value},
    ),
}


def line(state: Any, store: MemoryStore, ran: list[str], *, stop: bool = False) -> App[Any]:
    """``x``, then ``y``; the old graph stops before ``y``."""
    graph: StateGraph[Any] = StateGraph(state, name="line")

    def note(state: Any, name: str) -> None:
        ran.append(name)

    for name in "xy":
        graph.add_node(name, note)
    graph.add_edges(START, "x", "y", END)
    return graph.compile(store=store, interrupt_before=["y"] if stop else ())


def state_of(item: Any, within: str = "itself") -> Any:
    make: Any = TypedDict
    return make("State", {"value": WITHIN[within][0](item)})


@pytest.mark.requirement("G5", "R4", api="ResumeRefused")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("within", [name for name in WITHIN if name != "another type"])
@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ({"a": str}, "field 'a' of Item was int and is now str"),
        ({"b": int}, "field 'a' of Item was removed (renamed to 'b'?)"),
        ({"a": int, "c": int}, "field 'c' of Item was added and is required"),
    ],
)
def test_a_changed_nested_field_is_refused_before_a_node_runs(
    run: Runner, form: str, within: str, after: Fields, reason: str
) -> None:
    """Fails if ``describe_types`` leaves this kind of type out, or ``compare`` the types."""
    store, ran = MemoryStore(), list[str]()
    before = FORMS[form]({"a": int})
    value = {"a": 1} if form == "TypedDict" else before(a=1)
    old = line(state_of(before, within), store, ran, stop=True)
    run.invoke(old, {"value": WITHIN[within][1](value)}, "t")
    new = line(state_of(FORMS[form](after), within), store, ran)
    with pytest.raises(ResumeRefused) as caught:
        run.resume(new, "t")
    assert reason in str(caught.value)
    assert ran == ["x"]
    assert reason in "; ".join(new.compatibility("t").reasons)


@pytest.mark.requirement("G5", "R4", api="App.resume")
def test_an_optional_nested_field_may_be_added(run: Runner) -> None:
    """Fails if every difference of a type is a reason against."""
    store, ran = MemoryStore(), list[str]()
    old = line(state_of(as_typed_dict({"a": int}), "another type"), store, ran, stop=True)
    run.invoke(old, {"value": {"inner": {"a": 1}}}, "t")
    item = as_typed_dict({"a": int, "b": NotRequired[int]})
    new = line(state_of(item, "another type"), store, ran)
    assert run.resume(new, "t").status == "completed"
    notes = [known.note for known in new.history("t") if known.note]
    assert notes == ["the graph changed: field 'b' of Item added"]


CLASSES = [form for form in FORMS if form != "TypedDict"]


def with_default(form: str) -> Any:
    """``Item`` with a field more than before, which has a default."""
    if form == "pydantic":
        pydantic = pytest.importorskip("pydantic")
        made = pydantic.create_model("Item", a=(int, ...), b=(list[int], [5]))
    elif form == "struct":
        made = msgspec.defstruct("Item", [("a", int), ("b", list[int], [])])
    else:
        default = dataclasses.field(default_factory=lambda: [5])
        made = dataclasses.make_dataclass("Item", [("a", int), ("b", list[int], default)])
    made.__module__, made.__qualname__ = __name__, "Item"
    return made


@pytest.mark.requirement("G5", "R4", api="App.resume")
@pytest.mark.parametrize("form", CLASSES)
@pytest.mark.parametrize("within", WITHIN)
def test_nested_field_with_a_default_may_be_added(run: Runner, form: str, within: str) -> None:
    """``fit()`` approved, then the thread could be neither resumed nor read."""
    store, ran = MemoryStore(), list[str]()
    before, after = FORMS[form]({"a": int}), with_default(form)
    old = line(state_of(before, within), store, ran, stop=True)
    run.invoke(old, {"value": WITHIN[within][1](before(a=1))}, "t")
    new = line(state_of(after, within), store, ran)
    assert new.compatibility("t")
    expected = {"value": WITHIN[within][1](after(a=1))}
    assert run.state(new, "t").state == expected
    assert run.resume(new, "t").state == expected


@pytest.mark.requirement("G5", "R4", api="App.resume")
@pytest.mark.parametrize("form", CLASSES)
def test_accepted_changes_drop_a_nested_field(run: Runner, form: str) -> None:
    """The remedy that the refusal names failed with a ``CodecError``."""
    store, ran = MemoryStore(), list[str]()
    before, after = FORMS[form]({"a": int, "b": int}), FORMS[form]({"a": int})
    old = line(state_of(before), store, ran, stop=True)
    run.invoke(old, {"value": before(a=1, b=2)}, "t")
    new = line(state_of(after), store, ran)
    with pytest.raises(ResumeRefused, match=r"field 'b' of Item was removed.*accept_changes"):
        run.resume(new, "t")
    assert run.resume(new, "t", accept_changes=True).state == {"value": after(a=1)}
    assert run.state(new, "t").state == {"value": after(a=1)}


@pytest.mark.requirement("G5", "R4", api="App.migrate")
@pytest.mark.parametrize("form", CLASSES)
def test_migration_reads_the_former_class_of_the_same_name(run: Runner, form: str) -> None:
    """It was refused: two types had one name."""
    store, ran = MemoryStore(), list[str]()
    before, after = FORMS[form]({"a": int}), FORMS[form]({"b": str})
    old = line(state_of(before), store, ran, stop=True)
    run.invoke(old, {"value": before(a=1)}, "t")
    new = line(state_of(after), store, ran)
    new.migrate(
        old.fingerprint,
        lambda state, nodes: ({"value": after(b=str(state["value"].a))}, nodes),
        types=[before],
    )
    assert run.resume(new, "t").state == {"value": after(b="1")}


@pytest.mark.requirement("G5", "R4", api="ResumeRefused")
@pytest.mark.parametrize("form", CLASSES)
def test_remedy_that_cannot_work_is_not_named(run: Runner, form: str) -> None:
    """``accept_changes`` cannot make an object without a field that it needs."""
    store, ran = MemoryStore(), list[str]()
    before = FORMS[form]({"a": int})
    run.invoke(line(state_of(before), store, ran, stop=True), {"value": before(a=1)}, "t")
    new = line(state_of(FORMS[form]({"a": int, "b": int})), store, ran)
    for accept in (False, True):
        with pytest.raises(ResumeRefused) as caught:
            run.resume(new, "t", accept_changes=accept)
        assert "accept_changes" not in str(caught.value)


def colours(*names: str) -> Any:
    make: Any = enum.Enum
    made = make("Item", list(names))
    made.__module__, made.__qualname__ = __name__, "Item"
    return made


@pytest.mark.requirement("G5", "R4", api="ResumeRefused")
def test_removed_member_of_an_enum_is_noticed(run: Runner) -> None:
    """The fingerprint was the same, and reading the thread failed."""
    store, ran = MemoryStore(), list[str]()
    before, after = colours("RED", "BLUE"), colours("BLUE", "GREEN", "RED_")
    old = line(state_of(before), store, ran, stop=True)
    run.invoke(old, {"value": before["RED"]}, "gone")
    run.invoke(old, {"value": before["BLUE"]}, "kept")
    more = line(state_of(colours("RED", "BLUE", "GREEN")), store, ran)
    assert more.compatibility("gone").note == "the graph changed: member 'GREEN' of Item added"
    new = line(state_of(after), store, ran)
    with pytest.raises(ResumeRefused, match="member 'RED' of Item was removed"):
        run.resume(new, "gone")
    with pytest.raises(ResumeRefused, match=r"cannot be read.*app\.migrate"):
        run.resume(new, "gone", accept_changes=True)
    assert run.resume(new, "kept", accept_changes=True).state == {"value": after["BLUE"]}


@pytest.mark.requirement("G5", "R4", api="ResumeRefused")
@pytest.mark.parametrize(
    ("first", "second"),
    [(a, b) for a in FORMS for b in FORMS if a != b and {a, b} != {"dataclass", "struct"}],
)
def test_class_of_another_kind_is_noticed(run: Runner, first: str, second: str) -> None:
    """The fingerprint was the same, and the thread could not be read, or had a dict in it."""
    store, ran = MemoryStore(), list[str]()
    before, after = FORMS[first]({"a": int}), FORMS[second]({"a": int})
    value = {"a": 1} if first == "TypedDict" else before(a=1)
    run.invoke(line(state_of(before), store, ran, stop=True), {"value": value}, "t")
    new = line(state_of(after), store, ran)
    with pytest.raises(ResumeRefused, match=r"Item was a.* and is now a"):
        run.resume(new, "t")


GOLDEN = (
    b'{"channels":[{"name":"value","optional":false,"reducer":"last","renamed_from":["was"],'
    b'"type":"list[Item]"}],'
    b'"edges":[{"kind":"fixed","label":"","source":"__start__","target":"x"},'
    b'{"kind":"fixed","label":"","source":"x","target":"__end__"}],'
    b'"nodes":[{"name":"x","renamed_from":["w"],"subgraph":{"channels":[],"edges":[],"nodes":[]},'
    b'"version":"2"}],'
    b'"types":[{"fields":[{"name":"a","optional":true,"reducer":"last","type":"int"}],'
    b'"kind":"record","name":"Item"}]}'
)
"""A manifest with everything that one can have."""


@pytest.mark.requirement("G5", api="Manifest")
def test_golden_manifest_is_read() -> None:
    """Fails if a part gets another name, or if a new part must be there."""
    found = Manifest.from_bytes(GOLDEN)
    assert found.to_bytes() == GOLDEN
    assert found.fingerprint == "f71ac43f3747eaae58dfef805e640a4e"


# ---- subgraphs


class Log(TypedDict):
    log: Annotated[list[str], append]


class NamedLog(TypedDict):
    log: Annotated[list[str], append]
    name: NotRequired[str]


class OtherLog(TypedDict):
    log: Annotated[list[str], append]
    title: str


def note(state: Any, name: str) -> dict[str, Any]:
    return {"log": [name]}


def ask(state: Any) -> dict[str, Any]:
    return {"log": [interrupt("q", answer=str)]}


def inner_of(*names: str, state: Any = Log) -> App[Any]:
    graph: StateGraph[Any] = StateGraph(state, name="inner")
    for name in names:
        graph.add_node(name, ask if name == "ask" else note)
    graph.add_edges(START, *names, END)
    return graph.compile()


def outer_of(
    inner: Any, store: Any, *, stop: bool = False, deep: bool = False, encryption: Any = None
) -> App[Any]:
    """``before``, then the subgraph as ``sub``, perhaps inside of another, then ``after``."""
    if deep:
        middle: StateGraph[Any] = StateGraph(Log, name="middle")
        middle.add_node("deep", inner)
        middle.add_edges(START, "deep", END)
        inner = middle.compile()
    graph: StateGraph[Any] = StateGraph(Log, name="outer")
    graph.add_node("before", note)
    graph.add_node("sub", inner)
    graph.add_node("after", note)
    graph.add_edges(START, "before", "sub", "after", END)
    before = ["sub"] if stop else ()
    return graph.compile(store=store, interrupt_before=before, encryption=encryption)


@pytest.mark.requirement("G8", "R4", api="ResumeRefused")
def test_a_subgraph_replaced_by_a_function_is_refused(run: Runner) -> None:
    """Fails if the manifest does not say that a node is a subgraph."""
    store = MemoryStore()
    run.invoke(outer_of(inner_of("p", "ask"), store), {}, "t")
    replaced = outer_of(note, store)
    with pytest.raises(ResumeRefused, match="'sub' would run next, but it used to be a subgraph"):
        run.resume(replaced, "t")


@pytest.mark.requirement("G8", "R4", api="ResumeRefused")
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (inner_of("p", "r"), "node 'ask' would run next but was removed"),
        (inner_of("p", "ask", state=OtherLog), "state key 'title' was added and is required"),
    ],
)
def test_a_subgraph_that_does_not_fit_its_thread_is_refused_before_anything_runs(
    run: Runner, deep: bool, changed: App[Any], reason: str
) -> None:
    """By the parent's call, with nothing written. Fails if the threads of subgraphs are looked
    at only when their nodes start: then the run fails there."""
    store = MemoryStore()
    run.invoke(outer_of(inner_of("p", "ask"), store, deep=deep), {}, "t")
    history = [entry.id for entry in store.history(KEY)]
    new = outer_of(changed, store, deep=deep)
    with pytest.raises(ResumeRefused) as caught:
        new.resume("t", "yes")
    assert caught.value.thread == "t"
    where = "in subgraph 'sub': in subgraph 'deep': " if deep else "in subgraph 'sub': "
    assert where + reason in str(caught.value)
    assert [entry.id for entry in store.history(KEY)] == history
    assert not new.compatibility("t")


@pytest.mark.requirement("G8", "R4", api="App.resume")
def test_a_changed_subgraph_that_was_not_begun_is_run_as_it_is_now(run: Runner) -> None:
    """Fails if any change of a subgraph is a reason against."""
    store = MemoryStore()
    run.invoke(outer_of(inner_of("p", "q"), store, stop=True), {}, "t")
    assert run.resume(outer_of(inner_of("r"), store), "t")["log"] == ["before", "r", "after"]


@pytest.mark.requirement("G8", "R4", api="App.migrate")
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("encrypted", [False, True])
def test_a_migration_reaches_a_subgraph(run: Runner, deep: bool, encrypted: bool) -> None:
    """Registered with the app, by the fingerprint that the refusal names. It is called once.

    Fails if the threads of subgraphs have no migrations, and if the plan of a child is made
    from a second migration of it.
    """
    store, calls = MemoryStore(), list[tuple[str, ...]]()
    ring = Keyring({"k": bytes(32)}, store=MemoryStore()) if encrypted else None
    inner = inner_of("p", "ask")
    run.invoke(outer_of(inner, store, deep=deep, encryption=ring), {}, "t")
    new = outer_of(inner_of("p", "r", state=OtherLog), store, deep=deep, encryption=ring)
    with pytest.raises(ResumeRefused) as caught:
        run.resume(new, "t")
    assert f"app.migrate('{inner.fingerprint}', ...)" in str(caught.value)

    def over(state: dict[str, Any], next: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
        calls.append(next)
        return {**state, "title": "walls"}, ["r"]

    new.migrate(inner.fingerprint, over)
    assert new.compatibility("t")
    result = run.resume(new, "t")
    assert (result.status, result["log"]) == ("completed", ["before", "p", "r", "after"])
    assert calls == [("ask",)]
    notes = [known.note for known in new.history("t", subgraphs=True) if known.note]
    assert f"migrated from {inner.fingerprint[:8]}" in notes


@pytest.mark.requirement("G8", "H2", "R4", api="App.migrate")
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
def test_a_question_of_a_migrated_subgraph_stays_open(
    run: Runner, deep: bool, at_once: bool
) -> None:
    """If the migration leaves the node next: it is asked again, or answered in the same call.

    Fails if the question is dropped although an answer is given, or is not asked again.
    """
    store = MemoryStore()
    inner = inner_of("p", "ask")
    run.invoke(outer_of(inner, store, deep=deep), {}, "t")
    new = outer_of(inner_of("p", "ask", "r", state=OtherLog), store, deep=deep)
    new.migrate(inner.fingerprint, lambda state, nodes: ({**state, "title": "walls"}, nodes))
    if not at_once:
        waiting = run.resume(new, "t")
        assert [found.question for found in waiting.interrupts] == ["q"]
    assert new.resume("t", "yes")["log"] == ["before", "p", "yes", "r", "after"]


@pytest.mark.requirement("G8", "R4", api="App.resume")
@pytest.mark.parametrize("deep", [False, True])
def test_accepted_changes_reach_a_subgraph(run: Runner, deep: bool) -> None:
    """Fails if the call's word is not handed to the plans of subgraphs."""
    store = MemoryStore()
    inner = inner_of("p", "ask", "q", state=NamedLog)
    run.invoke(outer_of(inner, store, deep=deep), {}, "t")
    new = outer_of(inner_of("p", "ask", "q"), store, deep=deep)
    with pytest.raises(ResumeRefused, match="accept_changes=True"):
        new.resume("t", "yes")
    result = new.resume("t", "yes", accept_changes=True)
    assert result["log"] == ["before", "p", "yes", "q", "after"]
    notes = [known.note for known in new.history("t", subgraphs=True) if known.note]
    assert any(found.startswith("changes accepted: ") for found in notes)
