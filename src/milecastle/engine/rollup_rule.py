"""The rule for cutting chains: when an entry is a delta, a rollup or a snapshot.

Every writer of a log uses it: runs, the graphless log and the LangGraph saver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from milecastle.model.checkpoint import DELTA, ROLLUP, SNAPSHOT, Kind

CHAT_ROLLUP_AFTER = 64
"""At most this many deltas for writers of several small entries a turn, whose reads take all.

A store's own number would double the time of a LangGraph saver's first read.
"""

_SMALL = 512
"""For a chain of fewer bytes, the size of the state is not checked."""


class ChainEnd(msgspec.Struct):
    """A chain's end, as far as its writer has to know it.

    ``tail`` has the deltas since the last rollup or snapshot, ``size`` is the whole chain's
    bytes, ``next_look`` the size above which it is compared with the state.
    """

    base_seq: int = 0
    roll_seq: int = 0
    tail: list[bytes] = []
    size: int = 0
    next_look: int = _SMALL

    @classmethod
    def of(
        cls, base_seq: int, roll_seq: int, tail: Sequence[bytes], size: int, snapshot: int
    ) -> ChainEnd:
        return cls(base_seq, roll_seq, [*tail], size, max(_SMALL, 2 * snapshot))

    def copy(self) -> ChainEnd:
        return ChainEnd(self.base_seq, self.roll_seq, [*self.tail], self.size, self.next_look)

    def choose(
        self,
        delta: bytes | None,
        whole: Callable[[], bytes],
        fold: Callable[[list[bytes]], bytes],
        *,
        rollup_after: int | None,
        may_cut: bool,
    ) -> tuple[Kind, bytes]:
        """The next entry's contents, in the form cheapest to read.

        ``delta`` is ``None`` if nothing precedes the entry: the first one, or a fork. ``whole``
        encodes the state, ``fold`` combines deltas. An entry that is no delta must be noted with
        ``cut`` once it is certain.
        """
        if delta is None:
            return SNAPSHOT, whole()
        cost = self.size + len(delta)
        if cost > self.next_look and may_cut:
            snapshot = whole()
            if cost > 2 * len(snapshot):
                return SNAPSHOT, snapshot
            self.next_look = 2 * cost
        if rollup_after is not None:
            if len(self.tail) >= rollup_after and may_cut:
                return ROLLUP, fold([*self.tail, delta])
            self.tail.append(delta)
        self.size = cost
        return DELTA, delta

    def cut(self, seq: int, kind: Kind, body: bytes) -> None:
        if kind == SNAPSHOT:
            self.base_seq = seq
            self.size = len(body)
            self.next_look = max(_SMALL, 2 * len(body))
        else:
            self.size += len(body) - sum(map(len, self.tail))
        self.roll_seq = seq
        self.tail = []
