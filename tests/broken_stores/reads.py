"""Stores that break a promise on reading: chains, ids, concurrency."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec.structs

from milecastle.errors import Conflict
from milecastle.model.checkpoint import DELTA, ROLLUP, Entry, TaskResult
from milecastle.model.keys import ThreadKey
from milecastle.model.run import RunRecord
from milecastle.ports.store import Batch, Chain, Opened, ReadMany
from milecastle.testing.entries import an_entry
from tests.broken_stores.store import BrokenStore


class InventsThreads(
    BrokenStore, caught_by=("test_a_thread_that_was_never_written_is_empty",), seen_by_model=True
):
    """There is always something."""

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """Make up an entry for a thread that is not there."""
        return super().read(key, seq) or Chain((an_entry(1),))


class ReadsManyWithoutResults(
    BrokenStore, caught_by=("test_many_threads_are_read_as_each_by_itself",)
):
    """What is read together lacks what tasks have returned."""

    @property
    def read_many(self) -> ReadMany:
        return self._read_many

    def _read_many(self, keys: Sequence[ThreadKey]) -> dict[ThreadKey, Opened]:
        """Give the chains alone."""
        found = {key: chain for key in keys if (chain := self.read(key)) is not None}
        return {
            key: Opened(Chain(chain.entries), self._logs[key].runs[chain.entries[-1].run_id])
            for key, chain in found.items()
        }


class ReadsTooMuch(BrokenStore, caught_by=("test_a_snapshot_is_read_alone",), seen_by_model=True):
    """A chain begins with the first entry."""

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """Give everything up to the checkpoint."""
        chain = super().read(key, seq)
        if chain is None:
            return None
        last = chain.entries[-1].seq
        entries = [entry for entry in self._logs[key].entries if entry.seq <= last]
        return Chain(tuple(entries), chain.results)


class ReadsTooLittle(
    BrokenStore,
    caught_by=("test_a_delta_is_read_with_all_from_its_snapshot_on",),
    seen_by_model=True,
):
    """A chain is its last entry."""

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """Give the checkpoint's own entry."""
        chain = super().read(key, seq)
        return Chain(chain.entries[-1:], chain.results) if chain else None


class ReadsEveryDelta(
    BrokenStore, caught_by=("test_a_rollup_stands_for_the_deltas_before_it",), seen_by_model=True
):
    """Deltas come with the rollup that repeats them."""

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """Give all from the snapshot on."""
        chain = super().read(key, seq)
        if chain is None:
            return None
        first, last = chain.entries[0].seq, chain.entries[-1].seq
        entries = [entry for entry in self._logs[key].entries if first <= entry.seq <= last]
        return Chain(tuple(entries), chain.results)


class ReadsTheHeadOnly(
    BrokenStore, caught_by=("test_every_older_checkpoint_is_read_as_it_was",), seen_by_model=True
):
    """There is no past."""

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """Give the head, whatever was asked for."""
        return super().read(key)


class ReadsOneRollup(
    BrokenStore, caught_by=("test_a_long_history_is_read_at_every_seq",), seen_by_model=True
):
    """The newest rollup is taken for all of them."""

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """Drop the older rollups."""
        chain = super().read(key, seq)
        if chain is None:
            return None
        rollups = [entry for entry in chain.entries if entry.kind == ROLLUP]
        entries = tuple(entry for entry in chain.entries if entry not in rollups[:-1])
        return Chain(entries, chain.results)


class ReadsAcrossForks(
    BrokenStore, caught_by=("test_a_fork_is_read_from_where_it_branched_off",), seen_by_model=True
):
    """A fork is taken for one more step."""

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """Put what was the head before a fork in front of it."""
        chain = super().read(key, seq)
        if chain is None or chain.entries[0].source != "fork":
            return chain
        before = super().read(key, chain.entries[0].seq - 1)
        return Chain((*(before.entries if before else ()), *chain.entries), chain.results)


class ReadsTheNearest(BrokenStore, caught_by=("test_missing_item_is_none",), seen_by_model=True):
    """Above the head is the head."""

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """Give the head for what is not there."""
        return super().read(key, seq) or super().read(key)


