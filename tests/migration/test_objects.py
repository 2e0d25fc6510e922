"""Payloads that name objects and files, and the objects themselves, are read forever.

The golden folder was written by ``python -m tests.migration.test_objects FOLDER``: a store, its
objects, and what they hold. Until the first release is tagged, a change of version 1 makes it
again; then it never changes.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from milecastle.codec.deltas import LogCodec
from milecastle.codec.encryption import ThreadSealer
from milecastle.codec.envelope import (
    ENCRYPTED,
    FILES,
    FORMAT_VERSION,
    OBJECTS,
    PayloadPlace,
    Sealer,
)
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.errors import CodecError, Corrupted, FormatTooNew, NoObjects
from milecastle.model.file import File
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch
from milecastle.stores.jsonl import JsonlStore
from milecastle.stores.offloading import OffloadingStore, SharedObjects, files, offload, sweep
from milecastle.testing.entries import an_entry
from milecastle.views.values import anything

GOLDEN = Path(__file__).parent / "golden" / "objects-v1"
PLAIN, SEALED = ThreadKey("default", "plain"), ThreadKey("default", "sealed")
LIFE = bytes(range(72))
CHUNK = 100


def opened(folder: Path) -> OffloadingStore:
    objects = SharedObjects(f"file://{folder}/objects", threshold=200)
    return offload(JsonlStore(folder / "store"), objects)


class _Sealers:
    """One fixed key."""

    def sealer(self, key: ThreadKey, *, new: bool) -> Sealer:
        return ThreadSealer(key, LIFE, new=new)


def codec(key: ThreadKey, *, new: bool = False) -> LogCodec:
    values = ValueCodec(TypeRegistry(files=True))
    sealers = _Sealers() if key == SEALED else None
    return LogCodec(values, sealers=sealers).for_thread(key, new=new)


def states(folder: Path, key: ThreadKey, store: OffloadingStore) -> list[dict[str, Any]]:
    """What the entries of a thread hold: texts of several sizes, and a file."""
    path = folder / "report.txt"
    path.write_text("".join(f"line {number} of {key.thread}\n" for number in range(30)))
    file = store.files(key.tenant, sealed=key == SEALED).store(path)
    path.unlink()
    return [
        {"text": "small"},
        {"text": "".join(map(chr, range(0x100, 0x200))), "list": ["a", "b"]},
        {"text": "the same again, " * 400, "other": "x" * 210},
        {"report": file},
        {"reports": [file], "text": "beside a file, " * 20},
    ]


def write(folder: Path) -> None:
    """Write the golden folder."""
    files.CHUNK = CHUNK  # type: ignore[misc]
    folder.mkdir()
    with closing(opened(folder)) as store:
        for key in (PLAIN, SEALED):
            log = codec(key, new=True)
            for seq, state in enumerate(states(folder, key, store), 1):
                entry = an_entry(seq)
                payload = log.seal_entry(log.encode_state(state), entry)
                made = an_entry(seq, payload=payload)
                store.commit(Batch(key=key, head=seq - 1, entries=(made,)))
        strange = bytes([FORMAT_VERSION, OBJECTS]) + b"somebody else's bytes"
        other = ThreadKey("default", "strange")
        store.commit(Batch(key=other, head=0, entries=(an_entry(1, payload=strange),)))
        (folder / "expected.json").write_text(json.dumps(_found(store), indent=1) + "\n")


def _found(store: OffloadingStore) -> dict[str, Any]:
    """What the store holds, as text."""
    return {key.thread: [*_states(store, key)] for key in (PLAIN, SEALED)} | {
        "strange": store.entries(ThreadKey("default", "strange"))[0].payload.hex()
    }


def _states(store: OffloadingStore, key: ThreadKey) -> Iterator[dict[str, Any]]:
    log = codec(key)
    for entry in store.entries(key):
        state = log.decode_state(log.unseal_entry(entry, entry.roll_seq))
        yield {name: _text(store, key, value) for name, value in state.items()}


def _text(store: OffloadingStore, key: ThreadKey, value: Any) -> Any:
    if isinstance(value, list):
        return [_text(store, key, one) for one in anything(value)]
    if isinstance(value, File):
        with store.files(key.tenant, sealed=False).open(value) as content:
            return [value.name, value.size, content.read().decode()]
    return value


@pytest.fixture
def golden(tmp_path: Path) -> Iterator[OffloadingStore]:
    with closing(opened(shutil.copytree(GOLDEN, tmp_path / "golden"))) as store:
        yield store


def test_golden_objects_and_files_are_read(golden: OffloadingStore) -> None:
    """Fails if a form of payload, of an object, of an index or of a chunk is read otherwise."""
    assert _found(golden) == json.loads((GOLDEN / "expected.json").read_text())


def test_golden_payloads_have_each_flag(golden: OffloadingStore) -> None:
    heads = {entry.payload[:2] for key in (PLAIN, SEALED) for entry in golden.inner.entries(key)}
    assert {version for version, _ in heads} == {FORMAT_VERSION}
    for flag in (ENCRYPTED, OBJECTS, FILES):
        assert any(flags & flag for _, flags in heads)


def test_sweep_finds_everything_golden_named(golden: OffloadingStore) -> None:
    """Fails if the sweep no longer understands what version 1 named: it would remove it."""
    report = sweep(golden, "default")
    assert report.named == len({*_units(golden)})
    assert (report.waiting, report.condemned) == (0, 0)


def _units(store: OffloadingStore) -> Iterator[str]:
    for one in store.objects.folder.list(""):
        folder, _, rest = one.path.partition("/")[2].partition("/")
        if folder == "objects":
            yield rest
        elif folder == "files" and (unit := files.unit_of(one.path)):
            yield unit


def test_store_without_objects_says_so(golden: OffloadingStore) -> None:
    log = codec(PLAIN)
    _, second, *_ = golden.inner.entries(PLAIN)
    with pytest.raises(NoObjects):
        log.unseal(second.payload, PayloadPlace(2))


def test_newer_version_is_refused(golden: OffloadingStore) -> None:
    payload = golden.inner.entries(PLAIN)[0].payload
    newer = bytes([FORMAT_VERSION + 1]) + payload[1:]
    with pytest.raises((FormatTooNew, CodecError, Corrupted)):
        codec(PLAIN).unseal(newer, PayloadPlace(1))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
