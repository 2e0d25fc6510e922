"""Run records and failures as files: ``runs/<run-id>/run.json`` and ``failure.json``.

They repeat the thread's log for people and tools: the log is the source of truth, and
``JsonlStore.write_runs`` recreates them from it. Each file appears atomically. A run's file
that has ended is durable; an active run's are not synced. An error in writing one does not
undo a durable commit. When a thread is deleted they are removed before its log.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import msgspec

from milecastle.disk import files
from milecastle.disk.names import file_name
from milecastle.model.keys import ThreadKey
from milecastle.model.run import TRANSITIONS, Failure, RunRecord
from milecastle.stores.jsonl.shapes import FORMAT, FailureShape, RunShape
from milecastle.support.prepared import prepared

_RUN: Final = "run.json"
_FAILURE: Final = "failure.json"


@prepared
class _Owner(msgspec.Struct):
    tenant: str
    thread: str


_read_owner: Final = msgspec.json.Decoder(_Owner).decode


class RunFolder:
    def __init__(self, root: Path) -> None:
        self._folder = root / "runs"

    def write(self, record: RunRecord) -> None:
        ended = not TRANSITIONS[record.status]
        self._put(record.key, record.run_id, _RUN, RunShape.of(record), durable=ended)

    def write_failure(self, key: ThreadKey, failure: Failure) -> None:
        self._put(key, failure.run_id, _FAILURE, FailureShape.of(failure), durable=True)

    def remove(self, key: ThreadKey, run_ids: Iterable[str], *, search: bool) -> None:
        """Remove these runs' files durably.

        With ``search`` every folder is checked, and further runs' are removed too. A folder
        with anything else belongs to a file run: a workspace may be in the same folder.
        """
        if not files.check_folder(self._folder):
            return
        found = {place for run_id in run_ids for place in self._written(key, run_id)}
        if search:
            found.update(self._search(key))
        self._remove(found, self._folder / f".{_digest(key.tenant, key.thread)}.gone")

    def _remove(self, found: Collection[Path], gone: Path) -> None:
        """Remove the folders, each atomically.

        ``gone`` contains an interrupted call's rest.
        A process that dies between two files would otherwise leave one without its owner's name.
        """
        unfinished = files.check_folder(gone)
        if unfinished:
            shutil.rmtree(gone)
        if found:
            gone.mkdir(mode=files.PRIVATE_FOLDER)
            for folder in found:
                folder.replace(gone / folder.name)
            shutil.rmtree(gone)
        if found or unfinished:
            files.sync_folder(self._folder)

    def _written(self, key: ThreadKey, run_id: str) -> Iterator[Path]:
        for folder in self._places(key, run_id):
            if files.check_folder(folder) and _may_be(key, folder):
                yield folder

    def _search(self, key: ThreadKey) -> Iterator[Path]:
        for folder in self._folder.iterdir():
            if _owner_of(folder) == (key.tenant, key.thread) and _holds_nothing_else(folder):
                yield folder

    def folder_of(self, key: ThreadKey, run_id: str) -> Path:
        folder, beside = self._places(key, run_id)
        return folder if _may_be(key, folder) else beside

    def _places(self, key: ThreadKey, run_id: str) -> tuple[Path, Path]:
        folder = self._folder / file_name(run_id)
        digest = _digest(key.tenant, key.thread, run_id)
        return folder, folder.with_name(f"{folder.name[:160]}-{digest}")

    def _put(
        self,
        key: ThreadKey,
        run_id: str,
        name: str,
        shape: RunShape | FailureShape,
        *,
        durable: bool,
    ) -> None:
        folder = self.folder_of(key, run_id)
        files.make_folder(self._folder)
        files.make_folder(folder)
        facts: dict[str, Any] = {"format": FORMAT, "kind": "thread"}
        facts |= {"tenant": key.tenant, "thread": key.thread}
        facts |= {field: getattr(shape, field) for field in shape.__struct_fields__}
        text = msgspec.json.format(msgspec.json.encode(facts), indent=2) + b"\n"
        files.put(folder / name, [text], durable=durable)
        if durable:
            files.sync_folder(self._folder)


def _owner_of(folder: Path) -> tuple[str, str] | None:
    for name in (_RUN, _FAILURE):
        try:
            owner = _read_owner((folder / name).read_bytes())
        except (OSError, ValueError):
            continue
        return owner.tenant, owner.thread
    return None


def _may_be(key: ThreadKey, folder: Path) -> bool:
    return _owner_of(folder) in (None, (key.tenant, key.thread))


def _holds_nothing_else(folder: Path) -> bool:
    return not folder.is_symlink() and all(
        path.name in (_RUN, _FAILURE) or path.name.startswith(".") for path in folder.iterdir()
    )


def _digest(*names: str) -> str:
    return blake2b("\0".join(names).encode(), digest_size=10).hexdigest()
