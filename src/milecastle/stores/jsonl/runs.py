"""Run records and failures as files: ``runs/<run-id>/run.json`` and ``failure.json``.

They say again, for people and for tools, what the thread's log holds: the log is the truth, and
``JsonlStore.write_runs`` makes them anew from it. Each file appears at once. That of a run that
ended is durable; those of a run that goes on are not waited for. An error in writing one does not
undo a commit that is safe already.
"""

from __future__ import annotations

import shutil
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import msgspec

from milecastle.model.failure import Failure
from milecastle.model.keys import ThreadKey
from milecastle.model.run import TRANSITIONS, RunRecord
from milecastle.stores.jsonl import files
from milecastle.stores.jsonl.names import file_name
from milecastle.stores.jsonl.shapes import FORMAT, FailureShape, RunShape

__all__ = ["RunFolder"]

_RUN: Final = "run.json"
_FAILURE: Final = "failure.json"


class _Owner(msgspec.Struct):
    tenant: str
    thread: str


_read_owner: Final = msgspec.json.Decoder(_Owner).decode


class RunFolder:
    """The folder ``runs`` of a workspace."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "runs"

    def write(self, record: RunRecord) -> None:
        """Write the record of a run."""
        ended = not TRANSITIONS[record.status]
        self._put(record.key, record.run_id, _RUN, RunShape.of(record), durable=ended)

    def write_failure(self, key: ThreadKey, failure: Failure) -> None:
        """Write why a run did not end well."""
        self._put(key, failure.run_id, _FAILURE, FailureShape.of(failure), durable=True)

    def remove(self, key: ThreadKey, run_id: str) -> None:
        """Remove what was written of a run of this thread."""
        folder = self.folder_of(key, run_id)
        if files.check_folder(self._folder) and files.check_folder(folder):
            shutil.rmtree(folder)

    def folder_of(self, key: ThreadKey, run_id: str) -> Path:
        """Where a run is written; beside it, if another thread has a run of the same id."""
        folder = self._folder / file_name(run_id)
        try:
            owner = _read_owner((folder / _RUN).read_bytes())
        except (OSError, ValueError):
            return folder
        if (owner.tenant, owner.thread) == (key.tenant, key.thread):
            return folder
        digest = blake2b(f"{key.tenant}\0{key.thread}\0{run_id}".encode(), digest_size=10)
        return folder.with_name(f"{folder.name[:160]}-{digest.hexdigest()}")

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
        facts: dict[str, Any] = {"format": FORMAT, "tenant": key.tenant, "thread": key.thread}
        facts |= {field: getattr(shape, field) for field in shape.__struct_fields__}
        text = msgspec.json.format(msgspec.json.encode(facts), indent=2) + b"\n"
        files.put(folder / name, [text], durable=durable)
        if durable:
            files.sync_folder(self._folder)
