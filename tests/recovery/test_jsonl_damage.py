"""Every cut and every flipped bit: a valid prefix or a clear error, and never anything else.

A sample of them is tried; `MILECASTLE_EXHAUSTIVE=1` tries all: every truncation of a log of 64 KB
and every single-bit flip of one of 8 KB.
"""

from __future__ import annotations

import os
import warnings
from contextlib import suppress
from pathlib import Path

import pytest

from milecastle.errors import CodecError, Corrupted
from milecastle.ports.store import Batch
from milecastle.stores.jsonl import JsonlStore
from milecastle.stores.jsonl.repair import repair_file
from milecastle.testing.entries import Writer, a_key, a_run, an_entry
from tests.recovery.jsonl_logs import read_log, write_log

EXHAUSTIVE = bool(os.environ.get("MILECASTLE_EXHAUSTIVE"))
CUT_LOG = 64 * 1024 if EXHAUSTIVE else 8 * 1024
FLIPPED_LOG = 8 * 1024


def line_ends(data: bytes) -> list[int]:
    return [index + 1 for index, byte in enumerate(data) if byte == ord("\n")]


def test_every_truncation_is_a_valid_prefix_or_torn(tmp_path: Path) -> None:
    key, path = write_log(tmp_path, CUT_LOG)
    data, whole = path.read_bytes(), read_log(tmp_path, key)["history"]
    ends = [0, *line_ends(data)]
    listings = {}
    for end in ends:
        path.write_bytes(data[:end])
        listings[end] = JsonlStore(tmp_path).threads(key.tenant)
    sizes = range(len(data) + 1) if EXHAUSTIVE else {*range(0, len(data), 41), *ends}
    for size in sizes:
        path.write_bytes(data[:size])
        if size in ends:
            left = read_log(tmp_path, key)["history"]
            assert left == whole[len(whole) - len(left) :]
            continue
        with pytest.raises(Corrupted, match="torn") as caught:
            read_log(tmp_path, key)
        start = max(end for end in ends if end < size)
        expected = f"{path}, line {ends.index(start) + 1}, byte {start}"
        assert caught.value.place == expected
        with pytest.warns(RuntimeWarning, match="torn") as told:
            listed = JsonlStore(tmp_path).threads(key.tenant)
        assert expected in str(told[0].message)
        assert listed == listings[start]


def test_a_prefix_reads_as_the_log_did_then(tmp_path: Path) -> None:
    key, path = write_log(tmp_path / "whole", 4096)
    data = path.read_bytes()
    history = read_log(tmp_path / "whole", key)["history"][::-1]
    found = history[:0]
    for end in line_ends(data):
        path.write_bytes(data[:end])
        found = read_log(tmp_path / "whole", key)["history"][::-1]
        assert found == history[: len(found)]
    assert found == history


def test_every_flipped_bit_is_damage(tmp_path: Path) -> None:
    key, path = write_log(tmp_path, FLIPPED_LOG)
    data = path.read_bytes()
    listed = JsonlStore(tmp_path).threads(key.tenant)
    bits = 8 * len(data)
    for bit in range(0, bits, 1 if EXHAUSTIVE else 83):
        place = bit // 8
        flipped = bytearray(data)
        flipped[place] ^= 1 << bit % 8
        path.write_bytes(flipped)
        store = JsonlStore(tmp_path)
        with pytest.raises(Corrupted, match="damaged") as caught:
            store.read(key)
        line = data[:place].count(b"\n") + 1
        assert f"{path}, line {line}, byte " in caught.value.place
        with pytest.raises(Corrupted, match="damaged"):
            store.repair_thread(key)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = store.threads(key.tenant)
        assert found == listed or f"{path}, line {line}, byte " in str(told[0].message)
        store.close()
        assert path.read_bytes() == flipped


def says_nothing(previous: bytes, content: bytes) -> bytes:
    return b"0" * 32


def test_with_checks_that_say_nothing_a_flipped_bit_would_be_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("milecastle.stores.jsonl.lines._check", says_nothing)
    key, path = write_log(tmp_path, 2048)
    data, whole = path.read_bytes(), read_log(tmp_path, key)
    believed: list[int] = []
    for place in range(0, len(data), 7):
        flipped = bytearray(data)
        flipped[place] ^= 1
        path.write_bytes(flipped)
        with suppress(Corrupted, CodecError, ValueError):
            if read_log(tmp_path, key) != whole:
                believed.append(place)
    assert believed


def test_a_warning_about_a_file_cannot_be_rewritten_by_its_name(tmp_path: Path) -> None:
    """Seen to fail with the name as it is: a bidirectional override reached the terminal."""
    store = JsonlStore(tmp_path)
    key = Writer(a_key("a\u202eb\u2066"), 1).begin(store).key
    path = store.path_of(key)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.warns(RuntimeWarning) as told:
        store.threads("tenant")
    assert "\\u202e" in str(told[0].message)
    assert str(told[0].message).isprintable()


