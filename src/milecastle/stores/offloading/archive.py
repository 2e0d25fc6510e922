"""The archive of a store: entries below a cut, in segments beside the large values.

The payload of a thread's oldest entry names its segments: whoever reads below that entry finds them
there, and the transaction that removes the archived rows writes it.

Rules:

- A segment is written, and read back, before the rows leave the store. They leave it only if the
  head and the oldest entry, with what it names, are those that were read. So an entry is in the
  store, in a segment, or in both; a segment that no entry names is removed by the sweep.
- A segment is never changed. A small newest one is written again together with new entries, so a
  thread has few, however often it is archived; so is one that pruning cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Final

import msgspec
import msgspec.msgpack
import msgspec.structs

from milecastle.codec.envelope import frame_archive, names_archive, unframe_archive
from milecastle.errors import CodecError, Corrupted
from milecastle.model.checkpoint import Entry
from milecastle.model.keys import ThreadKey
from milecastle.ports.fencing import pruned_meanwhile
from milecastle.ports.store import Chain, Store
from milecastle.stores.offloading.objects import object_path
from milecastle.stores.offloading.segments import SegmentSpan, StoredSegment, write_segment
from milecastle.stores.offloading.writing import PayloadWriter

_PAGE: Final = 256
_MOST: Final = 8192
_MOST_BYTES: Final = 32 << 20
_MERGED_BYTES: Final = 1 << 20
_SMALL: Final = 1024
"""Above this many bytes, values of the state of a thread that is over leave the store."""


Spans = tuple[SegmentSpan, ...]

_decode: Final = msgspec.msgpack.Decoder(tuple[SegmentSpan, ...]).decode


def spans_in(payload: bytes) -> tuple[Spans, bytes]:
    """The segments that a payload names, oldest first, and the payload inside."""
    if not names_archive(payload):
        return (), payload
    encoded, inside = unframe_archive(payload)
    try:
        return _decode(encoded), inside
    except msgspec.DecodeError:
        raise CodecError("the stored bytes do not name segments") from None


class ObjectArchive:
    """The archive of one store with object storage."""

    def __init__(self, inner: Store, writer: PayloadWriter) -> None:
        self._inner = inner
        self._writer = writer
        self._objects = writer.objects

    def oldest(self, key: ThreadKey) -> Entry | None:
        return self.first_from(key, 0)

    def put(
        self,
        key: ThreadKey,
        *,
        head: int,
        cut: int,
        rewritten: Callable[[int], Sequence[Entry]],
        is_over: bool = False,
    ) -> int:
        first = self.oldest(key)
        if first is None or first.seq >= cut:
            return 0
        with self._unless_changed(key, head, first):
            return self._put(key, first, head, cut, rewritten, is_over)

    def _put(
        self,
        key: ThreadKey,
        first: Entry,
        head: int,
        cut: int,
        rewritten: Callable[[int], Sequence[Entry]],
        is_over: bool,
    ) -> int:
        began, asked = monotonic(), cut
        moved = self._rows(key, first.seq, cut)
        if not moved:
            raise pruned_meanwhile(key, head)
        spans = [*self._spans(key, moved[0])]
        moved[0] = _bare(moved[0])
        cut, count = moved[-1].seq + 1, len(moved)
        while spans and _is_small(spans[-1], len(moved)):
            moved = [*self._segment(key, spans.pop()).entries(), *moved]
        spans.append(self._write(key, moved))
        rows = [*self._writer.rows(key, rewritten(cut))]
        if not any(row.seq == cut for row in rows):
            rows += self._inner.entries(key, after=cut - 1, limit=1)
        rows = [_naming(row, spans) if row.seq == cut else row for row in rows]
        if is_over and cut == asked:
            rows = [self._without_large(key, row) for row in rows]
        self._writer.check_patience(began)
        self._inner.prune(key, head=head, cut=cut, rewritten=rows, oldest=first, archived=True)
        return count

    def restore(self, key: ThreadKey, *, head: int) -> int:
        restored = 0
        while (first := self.oldest(key)) and (spans := self._spans(key, first)):
            with self._unless_changed(key, head, first):
                entries = [*self._segment(key, spans[-1]).entries(), _bare(first)]
            entries[0] = _naming(entries[0], spans[:-1])
            self._inner.put_back(key, head=head, oldest=first, entries=entries)
            restored += len(entries) - 1
        return restored

    def prune(
        self, key: ThreadKey, first: Entry, *, head: int, cut: int, rewritten: Sequence[Entry]
    ) -> int:
        """Forget archived entries below a cut; return how many. ``first`` is the oldest row.

        A cut above the oldest row drops that, and with it the names of all segments.
        """
        spans = self._spans(key, first)
        if not spans or cut <= spans[0].first:
            return 0
        if cut > first.seq:
            return first.seq - spans[0].first
        with self._unless_changed(key, head, first):
            self._cut(key, first, head, cut, rewritten)
        return cut - spans[0].first

    def _cut(
        self, key: ThreadKey, first: Entry, head: int, cut: int, rewritten: Sequence[Entry]
    ) -> None:
        began, spans = monotonic(), self._spans(key, first)
        kept = [span for span in spans if span.last >= cut]
        if kept and kept[0].first < cut:
            changed = {row.seq: row for row in self._writer.rows(key, rewritten)}
            entries = self._segment(key, kept[0]).entries(cut)
            kept[0] = self._write(key, [changed.get(entry.seq, entry) for entry in entries])
        row = _naming(_bare(first), kept)
        self._writer.check_patience(began)
        self._inner.prune(
            key, head=head, cut=first.seq, rewritten=[row], oldest=first, archived=True
        )

    def chain(self, key: ThreadKey, row: Entry, seq: int) -> Chain | None:
        """The chain of a checkpoint archived below a row, as the store had it."""
        for span in self._spans(key, row):
            if span.first <= seq <= span.last:
                return self._segment(key, span).chain(seq)
        return None

    def newest_first(self, key: ThreadKey, row: Entry, below: int) -> Iterator[Entry]:
        """Entries archived below a row, without payloads: those below a seq."""
        for span in reversed(self._spans(key, row)):
            if span.first < below:
                yield from self._segment(key, span).newest_first(below)

    def entries(self, key: ThreadKey, row: Entry, after: int) -> Iterator[Entry]:
        """Entries archived below a row, oldest first, as the store had them."""
        for span in self._spans(key, row):
            if after < span.last:
                yield from self._segment(key, span).entries(after + 1, row.seq - 1)

    def names(self, key: ThreadKey, payload: bytes) -> Iterator[str]:
        """Segments a payload names, and the objects and files their entries name."""
        for span in spans_in(payload)[0]:
            yield span.name
            yield from self._segment(key, span).named

    def _write(self, key: ThreadKey, entries: Sequence[Entry]) -> SegmentSpan:
        """Store a segment, and read it back."""
        self._writer.begin(key)
        span, written = write_segment(self._objects, key, entries)
        if self._objects.folder.read(object_path(key.tenant, span.name)) != written:
            raise Corrupted(
                "a segment was read back with other bytes than were written: nothing was archived",
                place=f"thread '{key.thread}', object {span.name}",
            )
        return span

    def _without_large(self, key: ThreadKey, row: Entry) -> Entry:
        spans, payload = spans_in(row.payload)
        small = self._writer.payload_alone(key, payload, _SMALL)
        return _naming(msgspec.structs.replace(row, payload=small), spans)

    def _segment(self, key: ThreadKey, span: SegmentSpan) -> StoredSegment:
        return StoredSegment(self._objects, key, span)

    @contextmanager
    def _unless_changed(self, key: ThreadKey, head: int, first: Entry) -> Generator[None]:
        """Report damage as a conflict if the oldest row is another: its segments may be gone."""
        try:
            yield
        except Corrupted:
            if self.oldest(key) != first:
                raise pruned_meanwhile(key, head) from None
            raise

    def _spans(self, key: ThreadKey, entry: Entry) -> Spans:
        try:
            return spans_in(entry.payload)[0]
        except CodecError as error:
            place = f"thread '{key.thread}', seq {entry.seq}"
            raise Corrupted(error.message, place=place) from None

    def first_from(self, key: ThreadKey, seq: int) -> Entry | None:
        """The oldest row that is not below ``seq``: it may name what is."""
        return next(iter(self._inner.entries(key, after=max(0, seq - 1), limit=1)), None)

    def _rows(self, key: ThreadKey, first: int, cut: int) -> list[Entry]:
        """Rows for one segment: they end below the cut, or where it would be too large.

        Those below a gap are what an interrupted pruning has not dropped yet.
        """
        rows: list[Entry] = []
        size, after = 0, first - 1
        while after < cut - 1:
            page = self._inner.entries(key, after=after, limit=min(_PAGE, cut - 1 - after))
            for entry in page:
                if entry.seq >= cut:
                    return rows
                if rows and entry.seq != after + 1:
                    rows, size = [], 0
                size, after = size + len(entry.payload), entry.seq
                if rows and (len(rows) == _MOST or size > _MOST_BYTES):
                    return rows
                rows.append(entry)
            if not page:
                break
        return rows


def _bare(entry: Entry) -> Entry:
    return msgspec.structs.replace(entry, payload=spans_in(entry.payload)[1])


def _naming(entry: Entry, spans: Sequence[SegmentSpan]) -> Entry:
    if not spans:
        return entry
    payload = frame_archive(msgspec.msgpack.encode(spans), entry.payload)
    return msgspec.structs.replace(entry, payload=payload)


def _is_small(span: SegmentSpan, count: int) -> bool:
    return span.last - span.first < count and span.size <= _MERGED_BYTES
