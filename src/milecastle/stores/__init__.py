"""Stores: one folder for each. Authors of a store import from here and from ``testing``.

``Store`` is the port, ``Batch`` is written, ``Chain`` is read; ``Maintenance`` is for
stores the command line can verify, repair and migrate, and ``ClaimStore`` for those whose
threads workers share. ``Capabilities`` are what else a store may have. ``StoreContract``,
``ClaimContract``, ``MailboxContract``, ``MemoryContract`` and ``BucketContract`` of
``milecastle.testing`` check a store. Our own stores are imported on first use.
"""

from typing import TYPE_CHECKING, Any

from milecastle.model.checkpoint import DELTA, HOLDING, ROLLUP, SNAPSHOT, Entry, TaskResult
from milecastle.model.keys import ThreadKey, checks_keys
from milecastle.model.memory import MemoryWrite, StoredItem
from milecastle.model.run import Failure, Owner, RunRecord, ThreadInfo
from milecastle.model.tags import TagChange
from milecastle.ports.archive import Archive
from milecastle.ports.buckets import Bucket, BucketLevel, Buckets, BucketTake, Turn, WaitingTurn
from milecastle.ports.cells import Cells
from milecastle.ports.claims import ClaimStore, dated
from milecastle.ports.feed import Feed
from milecastle.ports.limits import Limit
from milecastle.ports.mailbox import (
    INPUTS,
    Consumed,
    Debounce,
    Mailbox,
    MailboxReader,
    Marks,
    NewRun,
    Sent,
    StoredMessage,
)
from milecastle.ports.maintenance import (
    Check,
    Finding,
    Inspected,
    Maintenance,
    Pending,
    Repaired,
    Unopened,
    finding_of,
    inspect_listed,
)
from milecastle.ports.memory import MemoryItems
from milecastle.ports.notifying import Listening
from milecastle.ports.pages import Page, page_of, place_after, place_text
from milecastle.ports.reading import FleetReader, Replica, StoreReader
from milecastle.ports.store import Batch, Capabilities, Chain, Opened, Store
from milecastle.ports.tags import Tags
from milecastle.ports.workers import LaneDepth, WorkerInfo

if TYPE_CHECKING:
    from milecastle.stores.jsonl import JsonlStore
    from milecastle.stores.memory import MemoryStore
    from milecastle.stores.offloading import ObjectStorage, SweepReport
    from milecastle.stores.postgres import PostgresStore
    from milecastle.stores.sharded import ShardedStore
    from milecastle.stores.sqlite import SqliteStore
from milecastle.support.migration_hints import refuse_import

__all__ = [
    "DELTA",
    "HOLDING",
    "INPUTS",
    "ROLLUP",
    "SNAPSHOT",
    "Archive",
    "Batch",
    "Bucket",
    "BucketLevel",
    "BucketTake",
    "Buckets",
    "Capabilities",
    "Cells",
    "Chain",
    "Check",
    "ClaimStore",
    "Consumed",
    "Debounce",
    "Entry",
    "Failure",
    "Feed",
    "Finding",
    "FleetReader",
    "Inspected",
    "JsonlStore",
    "LaneDepth",
    "Limit",
    "Listening",
    "Mailbox",
    "MailboxReader",
    "Maintenance",
    "Marks",
    "MemoryItems",
    "MemoryStore",
    "MemoryWrite",
    "NewRun",
    "ObjectStorage",
    "Opened",
    "Owner",
    "Page",
    "Pending",
    "PostgresStore",
    "Repaired",
    "Replica",
    "RunRecord",
    "Sent",
    "ShardedStore",
    "SqliteStore",
    "Store",
    "StoreReader",
    "StoredItem",
    "StoredMessage",
    "SweepReport",
    "TagChange",
    "Tags",
    "TaskResult",
    "ThreadInfo",
    "ThreadKey",
    "Turn",
    "Unopened",
    "WaitingTurn",
    "WorkerInfo",
    "checks_keys",
    "dated",
    "finding_of",
    "inspect_listed",
    "page_of",
    "place_after",
    "place_text",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import our own stores on first use: PostgreSQL needs packages that may be missing."""
        if name == "MemoryStore":
            from milecastle.stores.memory import MemoryStore

            return MemoryStore
        if name == "JsonlStore":
            from milecastle.stores.jsonl import JsonlStore

            return JsonlStore
        if name == "SqliteStore":
            from milecastle.stores.sqlite import SqliteStore

            return SqliteStore
        if name == "PostgresStore":
            from milecastle.stores.postgres import PostgresStore

            return PostgresStore
        if name == "ShardedStore":
            from milecastle.stores.sharded import ShardedStore

            return ShardedStore
        if name in ("ObjectStorage", "SweepReport"):
            from milecastle.stores import offloading

            return getattr(offloading, name)
        return refuse_import(__name__, name)
