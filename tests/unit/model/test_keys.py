"""Keys: how a thread is addressed."""

from __future__ import annotations

import pytest

from milecastle import InvalidRequest, ThreadKey
from milecastle.model.keys import MAX_ID_BYTES, SHARDS


def test_a_key_reads_as_tenant_and_thread() -> None:
    assert str(ThreadKey("acme", "t")) == "acme/t"
    assert ThreadKey("a", "b") < ThreadKey("a", "c") < ThreadKey("b", "a")
    assert len({ThreadKey("a", "b"), ThreadKey("a", "b")}) == 1


def test_the_shard_is_the_same_everywhere() -> None:
    assert ThreadKey("acme", "t").shard == ThreadKey("acme", "t").shard == 1009
    shards = {ThreadKey("acme", f"t{number}").shard for number in range(20_000)}
    assert shards == set(range(SHARDS))


def test_a_separator_in_an_id_does_not_join_two_threads() -> None:
    assert ThreadKey("a/b", "c") != ThreadKey("a", "b/c")


def test_the_longest_id_is_counted_in_bytes() -> None:
    assert ThreadKey("x" * MAX_ID_BYTES, "é" * (MAX_ID_BYTES // 2)).tenant
    with pytest.raises(InvalidRequest, match="may have at most 512 bytes; this one has 514"):
        ThreadKey("a", "é" * 257)
