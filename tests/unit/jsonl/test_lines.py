"""Self-checking lines in files that are longer than what is read at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from milecastle.stores.jsonl.lines import ROOT_CHECK, BrokenLine, frame, last_line, line_at, lines

CHUNK = 1 << 18
"""Bytes that are read at once."""


class Log:
    """A file of lines with bodies of these sizes."""

    def __init__(self, path: Path, sizes: list[int]) -> None:
        self.bodies = [
            b'{"t":"%b"}' % (b"%x" % (number % 16) * size) for number, size in enumerate(sizes)
        ]
        self.offsets: list[int] = []
        data, check = b"", ROOT_CHECK
        for body in self.bodies:
            self.offsets.append(len(data))
            line, check = frame(body, check)
            data += line
        path.write_bytes(data)
        self.size = len(data)
        self.fd = os.open(path, os.O_RDWR)

    def read(self) -> Iterator[bytes]:
        return (line.body for line in lines(self.fd, 0, os.fstat(self.fd).st_size, ROOT_CHECK))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """Short lines across the end of the first chunk, a line longer than one, and a last one."""
    found = Log(tmp_path / "log", [1000] * 300 + [CHUNK + 5, 10, 9 * CHUNK])
    yield found
    os.close(found.fd)


def test_lines_across_chunks_are_read(log: Log) -> None:
    """Fails if a line that is not whole in what was read is not read again."""
    assert list(log.read()) == log.bodies


def test_any_line_is_read_by_its_offset(log: Log) -> None:
    """Fails if the length or the check before a line is taken from the wrong place."""
    for at in (0, 1, 299, 300, 302):
        assert line_at(log.fd, log.offsets[at]).body == log.bodies[at]


def test_last_line_is_found_however_long_it_is(log: Log) -> None:
    """Fails if the search for its start ends with the first chunk, or at another newline."""
    assert last_line(log.fd, log.size).body == log.bodies[-1]
    assert last_line(log.fd, log.offsets[-1]).body == log.bodies[-2]
    assert last_line(log.fd, log.offsets[1]).body == log.bodies[0]


@pytest.mark.parametrize("cut", [1, CHUNK, 9 * CHUNK])
def test_last_line_that_was_cut_is_torn(log: Log, cut: int) -> None:
    """Fails if a line that was never finished is damage, which no repair removes."""
    os.ftruncate(log.fd, log.size - cut)
    with pytest.raises(BrokenLine) as caught:
        last_line(log.fd, log.size - cut)
    assert (caught.value.offset, caught.value.torn) == (log.offsets[-1], True)


@pytest.mark.parametrize("newline", [1, CHUNK + 7])
def test_line_that_other_lines_follow_is_damaged_and_not_torn(log: Log, newline: int) -> None:
    """Fails if the bytes after a newline are not looked at: a repair would remove whole lines."""
    os.ftruncate(log.fd, log.size - 10)
    os.pwrite(log.fd, b"\n", log.offsets[-1] + 20 + newline)
    with pytest.raises(BrokenLine) as caught:
        list(log.read())
    assert (caught.value.offset, caught.value.torn) == (log.offsets[-1], False)