class LocatesAnywhere(
    BrokenStore,
    caught_by=(
        "test_a_checkpoint_is_located_by_its_id",
        "test_nothing_of_another_tenant_is_found",
    ),
):
    """An id is an id."""

    def locate(self, key: ThreadKey, checkpoint_id: str) -> int | None:
        """Look into every thread."""
        found = (super(LocatesAnywhere, self).locate(each, checkpoint_id) for each in self._logs)
        return next((seq for seq in found if seq is not None), None)


class AliasingStore(BrokenStore):
    """Keeps a thread under something that is not quite its key."""

    def alias(self, key: ThreadKey) -> ThreadKey:
        """What the thread is stored under."""
        raise NotImplementedError

    def commit(self, batch: Batch) -> None:
        """Write under the alias."""
        super().commit(msgspec.structs.replace(batch, key=self.alias(batch.key)))

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """Read under the alias."""
        return super().read(self.alias(key), seq)

    def locate(self, key: ThreadKey, checkpoint_id: str) -> int | None:
        """Look under the alias."""
        return super().locate(self.alias(key), checkpoint_id)


class IgnoresTenants(
    AliasingStore,
    caught_by=("test_a_thread_of_the_same_name_belongs_to_each_tenant",),
    seen_by_model=True,
):
    """A thread's name is enough."""

    def alias(self, key: ThreadKey) -> ThreadKey:
        """One tenant for all."""
        return ThreadKey("everybody", key.thread)


BOTH_LOOK_ALIKE = (
    "test_ids_that_look_alike_are_different_threads",
    "test_ids_that_look_alike_are_different_tenants",
)


class FoldsCase(AliasingStore, caught_by=BOTH_LOOK_ALIKE, seen_by_model=True):
    """As on a disk that does not mind case."""

    def alias(self, key: ThreadKey) -> ThreadKey:
        """Fold."""
        return ThreadKey(key.tenant.casefold(), key.thread.casefold())


class NormalisesIds(AliasingStore, caught_by=BOTH_LOOK_ALIKE):
    """As on a disk that normalises."""

    def alias(self, key: ThreadKey) -> ThreadKey:
        """Normalise."""
        normal = [unicodedata.normalize("NFC", part) for part in (key.tenant, key.thread)]
        return ThreadKey(*normal)


class TrimsIds(AliasingStore, caught_by=BOTH_LOOK_ALIKE):
    """White space is nothing."""

    def alias(self, key: ThreadKey) -> ThreadKey:
        """Trim."""
        return ThreadKey(key.tenant.strip() or " ", key.thread.strip() or " ")


class CutsLongIds(AliasingStore, caught_by=BOTH_LOOK_ALIKE):
    """255 characters are enough."""

    def alias(self, key: ThreadKey) -> ThreadKey:
        """Cut."""
        return ThreadKey(key.tenant[:255], key.thread[:255])


class MakesFileNames(AliasingStore, caught_by=BOTH_LOOK_ALIKE):
    """Separators become underscores."""

    def alias(self, key: ThreadKey) -> ThreadKey:
        """Replace."""
        names = [part.replace("/", "_").replace("\\", "_") for part in (key.tenant, key.thread)]
        return ThreadKey(*names)


class JoinsIds(AliasingStore, caught_by=("test_tenant_and_thread_do_not_run_together",)):
    """Tenant and thread make one name."""

    def alias(self, key: ThreadKey) -> ThreadKey:
        """Join."""
        return ThreadKey("joined", f"{key.tenant}/{key.thread}"[:512])


class LooksBeforeItLocks(BrokenStore, caught_by=("test_of_racing_writers_one_wins_each_seq",)):
    """Looks at the head, and writes a moment later."""

    def commit(self, batch: Batch) -> None:
        """Leave a moment in which another may write."""
        log = self._logs.get(batch.key)
        head = log.head if log else 0
        if batch.head != head:
            raise Conflict(tenant="", thread="", expected=batch.head + 1, head=head)
        time.sleep(0.0001)
        self.force(batch)


class SharesItsDesk(BrokenStore, caught_by=("test_writers_of_different_threads_do_not_meet",)):
    """Every writer puts its batch into the same place."""

    def commit(self, batch: Batch) -> None:
        """Leave a moment in which another may put its batch there."""
        self._desk = batch
        time.sleep(0.0001)
        super().commit(self._desk)


