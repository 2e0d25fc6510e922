"""Ids: UUIDv7s that come in order."""

from __future__ import annotations

import os
import threading
import uuid

import pytest

from milecastle.model.ids import IdMaker


def test_ids_are_version_seven_and_come_in_order() -> None:
    maker = IdMaker()
    made = [maker.make() for _ in range(10_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    for text in made[::1000]:
        parsed = uuid.UUID(text)
        assert (parsed.version, parsed.variant, str(parsed)) == (7, uuid.RFC_4122, text)


def test_the_time_is_in_the_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milecastle.model.ids.time_ns", lambda: 1_700_000_000_123 * 1_000_000)
    assert uuid.UUID(IdMaker().make()).int >> 80 == 1_700_000_000_123


def test_two_makers_do_not_make_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milecastle.model.ids.time_ns", lambda: 1)
    first, second = IdMaker(), IdMaker()
    assert not {first.make() for _ in range(100)} & {second.make() for _ in range(100)}


def test_threads_share_a_maker() -> None:
    maker = IdMaker()
    made: list[list[str]] = [[] for _ in range(4)]

    def work(mine: list[str]) -> None:
        mine += [maker.make() for _ in range(2_000)]

    threads = [threading.Thread(target=work, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({text for mine in made for text in mine}) == 8_000


def test_a_maker_works_where_processes_cannot_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "register_at_fork", raising=False)
    assert uuid.UUID(IdMaker().make()).version == 7
