"""What archiving takes and gives, on PostgreSQL with objects in files.

Two schemas get the same threads of 100 checkpoints, which append an item of about 100 bytes to a
list. In one of them 95 % of the threads are archived. Figures are ratios to the other, less is
better, and all bytes are after ``VACUUM FULL``:

- ``table_bytes_after``: bytes of all tables with their indexes.
- ``archived_bytes``: bytes of the segments, to those that their entries had in the tables.
- ``hot_get``, ``hot_put``: the state of a thread that is not archived, and one more checkpoint.
- ``cold_state``: an archived checkpoint in the middle of its thread.
- ``history_page``: a page of 50 entries across the boundary, without states.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, cast

import msgspec.structs

from benchmarks.alternating import best_of, timed
from benchmarks.growing import schema_size
from benchmarks.postgres_server import postgres_server
from benchmarks.report import Report, columns
from milecastle import CheckpointStore, Retention, ThreadKey
from milecastle.app.clock import SystemClock
from milecastle.model.checkpoint import Entry
from milecastle.model.run import RunRecord, ThreadInfo
from milecastle.ports.store import Batch, Store
from milecastle.stores.memory import MemoryStore
from milecastle.stores.offloading import OffloadingStore, SharedObjects, offload
from milecastle.stores.opening import find_store

if TYPE_CHECKING:
    from tests.postgres_cluster import Cluster

FIGURES = (
    *("table_bytes_after", "archived_bytes", "hot_get", "hot_put", "cold_state", "history_page"),
)
TENANT = "bench"
STEPS = 100
ARCHIVED = 0.95
PAGE = 50
_WORDS = [
    "fetched",
    "parsed",
    "checked",
    "stored",
    "retried",
    "order",
    "invoice",
    "customer",
    "page",
    "record",
    "answer",
    "model",
    "tool",
    "search",
    "result",
    "token",
    "amount",
    "total",
    "failed",
    "passed",
    "waiting",
    "approved",
]


class Size(msgspec.Struct, frozen=True):
    """Threads in each schema, and rounds of each comparison."""

    threads: int = 10_000
    rounds: int = 9
    calls: int = 200


QUICK = Size(threads=40, rounds=2, calls=5)


def measure(*, quick: bool = False) -> Report:
    """Archive most of a store, and compare it with one that is not archived."""
    size = QUICK if quick else Size()
    found = compare(size)
    figures = {name: round(found[name], 3) if name in found else None for name in FIGURES}
    rows = [("figure", "ratio"), *((name, str(value)) for name, value in figures.items())]
    return Report(figures=figures, table=columns(rows))


def compare(size: Size) -> dict[str, float]:
    """Return the figures; none where there is no PostgreSQL."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        cluster = stack.enter_context(postgres_server(synchronous_commit="off"))
        if cluster is None:
            return {}
        stores: dict[str, OffloadingStore] = {}
        for name in ("plain", "archived"):
            inner = find_store(cluster.url_of(name, synchronous_commit="off"))
            objects = SharedObjects(f"file://{folder}/{name}")
            stores[name] = stack.enter_context(closing(offload(inner, objects)))
            fill(stores[name], size.threads)
        cluster.execute(b"VACUUM FULL ANALYZE")
        before = schema_size(cluster, "plain")
        count = int(size.threads * ARCHIVED)
        archive(stores["archived"], count)
        cluster.execute(b"VACUUM FULL ANALYZE")
        return _bytes(cluster, stores["archived"], before) | _times(stores, count, size)


def key_of(number: int) -> ThreadKey:
    """A thread's key."""
    return ThreadKey(TENANT, f"order-{number:07}")


