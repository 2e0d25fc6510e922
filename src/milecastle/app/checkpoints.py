"""A store used directly: put, get_latest, get_by_id, list_history, update_state and the rest.

States are plain dicts here; no graph is needed. It writes the same log as apps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from milecastle.app.runs.cancelling import cancel_run
from milecastle.app.threads.graphless_log import GraphlessLog
from milecastle.app.upkeep.archiving import restore_thread
from milecastle.app.upkeep.copying import CopyReport, copy_threads
from milecastle.app.upkeep.removing import ErasureReport, erase_threads
from milecastle.app.upkeep.retention import Retention, RetentionReport, apply_retention
from milecastle.model.keys import ThreadKey, checks_keys
from milecastle.ports.clock import Clock
from milecastle.ports.store import Store
from milecastle.stores.opening import find_store, sweep_objects, with_objects

if TYPE_CHECKING:
    from milecastle.app.encryption.keyring import Keyring
    from milecastle.builds.workspace import Workspace
    from milecastle.stores.offloading import ObjectStorage, SweepReport


@checks_keys
class CheckpointStore(GraphlessLog):
    """Threads' checkpoints, addressed by ``ThreadKey``.

    ``types`` are stored besides plain data: dataclasses, enums, pydantic models, structs.
    With ``encryption`` states are encrypted, and unencrypted ones are refused.
    """

    def __init__(
        self,
        store: Store,
        *,
        types: Iterable[type] = (),
        clock: Clock | None = None,
        encryption: Keyring | None = None,
    ) -> None:
        super().__init__(store, types=types, clock=clock, sealers=encryption)
        self.encryption = encryption

    def cancel(self, key: ThreadKey, *, run_id: str | None = None) -> bool:
        """Close a thread's unfinished run, with a failure record.

        Return whether there was one. With ``run_id``, only that run: ``False`` if another one has
        the thread by now.
        """
        self._refuse_reserved(key.tenant)
        return cancel_run(self.store, self._codec, self._clock, key, run_id)

    def apply_retention(
        self, tenant: str, retention: Retention, *, dry_run: bool = False
    ) -> RetentionReport:
        """Apply a retention to a tenant's threads: delete the rest and return a report.

        With ``dry_run`` nothing changes, and the report lists the deletions.
        """
        self._refuse_reserved(tenant)
        return apply_retention(
            self.store,
            self._codec,
            tenant,
            retention,
            now=self._clock.now(),
            dry_run=dry_run,
            encryption=self.encryption,
            clock=self._clock,
        )

    def restore_thread(self, key: ThreadKey) -> int:
        """Move a thread's archived checkpoints back into the store; return how many.

        They are read like others while they are archived: this only makes that faster.
        """
        self._refuse_reserved(key.tenant)
        return restore_thread(self.store, key)

    def erase(
        self, tenant: str, threads: Iterable[str], *, workspace: Workspace | None = None
    ) -> ErasureReport:
        """Delete threads, whatever their state, and their keys; report which existed.

        Their file runs and cached results are deleted from ``workspace``, by default a file
        store's folder.
        """
        self._refuse_reserved(tenant)
        return erase_threads(
            self.store,
            tenant,
            threads,
            now=self._clock.now(),
            encryption=self.encryption,
            workspace=workspace,
        )

    def sweep_objects(
        self, tenant: str, *, grace: float = 86_400.0, dry_run: bool = False
    ) -> SweepReport:
        """Remove the tenant's objects no checkpoint has named for two grace periods.

        ``grace`` is in seconds, and at least an hour. Unused objects are removed by a later sweep.
        With ``dry_run`` nothing changes, and the report lists the actions.
        """
        self._refuse_reserved(tenant)
        return sweep_objects(self.store, tenant, grace=grace, dry_run=dry_run)

    def copy_to(
        self,
        target: CheckpointStore,
        tenant: str,
        *,
        threads: Iterable[str] | None = None,
        batch: int | None = None,
    ) -> CopyReport:
        """Copy a tenant's threads, or those named, byte for byte; see ``copy_threads``."""
        return copy_threads(self.store, target.store, tenant, threads=threads, batch=batch)


def open_store(
    url: str,
    *,
    types: Iterable[type] = (),
    encryption: Keyring | None = None,
    objects: str | ObjectStorage | None = None,
) -> CheckpointStore:
    """Open a store by name or URL, to use it without a graph.

    ``objects`` is an object storage's URL, for large values.
    """
    store = with_objects(find_store(url), objects)
    return CheckpointStore(store, types=types, encryption=encryption)