def test_a_damaged_file_keeps_no_other_thread_from_being_listed(tmp_path: Path) -> None:
    store = JsonlStore(tmp_path)
    keys = [Writer(a_key(name), number).begin(store).key for number, name in enumerate("abcd", 1)]
    ended = a_run(keys[1], 2, status="completed", ended_at=5)
    store.commit(Batch(key=keys[1], head=1, runs=(ended,)))
    for key, sought in ((keys[1], b'"completed"'), (keys[2], b'"tenant"')):
        path = store.path_of(key)
        data = bytearray(path.read_bytes())
        data[data.index(sought) + 3] ^= 1
        path.write_bytes(data)
    with pytest.warns(RuntimeWarning) as told:
        listed = store.threads("tenant")
    assert [(info.key.thread, info.status) for info in listed] == [
        ("a", "running"),
        ("b", "running"),
        ("d", "running"),
    ]
    messages = sorted(str(each.message) for each in told)
    assert len(messages) == 2
    assert "omitted" in messages[0]
    assert f"{store.path_of(keys[2])}, line 1, byte 0" in messages[0]
    assert f"{store.path_of(keys[1])}, line 3, byte" in messages[1]
    again = JsonlStore(tmp_path)
    for call in (again.read, again.delete):
        with pytest.raises(Corrupted, match="damaged"):
            call(keys[1])


def test_a_torn_thread_says_what_to_do(tmp_path: Path) -> None:
    key, path = write_log(tmp_path, 2048)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(Corrupted, match=r"never acknowledged; `milecastle repair` or"):
        JsonlStore(tmp_path).read(key)


def test_damage_under_an_open_store_is_seen(tmp_path: Path) -> None:
    store = JsonlStore(tmp_path)
    writer = Writer().begin(store, 4)
    path = store.path_of(writer.key)
    data = bytearray(path.read_bytes())
    data[data.index(b'"seq":2') + 40] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    with pytest.raises(Corrupted, match=r"line 3, byte"):
        store.read(writer.key, 2)


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (0, 1, 3), (1, 2, 3), (0, 1, 1, 2, 3)])
def test_lines_that_were_moved_dropped_or_doubled_are_damage(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    store = JsonlStore(tmp_path)
    writer = Writer().begin(store, 3)
    path = store.path_of(writer.key)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[index] for index in order))
    with pytest.raises(Corrupted, match="damaged"):
        JsonlStore(tmp_path).read(writer.key)


@pytest.mark.parametrize("tail", [b"\0" * 4096, b'{"length":90,"seq"' + b"\0" * 82 + b"\0" * 45])
def test_bytes_that_were_never_written_are_a_torn_line(tmp_path: Path, tail: bytes) -> None:
    store = JsonlStore(tmp_path)
    writer = Writer().begin(store, 3)
    path = store.path_of(writer.key)
    with path.open("ab") as file:
        file.write(tail)
    with pytest.raises(Corrupted, match="torn"):
        store.read(writer.key)
    assert store.repair_thread(writer.key) is not None
    assert len(list(store.history(writer.key))) == 3


@pytest.mark.parametrize("tail", [b"\n", b"garbage", b"{}\n", b'{"length":2,', b"\0\n\0"])
def test_other_rubbish_at_the_end_is_recognized(tmp_path: Path, tail: bytes) -> None:
    store = JsonlStore(tmp_path)
    writer = Writer().begin(store, 3)
    path = store.path_of(writer.key)
    with path.open("ab") as file:
        file.write(tail)
    kind = "torn" if tail == b'{"length":2,' else "damaged"
    with pytest.raises(Corrupted, match=kind):
        store.read(writer.key)
    with pytest.raises(Corrupted, match=kind):
        Writer(writer.key, 2).append(store)


def test_repair_keeps_a_copy_and_cuts_the_torn_line(tmp_path: Path) -> None:
    key, path = write_log(tmp_path, 4096)
    data = path.read_bytes()
    last = line_ends(data)[-2]
    for size in range(last + 1, len(data) - 1, 17):
        path.write_bytes(data[:size])
        store = JsonlStore(tmp_path)
        with pytest.raises(Corrupted, match="torn"):
            store.commit(Writer(key).batch(an_entry(1)))
        copy = store.repair_thread(key)
        assert copy is not None
        assert copy.read_bytes() == data[:size]
        assert path.read_bytes() == data[:last]
        assert store.repair_thread(key) is None
        assert store.read(key) is not None
        copy.unlink()
        store.close()


def test_repair_drops_no_line_that_lacks_only_its_newline(tmp_path: Path) -> None:
    key, path = write_log(tmp_path, 2048)
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    copy = repair_file(path)
    assert copy is not None
    assert copy.read_bytes() == data[:-1]
    assert path.read_bytes() == data
    assert read_log(tmp_path, key)["history"]


def test_thread_continues_after_a_repair(tmp_path: Path) -> None:
    store = JsonlStore(tmp_path)
    writer = Writer().begin(store, 3)
    path = store.path_of(writer.key)
    with path.open("ab") as file:
        file.write(b'{"length":12')
    with pytest.raises(Corrupted, match="torn"):
        writer.append(store)
    store.repair_thread(writer.key)
    writer.append(store)
    assert [entry.seq for entry in store.history(writer.key)] == [4, 3, 2, 1]
    assert store.verify_thread(a_key()) == 5