def fill(store: Store, threads: int) -> None:
    """Write the threads, each by one commit; their states differ, and can be decoded."""
    clock, chosen = SystemClock(), random.Random(threads)
    models = [list(_model(chosen)) for _ in range(16)]
    for number in range(threads):
        key, run_id = key_of(number), clock.new_id()
        entries: list[Entry] = []
        for model in models[number % len(models)]:
            parent = entries[-1].id if entries else None
            changes = {"id": clock.new_id(), "parent_id": parent, "run_id": run_id}
            entries.append(msgspec.structs.replace(model, **changes))
        now = clock.now()
        run = RunRecord(
            run_id=run_id,
            key=key,
            graph="orders",
            fingerprint=entries[-1].fingerprint,
            mode="incremental",
            status="completed",
            retry_count=0,
            previous_run_id=None,
            started_at=now,
            ended_at=now,
        )
        info = ThreadInfo.of(run)
        batch = Batch(key=key, head=0, entries=tuple(entries), runs=(run,), thread=info)
        store.commit(batch)


def _model(chosen: random.Random) -> Iterator[Entry]:
    """The entries of a thread that appends an item with each step, as deltas."""
    with closing(MemoryStore()) as store:
        writer, key = CheckpointStore(store), ThreadKey("model", "thread")
        items: list[str] = []
        for _ in range(STEPS):
            words = " ".join(chosen.choices(_WORDS, k=12))
            items = [*items, f"{chosen.getrandbits(32):08x} {words}"]
            writer.put(key, {"items": items, "n": len(items)}, nodes=["work"], delta=True)
        for entry in store.entries(key):
            yield msgspec.structs.replace(entry, fingerprint="3f" * 16)


def archive(store: Store, count: int) -> None:
    """Archive the first threads."""
    names = tuple(key_of(number).thread for number in range(count))
    rule = Retention(archive_after=timedelta(0), threads=names)
    done = CheckpointStore(store).apply_retention(TENANT, rule)
    if done.archived < count * (STEPS - 1) or done.busy or done.unreadable:
        raise RuntimeError(f"not all was archived: {done.archived} of {count * STEPS}")


def _bytes(cluster: Cluster, store: OffloadingStore, before: int) -> dict[str, float]:
    stored = sum(one.size for one in store.objects.folder.list("") if "/objects/" in one.path)
    return {
        "table_bytes_after": schema_size(cluster, "archived") / before,
        "archived_bytes": stored / (before * ARCHIVED),
    }


def _times(stores: dict[str, OffloadingStore], count: int, size: Size) -> dict[str, float]:
    """Times in the archived store to those in the plain one, by turns."""
    hot = [key_of(number) for number in range(count, size.threads)]
    cold = [key_of(number) for number in range(count)]
    compared = {
        "hot_get": partial(_get, hot, None),
        "hot_put": partial(_put, hot),
        "cold_state": partial(_get, cold, STEPS // 2),
        "history_page": partial(_page, cold),
    }
    found: dict[str, float] = {}
    for name, work in compared.items():
        peers = [timed(each, partial(work, store, size.calls)) for each, store in stores.items()]
        best = best_of(size.rounds, peers)
        found[name] = best["archived"] / best["plain"]
    return found


def _get(keys: list[ThreadKey], seq: int | None, store: Store, calls: int) -> None:
    for key in islice(_again(keys), calls):
        if store.read(key, seq) is None:
            raise LookupError(str(key))


def _page(keys: list[ThreadKey], store: Store, calls: int) -> None:
    for key in islice(_again(keys), calls):
        if len(list(store.history(key, limit=PAGE))) != PAGE:
            raise LookupError(str(key))


def _put(keys: list[ThreadKey], store: Store, calls: int) -> None:
    clock = SystemClock()
    for key in islice(_again(keys), calls):
        head = cast("Entry", store.head(key))
        entry = msgspec.structs.replace(
            head,
            seq=head.seq + 1,
            id=clock.new_id(),
            parent_id=head.id,
            kind=0,
            base_seq=1,
            roll_seq=1,
            payload=b"x" * 100,
        )
        store.commit(Batch(key=key, head=head.seq, head_id=head.id, entries=(entry,)))


def _again(keys: list[ThreadKey]) -> Iterator[ThreadKey]:
    while True:
        yield from keys
