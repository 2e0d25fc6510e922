"""Make the golden file of the SQLite store: one for each format version.

    python -m tests.migration.sqlite_golden

Until the first release is tagged, a change of version 1 makes its file again. From then on it is
made once, when a format version is new, and every later version must read it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec.structs

from milecastle.model.checkpoint import DELTA, ROLLUP, SNAPSHOT
from milecastle.model.run import Owner, ThreadInfo
from milecastle.ports.claims import ClaimStore, waiting_inputs
from milecastle.ports.limits import Limit
from milecastle.ports.store import Store
from milecastle.stores.sqlite import SqliteStore
from milecastle.testing.contract_buckets import buckets_of, take
from milecastle.testing.contract_buckets import fill as fill_bucket
from milecastle.testing.contract_claims import LANE, a_worker, queued
from milecastle.testing.contract_hooks import everything_of
from milecastle.testing.contract_inputs import enqueued
from milecastle.testing.contract_mailbox import mailbox_of, running, send, suspended
from milecastle.testing.contract_memory import TENANT, a_write, items_of, put
from milecastle.testing.contract_tags import change, tagged
from milecastle.testing.entries import Writer, a_failure, a_key, a_result, a_run

GOLDEN = Path(__file__).parent / "golden"
MANIFEST = "m" * 32
REPLACED = a_result(2, "one", b"replaced")
KEYS = (a_key("alpha"), a_key("beta"), a_key("gamma", "other"), a_key("nobody"), a_key("delta"))
LATER_KEYS = (a_key("epsilon"), a_key("zeta"), a_key("eta", "other"))
TAGGED = a_key("theta")
MAILED = a_key("iota")
LIMITED = a_key("lambda")
VERSION = 1
PATH = GOLDEN / f"sqlite-v{VERSION}.db"


def fill(store: ClaimStore) -> None:
    """Write everything that a store can hold; the same each time."""
    alpha = Writer(KEYS[0], 1).begin(store).write(store, (DELTA, DELTA, ROLLUP, DELTA))
    alpha.append(store, source="takeover", note="caf\u00e9 \U0001f3f0", route=("research",))
    failed = a_run(KEYS[0], 2, status="failed", ended_at=9, metadata={"host": "wall"})
    store.commit(alpha.batch(runs=(failed,), failure=a_failure(failed.run_id)))
    store.commit(alpha.batch(results=(a_result(6, "one"), a_result(6, "two"))))
    store.commit(alpha.batch(manifest=(MANIFEST, b"manifest")))
    beta = Writer(KEYS[1], 3).begin(store).write(store, (DELTA, SNAPSHOT, DELTA, ROLLUP, DELTA))
    beta.prune(store, 3)
    beta.append(store, at=4, source="fork")
    Writer(a_key("deleted"), 4).begin(store, 3)
    store.delete(a_key("deleted"))
    gamma = Writer(KEYS[2], 5).begin(store, 2)
    store.commit(gamma.batch(results=(REPLACED, a_result(2, "two"))))
    for source in ("interrupt", "answer", "sleep"):
        gamma.append(store, source=source)
    store.commit(gamma.batch(results=(a_result(5, "one"), a_result(5, "three"))))
    asleep = msgspec.structs.replace(gamma.run, status="sleeping", wake_at=8)
    store.commit(gamma.batch(runs=(asleep,)))
    _fill_waiting(store)
    _fill_memory(store)
    _fill_buckets(store)
    _fill_queues(store)
    change(store, tagged(store, TAGGED.thread, "blue", "caf\u00e9", number=12), ["red"], ["blue"])
    store.beat(a_worker("patient", silent_after=60.0))
    _fill_mailbox(store)


def _fill_waiting(store: Store) -> None:
    delta = Writer(KEYS[4], 6)
    owner = Owner(host="wall \U0001f3f0", boot_id="b" * 36, pid=4711, started="17")
    delta.run = msgspec.structs.replace(delta.run, owner=owner)
    delta.begin(store, 2)
    line = msgspec.structs.replace(
        ThreadInfo.of(delta.run), status="interrupted", wake_at=2**53 + 1, questions=3
    )
    store.commit(delta.batch(runs=(a_run(KEYS[4], 2, status="failed"),), thread=None))
    delta.append(store, source="interrupt", thread=line)


def _fill_queues(store: ClaimStore) -> None:
    epsilon = queued(store, "epsilon", 7, due_at=2**53 + 1)
    enqueued(store, epsilon, 10)
    enqueued(store, epsilon, 11)
    queued(store, "zeta", 8, due_at=5, lane="graph \U0001f3f0", priority=3)
    queued(store, "eta", 9, due_at=5, tenant="other")
    store.beat(a_worker("one"))
    store.claim("one", ["graph \U0001f3f0"], limit=1)
    store.claim("two", [LANE], limit=1)
    store.set_limit(
        Limit(graph="graph \U0001f3f0", tenant="other", concurrency=3, rate=5, period=60.0)
    )
    store.set_limit(Limit(graph="graph", key="customer", concurrency=3, rate=5, period=86400.0))
    queued(store, LIMITED.thread, 15, due_at=6, limit_key="customer=c7 \U0001f3f0")
    store.claim("two", [LANE], limit=1)


def _fill_mailbox(store: ClaimStore) -> None:
    iota = running(store, MAILED.thread, 13)
    for mark, topic in (("m1", "go"), ("m2", "caf\u00e9 \U0001f3f0"), ("m3", "go"), ("m4", "")):
        send(store, iota, mark, topic)
    iota.append(store, consumes=(1,))
    mailbox_of(store).discard(iota.key, 4)
    topics = (("go", 3), ("caf\u00e9 \U0001f3f0", 2))
    iota.append(store, thread=suspended(iota, waiting_topics=topics))


def _fill_memory(store: Store) -> None:
    put(store, "alone", words=("caf\u00e9", "word"), vectors=b"\0\1\2\3", model="m:1")
    Writer(a_key("kappa"), 14).append(store, memory=(a_write("beside"), a_write("alone")))
    put(store, "theirs", "other", subject="u7", words=("word",), ttl=10**15)


def _fill_buckets(store: Store) -> None:
    fill_bucket(store, "gpt \U0001f3f0", rate=3, period=86400.0, burst=2)
    buckets = fill_bucket(store, rate=1, period=86400.0, burst=2)
    for mark in ("m1", "m2", "m3"):
        take(buckets, mark)
    buckets.settle(TENANT, "gpt", 1, "m1 settled")


def buckets_in(store: Store) -> list[Any]:
    """The buckets that ``fill`` filled, but for their times."""
    buckets, times = buckets_of(store), {"promised": 0, "granted": 0}
    levels = [msgspec.structs.replace(level, **times) for level in buckets.levels()]
    return [*levels, [turn.bucket for turn in buckets.waiting(TENANT, "m")]]


def memory_in(store: Store) -> list[Any]:
    """The items that ``fill`` wrote, but for their times."""
    items, times = items_of(store), {"created_at": 0, "updated_at": 0, "expires_at": None}
    found = [items.scan(tenant, b"", limit=99) for tenant in (TENANT, "other")]
    found.append(items.with_words("other", b"", ["word"], limit=9))
    return [[msgspec.structs.replace(item, **times) for item in each] for each in found]


def messages_in(store: Store) -> tuple[Any, ...]:
    """The mailbox that ``fill`` wrote, but for the times of sending."""
    mailbox = mailbox_of(store)
    found = [mailbox.unread(MAILED), mailbox.unread(MAILED, topic="go")]
    sent = [[msgspec.structs.replace(one, sent_at=0) for one in each] for each in found]
    return sent, mailbox.marks(MAILED)


def everything_in(store: Store) -> list[Any]:
    """All that can be read of what ``fill`` wrote, but for what concerns workers and mailboxes."""
    parts = [everything_of(store, key) for key in (*KEYS, *LATER_KEYS, TAGGED, MAILED, LIMITED)]
    return [*parts, store.manifest(KEYS[0], MANIFEST)]


def claims_in(store: ClaimStore) -> tuple[Any, ...]:
    """What ``fill`` wrote that concerns workers."""
    workers = [msgspec.structs.replace(each, silent=0.0) for each in store.workers()]
    claimed = [store.claimed(worker) for worker in ("one", "two")]
    waiting = [(one.mark, one.payload) for one in waiting_inputs(store, LATER_KEYS[0])]
    return workers, claimed, waiting, list(store.limits())


def main() -> None:
    """Write the file of the newest version, unless it is there."""
    if PATH.exists():
        raise SystemExit(f"{PATH} is there already, and stays as it is")
    store = SqliteStore(PATH)
    fill(store)
    store.close()


if __name__ == "__main__":
    main()
