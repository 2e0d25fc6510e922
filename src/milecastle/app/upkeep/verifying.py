"""Read a complete thread, to find differences from the written data.

Rules:

- All damage is reported, each with its place; nothing is changed.
- For encrypted data, and types that only the graph's code knows, only the bytes are checked:
  checksum, framing, order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec
import msgspec.msgpack

from milecastle.app.threads.tagging import tags_at
from milecastle.codec.envelope import (
    COMPRESSED,
    ENCRYPTED,
    decompress,
    names_files,
    unframe,
    unframe_files,
)
from milecastle.errors import CodecError, Corrupted, MilecastleError, StoreError, Unavailable
from milecastle.model.checkpoint import Entry
from milecastle.model.keys import ThreadKey
from milecastle.model.manifest import Manifest
from milecastle.ports.files import FileStorage
from milecastle.ports.mailbox import each_unread, name_of
from milecastle.ports.maintenance import Finding, finding_of
from milecastle.ports.reading import StoreReader

_PAGE = 256


class ThreadReport(msgspec.Struct, frozen=True):
    checkpoints: int
    runs: int
    findings: tuple[Finding, ...]


def verify_thread(
    store: StoreReader, key: ThreadKey, files: FileStorage | None = None
) -> ThreadReport:
    reading = _Reading(store, key, files)
    for part in (
        reading.read_log,
        reading.read_head,
        reading.read_mailbox,
        reading.read_runs,
        reading.read_manifests,
        reading.read_tags,
    ):
        try:
            part()
        except Unavailable:
            raise
        except (StoreError, CodecError) as error:
            reading.note(error)
    return ThreadReport(reading.checkpoints, reading.runs, tuple(reading.findings))


class _Reading:
    def __init__(self, store: StoreReader, key: ThreadKey, files: FileStorage | None) -> None:
        self._store = store
        self._storage = files
        self._key = key
        self._run_ids: dict[str, int] = {}
        self._fingerprints: dict[str, int] = {}
        self._files: set[str] = set()
        self._last = 0
        self.checkpoints = 0
        self.runs = 0
        self.findings: list[Finding] = []

    def read_tags(self) -> None:
        tags_at(self._store, self._key)

    def note(self, error: MilecastleError) -> None:
        found = finding_of(error, f"thread '{self._key.thread}'")
        if found not in self.findings:
            self.findings.append(found)

    def read_log(self) -> None:
        for entry in self._entries():
            if self._last and entry.seq != self._last + 1:
                self._wrong(entry, f"the entry before it has seq {self._last}")
            self._last = entry.seq
            self.checkpoints += 1
            self._run_ids.setdefault(entry.run_id, entry.seq)
            self._fingerprints.setdefault(entry.fingerprint, entry.seq)
            try:
                _check_payload(entry.payload)
            except MilecastleError as error:
                self._wrong(entry, error.message, error.code)
            self._read_files(entry.payload, self._place(entry.seq))

    def _entries(self) -> Iterator[Entry]:
        last = 0
        while True:
            try:
                page: Sequence[Entry] = self._store.entries(self._key, after=last, limit=_PAGE)
            except Corrupted:
                yield from self._each_above(last)
                return
            if not page:
                return
            yield from page
            last = page[-1].seq

    def _each_above(self, last: int) -> Iterator[Entry]:
        seqs = [entry.seq for entry in self._store.history(self._key) if entry.seq > last]
        for seq in reversed(seqs):
            try:
                yield from self._store.entries(self._key, after=seq - 1, limit=1)
            except Corrupted as error:
                self.note(error)
                self._last = seq

    def read_head(self) -> None:
        chain = self._store.read(self._key)
        newest = next(iter(self._store.history(self._key, limit=1)), None)
        head = chain.entries[-1].seq if chain else 0
        if (newest.seq if newest else 0) != head:
            self.findings.append(
                Finding(self._place(head), "the history and the head do not match")
            )
        for result in chain.results if chain else ():
            self._check(result.payload, f"{self._place(result.seq)}, task '{result.task}'")

    def read_mailbox(self) -> None:
        mailbox = self._store.mailbox
        for message in each_unread(mailbox, self._key):
            self._check(message.payload, f"thread '{self._key.thread}', {name_of(message)}")
        if mailbox is not None:
            mailbox.marks(self._key)

    def _check(self, payload: bytes, place: str) -> None:
        try:
            _check_payload(payload)
        except MilecastleError as error:
            self.findings.append(Finding(place, error.message, error.code))
        self._read_files(payload, place)

    def _read_files(self, payload: bytes, place: str) -> None:
        with suppress(CodecError):  # noted with the payload
            named = unframe_files(payload)[0] if names_files(payload) else []
            for digest in set(named) - self._files:
                self._files.add(digest)
                self._read_file(digest, place)

    def _read_file(self, digest: str, place: str) -> None:
        storage = self._storage
        if storage is None:
            self.findings.append(Finding(place, "it names a file, which needs objects="))
            return
        try:
            storage.verify_file(self._key.tenant, digest, place)
        except Corrupted as error:
            self.note(error)

    def read_runs(self) -> None:
        known = {run.run_id for run in self._store.runs(self._key)}
        self.runs = len(known)
        for run_id in known:
            self._store.failure(self._key, run_id)
        for run_id, seq in self._run_ids.items():
            if run_id not in known:
                problem = f"run {run_id}, which wrote it, has no record"
                self.findings.append(Finding(self._place(seq), problem))

    def read_manifests(self) -> None:
        for fingerprint, seq in self._fingerprints.items():
            stored = self._store.manifest(self._key, fingerprint) if fingerprint else None
            if stored is not None and Manifest.from_bytes(stored).fingerprint != fingerprint:
                problem = f"the graph that it names ({fingerprint}) does not match the recorded one"
                self.findings.append(Finding(self._place(seq), problem))

    def _wrong(self, entry: Entry, problem: str, code: str = Corrupted.code) -> None:
        self.findings.append(Finding(self._place(entry.seq), problem, code))

    def _place(self, seq: int) -> str:
        return f"thread '{self._key.thread}', seq {seq}"


def _check_payload(payload: bytes) -> None:
    flags, body = unframe(payload)
    if flags & ENCRYPTED:
        return
    plain = decompress(body) if flags & COMPRESSED else body
    try:
        parts = msgspec.msgpack.decode(plain, type=list[msgspec.Raw])
    except msgspec.DecodeError:
        raise CodecError("the stored bytes are not a list of operations") from None
    if len(parts) % 3:
        raise CodecError("the stored bytes hold something that is not an operation")
