"""What a saver must do beyond LangGraph's conformance suite, on any saver, by its sync methods.

Each clause gets a function that makes another saver on the same place, as another process would
have it. ``scripts/saver_conformance.py`` runs them on LangGraph's own savers too.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.types import INTERRUPT

Make = Callable[[], Any]
HOSTILE = ("') OR 1=1 --", "a.b", 'a"b', "$.x", "%s", "", "\u2028", "source') = 'x' OR ('1")


def place(thread: str = "t", namespace: str = "", checkpoint: str | None = None) -> Any:
    given = {"thread_id": thread, "checkpoint_ns": namespace}
    return {"configurable": given | ({"checkpoint_id": checkpoint} if checkpoint else {})}


def put(saver: Any, config: Any, values: dict[str, Any], step: int = 0, **metadata: Any) -> Any:
    """Put a checkpoint in which every value is new; return its configuration."""
    versions = dict.fromkeys(values, f"{step + 1:032}.{random.random():016}")
    checkpoint = {
        **empty_checkpoint(),
        "id": str(uuid6(clock_seq=step)),
        "channel_values": values,
        "channel_versions": versions,
    }
    said: dict[str, Any] = {"source": "loop", "step": step, "parents": {}, **metadata}
    return saver.put(config, checkpoint, said, versions)


def values_at(saver: Any, config: Any) -> Any:
    return saver.get_tuple(config).checkpoint["channel_values"]


def order_of_writes(make: Make) -> None:
    """By path, task and position. Fails if they come in the order of arrival."""
    saver = make()
    config = put(saver, place(), {"a": 1})
    saver.put_writes(config, [("x", 1), ("y", 2)], "task-a", "~2")
    saver.put_writes(config, [("x", 3)], "task-c", "~1")
    saver.put_writes(config, [("x", 4)], "task-b", "~1")
    assert saver.get_tuple(place()).pending_writes == [
        ("task-b", "x", 4),
        ("task-c", "x", 3),
        ("task-a", "x", 1),
        ("task-a", "y", 2),
    ]


def special_writes_replaced_others_kept(make: Make) -> None:
    """Fails if a write that came twice replaces the first, or an interrupt does not."""
    saver = make()
    config = put(saver, place(), {"a": 1})
    saver.put_writes(config, [("x", 1)], "task")
    saver.put_writes(config, [("x", 2)], "task")
    saver.put_writes(config, [(INTERRUPT, "first")], "task")
    saver.put_writes(config, [(INTERRUPT, "second")], "task")
    saver.put_writes(config, [(INTERRUPT, "third"), ("x", 3)], "task")
    assert saver.get_tuple(place()).pending_writes == [
        ("task", INTERRUPT, "second"),
        ("task", "x", 1),
        ("task", "x", 3),
    ]


def writes_before_their_checkpoint(make: Make) -> None:
    """Fails if early writes are not stored with the checkpoint."""
    saver = make()
    first = put(saver, place(), {"a": 1})
    checkpoint: Any = {**empty_checkpoint(), "id": str(uuid6(clock_seq=1))}
    saver.put_writes(place(checkpoint=checkpoint["id"]), [("x", 1)], "task")
    assert values_at(saver, place()) == {"a": 1}
    saver.put(first, checkpoint, {"source": "loop", "step": 1}, {})
    assert make().get_tuple(place()).pending_writes == [("task", "x", 1)]


def writes_after_the_next_checkpoint(make: Make) -> None:
    """By id, in the list, and below a limit. Fails if late writes are not looked for."""
    saver = make()
    first = put(saver, place(), {"a": 1})
    saver.put_writes(first, [("x", 1)], "task-1")
    second = put(saver, first, {"a": 2}, 1)
    saver.put_writes(first, [("x", 2)], "task-2")
    third = put(saver, second, {"a": 3}, 2)
    saver.put_writes(first, [("x", 3)], "task-3")
    expected = [("task-1", "x", 1), ("task-2", "x", 2), ("task-3", "x", 3)]
    assert saver.get_tuple(first).pending_writes == expected
    assert [one.pending_writes for one in saver.list(place())] == [[], [], expected]
    assert [one.pending_writes for one in saver.list(place(), before=third)] == [[], expected]
    newest = saver.get_tuple(place())
    assert (newest.config, newest.pending_writes) == (third, [])


def two_writers_lose_nothing(make: Make) -> None:
    """Two savers, as two processes have. Fails if one overwrites what it did not read."""
    savers = [make(), make()]
    root = put(savers[0], place(), {"who": "root"})
    gate = threading.Barrier(2)
    stored: list[Any] = []

    def write(saver: Any, name: str) -> None:
        config = root
        gate.wait(60)
        for step in range(1, 16):
            config = put(saver, config, {"who": f"{name}-{step}"}, step, run_id=name)
            saver.put_writes(config, [("who", step)], name)
            stored.append((config, f"{name}-{step}"))

    threads = [
        threading.Thread(target=write, args=(saver, name))
        for saver, name in zip(savers, "ab", strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(stored) == 30
    reader = make()
    for config, value in stored:
        found = reader.get_tuple(config)
        assert found.checkpoint["channel_values"] == {"who": value}
        assert len(found.pending_writes) == 1
    assert len(list(reader.list(place()))) == 31


def late_writers_after_a_deletion(make: Make) -> None:
    """They may be refused. Fails if one brings the thread back."""
    saver = make()
    config = put(saver, place(), {"a": 1})
    make().delete_thread("t")
    for writer in (saver, make()):
        attempt(partial(writer.put_writes, config, [("a", 2)], "task"))
        attempt(partial(put, writer, config, {"a": 2}, 1))
    assert make().get_tuple(place()) is None
    assert list(make().list(None)) == []


def thread_begun_anew(make: Make) -> None:
    """Fails if what is remembered of a thread is compared with the store by its length alone."""
    saver, other = make(), make()
    put(saver, place(), {"a": 1})
    other.delete_thread("t")
    put(other, place(), {"a": 2})
    assert values_at(saver, place()) == {"a": 2}


def attempt(call: Callable[[], object]) -> None:
    """Call what may be refused."""
    try:
        call()
    except Exception:  # whatever this saver raises
        return


def hostile_keys_in_a_filter(make: Make) -> None:
    """Fails if a key of a filter is ever part of a statement."""
    saver = make()
    for key in HOSTILE:
        thread = f"has {key!r}"
        hostile: dict[str, Any] = {key: "wanted"}
        put(saver, place(thread), {"a": 1}, **hostile)
        put(saver, place("other"), {"a": 1})
        found = list(saver.list(None, filter={key: "wanted"}))
        assert [one.config["configurable"]["thread_id"] for one in found] == [thread], key
        assert list(saver.list(None, filter={key: "other"})) == [], key


class Secret:
    """A class that LangGraph does not know."""

    def __init__(self, word: str) -> None:
        self.word = word

    def model_dump(self) -> dict[str, str]:
        return {"word": self.word}


def strict_decoding(make: Make) -> None:
    """Fails with the default of LangGraph, which calls any class that the bytes name."""
    put(make(), place(), {"a": Secret("x")})
    assert values_at(make(), place()) == {"a": {"word": "x"}}


def messages_changed_in_place(make: Make) -> None:
    """Fails if an encoding is found by the message instead of by what the message contains."""
    saver = make()
    human, bot = HumanMessage("a", id="1"), AIMessage("b", id="2")
    said: list[Any] = [human, bot]
    config = put(saver, place(), {"messages": said})
    human.content = "c"
    bot.additional_kwargs["n"] = 1
    config = put(saver, config, {"messages": said}, 1)
    bot.additional_kwargs["n"] = True
    put(saver, config, {"messages": said}, 2)
    first, second = values_at(make(), place())["messages"]
    assert first.content == "c"
    assert second.additional_kwargs["n"] is True
    assert values_at(saver, config)["messages"][1].additional_kwargs["n"] is not True


def lists_that_shrink_or_change(make: Make) -> None:
    saver, config = make(), place()
    seen: list[tuple[Any, Any]] = []
    for step, items in enumerate([[], [1], [1, 2], [2], [2, {"a": [3]}], None, [b"x"], "text", []]):
        config = put(saver, config, {"items": items}, step)
        seen.append((config, items))
    for config, items in seen:
        assert values_at(make(), config) == {"items": items}


def forks(make: Make) -> None:
    """Fails if the second child of a checkpoint continues the first."""
    saver = make()
    root = put(saver, place(), {"items": [1], "x": "root"})
    one = put(saver, root, {"items": [1, 2], "x": "one"}, 1)
    two = put(saver, root, {"items": [1, 3], "x": "two"}, 1)
    three = put(saver, one, {"items": [1, 2, 4], "x": "three"}, 2)
    expected = {"root": [1], "one": [1, 2], "two": [1, 3], "three": [1, 2, 4]}
    for config, name in ((root, "root"), (one, "one"), (two, "two"), (three, "three")):
        assert values_at(saver, config) == {"items": expected[name], "x": name}
    assert [found.parent_config for found in saver.list(place())] == [one, root, root, None]


def history_of_a_long_thread(make: Make) -> None:
    """Over several pages and rollups. Fails if a rollup is applied to the state before it."""
    saver, config = make(), place()
    items: list[int] = []
    for step in range(450):
        items = [*items, step]
        config = put(saver, config, {"items": items, "n": step}, step)
        if step % 3 == 0:
            saver.put_writes(config, [("n", step)], f"task-{step}")
    found = list(saver.list(place()))
    assert [one.metadata["step"] for one in found] == list(reversed(range(450)))
    for one in found:
        step = one.metadata["step"]
        assert one.checkpoint["channel_values"] == {"items": list(range(step + 1)), "n": step}
        assert one.pending_writes == ([(f"task-{step}", "n", step)] if step % 3 == 0 else [])
    middle = found[200].config
    assert [one.config for one in saver.list(place(), before=middle, limit=3)] == [
        one.config for one in found[201:204]
    ]


CLAUSES: Final = (
    order_of_writes,
    special_writes_replaced_others_kept,
    writes_before_their_checkpoint,
    writes_after_the_next_checkpoint,
    two_writers_lose_nothing,
    late_writers_after_a_deletion,
    thread_begun_anew,
    hostile_keys_in_a_filter,
    strict_decoding,
    messages_changed_in_place,
    lists_that_shrink_or_change,
    forks,
    history_of_a_long_thread,
)
