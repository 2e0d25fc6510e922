"""Object ownership: only the store owning a tenant's objects writes and sweeps them.

A second store's sweep would find nobody naming the first one's objects. So a tenant's
folder has an object, ``store``, with the *identity* of its store, put by the first that writes
there. The identity is random, one for each tenant, and is in the store itself, where manifests are:
every store has those, creates one only if there is none, and none is ever changed.
"""

from __future__ import annotations

import os
from typing import Final

from milecastle.errors import StoreError
from milecastle.model.keys import ThreadKey
from milecastle.ports.store import Batch, Store
from milecastle.stores.offloading.folder import ObjectFolder
from milecastle.stores.offloading.objects import root_of

_THREAD: Final = "object storage"
_FINGERPRINT: Final = "object storage"


class Ownership:
    def __init__(self, store: Store, folder: ObjectFolder) -> None:
        self._store = store
        self._folder = folder
        self._ours: set[str] = set()

    def check(self, tenant: str, *, take: bool = True) -> None:
        """Raise ``StoreError`` if they belong to another store; with ``take`` they become ours."""
        if tenant in self._ours:
            return
        path = f"{root_of(tenant)}store"
        found = self._folder.read(path)
        if found is None and not take:
            return
        identity = self._identity(tenant)
        if found is None:
            self._folder.create(path, identity)
            found = self._folder.read(path)
        if found != identity:
            raise StoreError(
                f"the objects of tenant '{tenant}' below this prefix belong to another store: give "
                "each store its own prefix; if that store is gone, or this one was restored from a "
                f"backup that is older than its first object, remove the object '{path}'"
            )
        self._ours.add(tenant)

    def _identity(self, tenant: str) -> bytes:
        key = ThreadKey(tenant, _THREAD)
        found = self._store.manifest(key, _FINGERPRINT)
        if found is None:
            head = self._store.head(key)
            made = b'{"identity": "%s"}' % os.urandom(16).hex().encode()
            batch = Batch(key=key, head=head.seq if head else 0, manifest=(_FINGERPRINT, made))
            self._store.commit(batch)
            found = self._store.manifest(key, _FINGERPRINT)
        if found is None:
            raise StoreError("the store did not keep the identity that its objects need")
        return found
