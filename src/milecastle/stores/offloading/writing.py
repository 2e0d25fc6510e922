"""Writing payloads with references in place of their large values."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import TypeVar

import msgspec.structs

from milecastle.codec.envelope import frame_files, names_objects
from milecastle.errors import Unavailable
from milecastle.model.checkpoint import Entry, TaskResult
from milecastle.model.keys import ThreadKey
from milecastle.stores.offloading.files import ensure
from milecastle.stores.offloading.objects import SharedObjects
from milecastle.stores.offloading.payloads import SEALED, put_together, take_apart, without_files
from milecastle.stores.offloading.prefix_owner import Ownership

PayloadRow = TypeVar("PayloadRow", Entry, TaskResult)


class PayloadWriter:
    """Stores large values of payloads before the payloads are committed."""

    def __init__(self, objects: SharedObjects, ownership: Ownership) -> None:
        self.objects = objects
        self.ownership = ownership

    def begin(self, key: ThreadKey) -> None:
        """To be called before the first object of a commit is looked for or written."""
        self.ownership.check(key.tenant)
        self.objects.pin(key)

    def check_patience(self, began: float) -> None:
        """Refuse to name objects that were seen so long ago the sweep may have judged them.

        ``began`` is when the first of them was looked for, in monotonic time.
        """
        if monotonic() - began > self.objects.patience:
            raise Unavailable(
                "storing large values took longer than "
                f"{self.objects.patience:g} seconds: nothing was written, try again"
            )

    def rows(self, key: ThreadKey, rows: Sequence[PayloadRow]) -> Sequence[PayloadRow]:
        payloads = [self.payload(key, row.payload) for row in rows]
        if all(new is row.payload for new, row in zip(payloads, rows, strict=True)):
            return rows
        return [
            msgspec.structs.replace(row, payload=new)
            for new, row in zip(payloads, rows, strict=True)
        ]

    def payload(self, key: ThreadKey, payload: bytes) -> bytes:
        named, inside = without_files(payload)
        if named:
            self.begin(key)
        for digest in named:
            ensure(self.objects, key.tenant, digest, f"thread '{key.thread}', a new checkpoint")
        parts = take_apart(inside, self.objects.threshold)
        if parts is None:
            return payload
        self.begin(key)
        put = self.objects.put_unshared if parts.form == SEALED else self.objects.put
        small = put_together(parts, lambda value: put(key.tenant, value))
        return frame_files(named, small) if named else small

    def payload_alone(self, key: ThreadKey, payload: bytes, threshold: int) -> bytes:
        """A stored payload with references for values above a threshold; nobody shares them."""
        named, inside = without_files(payload)
        parts = None if names_objects(inside) else take_apart(inside, threshold)
        if parts is None:
            return payload
        self.begin(key)
        small = put_together(parts, lambda value: self.objects.put_unshared(key.tenant, value))
        return frame_files(named, small) if named else small