class ReadsInTwoSteps(BrokenStore, caught_by=("test_what_is_read_beside_a_writer_is_whole",)):
    """Reads the chain, and then its end."""

    def commit(self, batch: Batch) -> None:
        """Take a moment."""
        time.sleep(0.0001)
        super().commit(batch)

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """Leave a moment in which a writer may write."""
        chain = super().read(key, seq)
        time.sleep(0.0005)
        later = super().read(key, seq)
        if chain is None or later is None:
            return None
        return Chain((*chain.entries[:-1], later.entries[-1]), later.results)


class ReadsPrunedChainsWhole(
    BrokenStore,
    caught_by=(
        "test_what_is_left_is_read_back_right_at_any_cut",
        "test_a_live_writer_goes_on_over_a_pruning",
    ),
    seen_by_model=True,
):
    """Follows pointers only, over snapshots that pruning put in."""

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """Begin at ``base_seq``, whatever was rewritten since."""
        chain = super().read(key, seq)
        if chain is None:
            return None
        last = chain.entries[-1]
        return Chain(tuple(_pointed_at(last, self._logs[key].entries)), chain.results)


def _pointed_at(last: Entry, entries: list[Any]) -> Iterator[Entry]:
    for entry in entries:
        rolled = last.base_seq <= entry.seq <= last.roll_seq and entry.kind != DELTA
        if rolled or last.roll_seq < entry.seq <= last.seq:
            yield entry


class TakesAnythingForAKey(
    BrokenStore, caught_by=("test_a_key_of_another_type_is_refused_by_every_call",)
):
    """A name without a tenant is a thread that nobody has."""

    def read(self, key: ThreadKey, seq: int | None = None) -> Chain | None:
        """Find nothing."""
        return super().read(key, seq) if isinstance(cast("Any", key), ThreadKey) else None


HEAD = "test_head_is_the_newest_entry_without_its_payload"
ROWS = "test_results_are_read_without_the_chain"


class RemembersAnOldHead(BrokenStore, caught_by=(HEAD,), seen_by_model=True):
    """A head, once learned, is true."""

    def head(self, key: ThreadKey) -> Entry | None:
        """Learn it once."""
        heads: dict[ThreadKey, Entry | None] = vars(self).setdefault("heads", {})
        if heads.get(key) is None:
            heads[key] = super().head(key)
        return heads[key]


class GivesTheHeadWithItsPayload(BrokenStore, caught_by=(HEAD,), seen_by_model=True):
    """It is there anyway."""

    def head(self, key: ThreadKey) -> Entry | None:
        """Give the entry itself."""
        chain = self.read(key)
        return chain.entries[-1] if chain else None


class ForgetsResultsThatAreHeld(BrokenStore, caught_by=(ROWS,)):
    """A result belongs to the very entry under which it was written."""

    def results(self, key: ThreadKey) -> Sequence[TaskResult]:
        """Leave out what older entries hold."""
        head = self.head(key)
        return [one for one in super().results(key) if head and one.seq == head.seq]


class KeepsResultsOfTheStepBefore(BrokenStore, caught_by=(ROWS,)):
    """Nothing says that a step is over."""

    def results(self, key: ThreadKey) -> Sequence[TaskResult]:
        """Give what was there when they were last asked for, if there is nothing now."""
        kept: dict[ThreadKey, Sequence[TaskResult]] = vars(self).setdefault("kept", {})
        kept[key] = super().results(key) or kept.get(key, ())
        return kept[key]


class OpensInTwoReads(BrokenStore, caught_by=("test_a_head_and_its_record_are_of_one_moment",)):
    """The head, and then the record."""

    def open(self, key: ThreadKey) -> Opened | None:
        """Let a writer come in between."""
        chain = self.read(key)
        time.sleep(0.001)
        return Opened(chain, self.run(key, chain.entries[-1].run_id)) if chain else None


class OpensWithTheNewestRun(
    BrokenStore, caught_by=("test_a_head_is_opened_with_the_record_of_its_run",)
):
    """The newest run wrote the head."""

    def open(self, key: ThreadKey) -> Opened | None:
        """Take the last one that was recorded."""
        chain = self.read(key)
        return Opened(chain, next(iter(self.runs(key)), None)) if chain else None


class FindsTheOldestRun(BrokenStore, caught_by=("test_a_run_is_found_by_its_input",)):
    """The first that had the input."""

    def find_run(self, key: ThreadKey, input_digest: str) -> RunRecord | None:
        """Look from the other end."""
        runs = reversed(self.runs(key))
        return next((run for run in runs if run.input_digest == input_digest), None)
