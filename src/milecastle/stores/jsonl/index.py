"""The index for one thread's file: offsets, so no read needs the whole history.

In memory for an open file, 24 bytes for each checkpoint; built by reading the file once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from msgspec import UNSET, UnsetType

from milecastle.model.checkpoint import HOLDING
from milecastle.ports.mailbox import Marks
from milecastle.stores.jsonl.lines import ROOT_CHECK
from milecastle.stores.jsonl.shapes import CheckpointShape, CommitShape, HeaderShape, ThreadShape
from milecastle.stores.memory.messages import Messages

Span = tuple[int, int]
"""Offset and size of a line."""


class Index:
    """``size`` bytes and ``count`` lines were read; ``check`` is the last line's.

    ``messages`` have no payloads; ``sent`` are the lines of the unread ones. See the attributes.
    """

    __slots__ = (
        "_ids", "_offsets", "_sizes", "check", "count", "cuts", "digests", "failures", "first",
        "head", "header", "manifests", "messages", "results", "runs", "sent", "size", "thread",
        "thread_at",
    )  # fmt: skip

    def __init__(self) -> None:
        self.header: HeaderShape | None = None
        self.size = 0
        self.count = 0
        self.check = ROOT_CHECK
        self.first = 1
        self.head = 0
        self._offsets = array("Q")
        self._sizes = array("Q")
        self._ids = array("q")
        self.cuts = array("Q")
        self.results: dict[str, Span] = {}
        self.runs: dict[str, Span] = {}
        self.digests: dict[str, str] = {}
        self.failures: dict[str, Span] = {}
        self.manifests: dict[str, Span] = {}
        self.thread: ThreadShape | None = None
        self.thread_at = 0
        self.messages = Messages()
        self.sent: dict[int, Span] = {}

    @property
    def holds_thread(self) -> bool:
        return bool(self._offsets or self.runs)

    def begin(self, header: HeaderShape, size: int, check: bytes) -> None:
        self.header = header
        self.first = header.first_seq
        self.size, self.count, self.check = size, 1, check

    def absorb(self, commit: CommitShape, size: int, check: bytes) -> None:
        """Record the next commit. Raises ``ValueError`` if it does not follow."""
        checkpoint = commit.checkpoint
        if checkpoint is not UNSET:
            self._add(commit.seq, checkpoint, size)
            for record in commit.also:
                self._add(record.seq, record.checkpoint, size)
        elif commit.head != self.head or commit.also:
            raise ValueError(f"a line without a checkpoint was not written on head {self.head}")
        if commit.results or commit.runs or commit.failures or commit.manifests or commit.thread:
            self._note(commit, (self.size, size))
        if commit.messages or commit.consumes or commit.consumed or commit.last_message:
            self._note_messages(commit, (self.size, size))
        self.size += size
        self.count += 1
        self.check = check

    def _add(self, seq: int | UnsetType, checkpoint: CheckpointShape, size: int) -> None:
        expected = self.head + 1 if self._offsets else self.first
        if seq != expected:
            raise ValueError(f"found another checkpoint where seq {expected} belongs")
        self.head = expected
        self._offsets.append(self.size)
        self._sizes.append(size)
        self._ids.append(hash(checkpoint.id))
        if checkpoint.kind != "delta":
            self.cuts.append(expected)
        if self.results and checkpoint.source not in HOLDING:
            self.results = {}

    def _note(self, commit: CommitShape, span: Span) -> None:
        for result in commit.results:
            self.results[result.task] = span
        for run in commit.runs:
            if run.input_digest and run.run_id not in self.runs:
                self.digests[run.input_digest] = run.run_id
            self.runs[run.run_id] = span
        for failure in commit.failures:
            self.failures[failure.run_id] = span
        for fingerprint in commit.manifests:
            self.manifests.setdefault(fingerprint, span)
        if commit.thread is not None:
            self.thread, self.thread_at = commit.thread, span[0]

    def _note_messages(self, commit: CommitShape, span: Span) -> None:
        for shape in commit.messages:
            self.sent[shape.number] = span
            message = shape.message(with_payload=False)
            if shape.number > self.messages.last:
                self.messages.add(message)
            else:
                self.messages.restore([message], Marks())
        if commit.consumed or commit.last_message:
            marks = Marks(last=commit.last_message, consumed=commit.consumed)
            self.messages.restore((), marks)
        self.messages.consume(commit.consumes, self.head)
        for number in (*commit.consumes, *(one.number for one in commit.consumed)):
            self.sent.pop(number, None)

    def at(self, seq: int) -> Span | None:
        place = seq - self.first
        if 0 <= place < len(self._offsets):
            return self._offsets[place], self._sizes[place]
        return None

    def cuts_between(self, first: int, last: int) -> list[int]:
        found = self.cuts[bisect_left(self.cuts, first) : bisect_right(self.cuts, last)]
        return found.tolist()[::-1]

    def is_head(self, id: str) -> bool:
        return bool(self._ids) and self._ids[-1] == hash(id)

    def candidates(self, id: str) -> Iterator[int]:
        sought, place = hash(id), 0
        while True:
            try:
                place = self._ids.index(sought, place)
            except ValueError:
                return
            yield self.first + place
            place += 1
