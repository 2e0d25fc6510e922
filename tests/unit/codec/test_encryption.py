"""Encryption of payloads: they open where they were sealed, with their key, unchanged, or not."""

from __future__ import annotations

import sys
from typing import Any
from zlib import crc32

import pytest

from milecastle.codec.bounds import MAX_BYTES
from milecastle.codec.encryption import KEY_BYTES, KeyWrapper, ThreadSealer, new_thread_key
from milecastle.codec.envelope import (
    COMPRESSED,
    ENCRYPTED,
    PayloadPlace,
    frame,
    seal,
    unframe,
    unseal,
)
from milecastle.errors import (
    CodecError,
    EncryptionError,
    FormatTooNew,
    KeyNotFound,
    NoKeyring,
    PlaintextRefused,
)
from milecastle.model.checkpoint import DELTA, ROLLUP, SNAPSHOT
from milecastle.model.keys import ThreadKey

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

KEY = ThreadKey("acme", "order-7")
SECRET = new_thread_key()
BODY = b"the amber room"
WORDS = b"stone after stone " * 1000


@pytest.fixture
def sealer() -> ThreadSealer:
    return ThreadSealer(KEY, SECRET, new=True)


def with_checksum(payload: bytes) -> bytes:
    """The payload as somebody would forge it: the checksum fits what is there."""
    head, body = bytes(payload[:2]), bytes(payload[6:])
    return head + crc32(body, crc32(head)).to_bytes(4) + body


@pytest.mark.parametrize("body", [b"", BODY, WORDS], ids=["empty", "short", "long"])
def test_what_is_sealed_is_unsealed_with_the_same_key(body: bytes) -> None:
    payload = ThreadSealer(KEY, SECRET, new=True).seal(body, PayloadPlace(3, DELTA))
    assert ThreadSealer(KEY, SECRET).unseal(payload, PayloadPlace(3, DELTA)) == body
    assert BODY not in payload


def test_a_body_is_compressed_before_it_is_encrypted(sealer: ThreadSealer) -> None:
    payload = sealer.seal(WORDS, PayloadPlace(1))
    assert payload[1] == COMPRESSED | ENCRYPTED
    assert len(payload) < len(WORDS) // 10


def test_sealing_twice_gives_other_bytes(sealer: ThreadSealer) -> None:
    assert sealer.seal(BODY, PayloadPlace(1)) != sealer.seal(BODY, PayloadPlace(1))


def test_no_nonce_comes_twice(sealer: ThreadSealer) -> None:
    assert len({sealer.seal(b"", PayloadPlace(1))[22:34] for _ in range(5000)}) == 5000


@pytest.mark.parametrize(
    "place",
    [
        {"seq": 4, "kind": DELTA},
        {"seq": 3, "kind": ROLLUP},
        {"seq": 3, "kind": SNAPSHOT},
        {"seq": 3, "task": "a"},
        {"seq": 3, "task": ""},
    ],
    ids=str,
)
def test_an_entry_does_not_open_elsewhere(sealer: ThreadSealer, place: dict[str, Any]) -> None:
    payload = sealer.seal(BODY, PayloadPlace(3, DELTA))
    with pytest.raises(EncryptionError, match=r"seq . of thread 'order-7' cannot be decrypted"):
        sealer.unseal(payload, PayloadPlace(**place))


LINKED: dict[str, Any] = {"base_seq": 1, "rolled": 2, "parent_id": "p"}


@pytest.mark.parametrize(
    "change",
    [{"base_seq": 2}, {"rolled": 1}, {"parent_id": "q"}, {"parent_id": None}, {"parent_id": ""}],
    ids=str,
)
@pytest.mark.parametrize("kind", [DELTA, ROLLUP])
def test_an_entry_does_not_open_with_another_link(
    sealer: ThreadSealer, kind: int, change: dict[str, Any]
) -> None:
    """Fails when _links leaves out base_seq, rolled or the parent."""
    payload = sealer.seal(BODY, PayloadPlace(3, kind, **LINKED))
    assert sealer.unseal(payload, PayloadPlace(3, kind, **LINKED)) == BODY
    with pytest.raises(EncryptionError, match="written for another position, or modified"):
        sealer.unseal(payload, PayloadPlace(3, kind, **LINKED | change))


def test_a_snapshot_opens_whatever_was_before_it(sealer: ThreadSealer) -> None:
    """Pruning makes snapshots: what they rested on is gone."""
    payload = sealer.seal(BODY, PayloadPlace(3, SNAPSHOT, base_seq=3, rolled=2, parent_id="p"))
    assert (
        sealer.unseal(payload, PayloadPlace(3, SNAPSHOT, base_seq=3, rolled=3, parent_id="p"))
        == BODY
    )
    with pytest.raises(EncryptionError):
        sealer.unseal(payload, PayloadPlace(3, SNAPSHOT, base_seq=3, rolled=3, parent_id="q"))


@pytest.mark.parametrize("task", [None, "a"])
def test_a_payload_of_an_earlier_life_does_not_open(task: str | None) -> None:
    """Fails when the life is not compared, or not authenticated."""
    earlier, now = (ThreadSealer(KEY, SECRET, new=True) for _ in range(2))
    old, new = (life.seal(BODY, PayloadPlace(3, task=task)) for life in (earlier, now))
    with pytest.raises(EncryptionError, match="an earlier thread of the same name"):
        now.unseal(old, PayloadPlace(3, task=task))
    reader = ThreadSealer(KEY, SECRET)
    assert reader.unseal(new, PayloadPlace(3, task=task)) == BODY
    with pytest.raises(EncryptionError, match="an earlier thread of the same name"):
        reader.unseal(old, PayloadPlace(3, task=task))
    disguised = frame(old[1], old[6:14] + new[14:22] + old[22:])
    with pytest.raises(EncryptionError, match="written for another position, or modified"):
        now.unseal(disguised, PayloadPlace(3, task=task))


def test_a_writer_continues_the_life_that_it_read(sealer: ThreadSealer) -> None:
    """Fails when a sealer that is not new creates a life."""
    first = sealer.seal(BODY, PayloadPlace(1))
    writer = ThreadSealer(KEY, SECRET)
    with pytest.raises(RuntimeError, match="decrypted before one is encrypted"):
        writer.seal(BODY, PayloadPlace(2))
    writer.unseal(first, PayloadPlace(1))
    assert sealer.unseal(writer.seal(BODY, PayloadPlace(2)), PayloadPlace(2)) == BODY


@pytest.mark.parametrize(
    "place", [{"seq": 3, "task": "b"}, {"seq": 4, "task": "a"}, {"seq": 3, "kind": 255}], ids=str
)
def test_a_task_result_does_not_open_elsewhere(sealer: ThreadSealer, place: dict[str, Any]) -> None:
    payload = sealer.seal(BODY, PayloadPlace(3, task="a"))
    assert sealer.unseal(payload, PayloadPlace(3, task="a")) == BODY
    with pytest.raises(EncryptionError, match="cannot be decrypted"):
        sealer.unseal(payload, PayloadPlace(**place))


@pytest.mark.parametrize(
    "other",
    [
        ThreadKey("acme", "order-8"),
        ThreadKey("acmf", "order-7"),
        ThreadKey("acmeo", "rder-7"),
        ThreadKey("order-7", "acme"),
    ],
    ids=str,
)
def test_a_payload_does_not_open_in_another_thread_or_tenant(
    sealer: ThreadSealer, other: ThreadKey
) -> None:
    payload = sealer.seal(BODY, PayloadPlace(3))
    with pytest.raises(EncryptionError, match="cannot be decrypted"):  # even were the keys the same
        ThreadSealer(other, SECRET).unseal(payload, PayloadPlace(3))
    with pytest.raises(KeyNotFound, match="has no key to decrypt"):
        ThreadSealer(other, new_thread_key()).unseal(payload, PayloadPlace(3))


@pytest.mark.parametrize("body", [BODY, WORDS], ids=["short", "long"])
def test_every_flipped_bit_is_refused(sealer: ThreadSealer, body: bytes) -> None:
    payload = sealer.seal(body, PayloadPlace(3))
    for place in range(len(payload)):
        for bit in range(8):
            damaged = bytearray(payload)
            damaged[place] ^= 1 << bit
            with pytest.raises(CodecError):
                sealer.unseal(bytes(damaged), PayloadPlace(3))


@pytest.mark.parametrize("body", [BODY, WORDS], ids=["short", "long"])
def test_every_forged_bit_is_refused(sealer: ThreadSealer, body: bytes) -> None:
    payload = sealer.seal(body, PayloadPlace(3))
    for place in (0, 1, *range(6, len(payload))):
        for bit in range(8):
            forged = bytearray(payload)
            forged[place] ^= 1 << bit
            with pytest.raises((CodecError, FormatTooNew)):
                sealer.unseal(with_checksum(bytes(forged)), PayloadPlace(3))


def test_every_truncation_is_refused(sealer: ThreadSealer) -> None:
    payload = sealer.seal(BODY, PayloadPlace(3))
    for length in range(len(payload)):
        with pytest.raises(CodecError):
            sealer.unseal(payload[:length], PayloadPlace(3))
        with pytest.raises(CodecError):
            sealer.unseal(with_checksum(payload[: max(length, 6)]), PayloadPlace(3))


@pytest.mark.parametrize("body", [BODY, WORDS], ids=["short", "long"])
def test_plaintext_is_refused(sealer: ThreadSealer, body: bytes) -> None:
    with pytest.raises(PlaintextRefused, match=r"seq . of thread 'order-7'") as caught:
        sealer.unseal(seal(body), PayloadPlace(3))
    assert (caught.value.thread, caught.value.seq) == ("order-7", 3)


@pytest.mark.parametrize("body", [BODY, WORDS], ids=["short", "long"])
def test_reader_without_a_keyring_gets_an_error(sealer: ThreadSealer, body: bytes) -> None:
    with pytest.raises(NoKeyring, match="seq 3 is encrypted, but no keyring was given"):
        unseal(sealer.seal(body, PayloadPlace(3)), PayloadPlace(3))


def test_without_the_thread_key_nothing_opens_and_nothing_is_sealed(sealer: ThreadSealer) -> None:
    payload = sealer.seal(BODY, PayloadPlace(3))
    without = ThreadSealer(KEY, None)
    with pytest.raises(KeyNotFound, match="erased"):
        without.unseal(payload, PayloadPlace(3))
    with pytest.raises(KeyNotFound, match="erased"):
        without.seal(BODY, PayloadPlace(4))
    with pytest.raises(KeyNotFound, match="erased"):
        without.digest(BODY)
    with pytest.raises(PlaintextRefused):
        without.unseal(seal(BODY), PayloadPlace(3))


def test_decompression_of_what_was_encrypted_is_bounded(
    sealer: ThreadSealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = zstd.compress(bytes(MAX_BYTES + 1), 1)

    def cheat(body: bytes) -> tuple[int, bytes]:
        return COMPRESSED, bomb

    monkeypatch.setattr("milecastle.codec.encryption.compress", cheat)
    payload = sealer.seal(b"", PayloadPlace(1))
    assert len(payload) < 50_000
    with pytest.raises(CodecError, match="over the limit"):
        sealer.unseal(payload, PayloadPlace(1))


def test_digest_distinguishes_bodies_and_needs_the_key(sealer: ThreadSealer) -> None:
    assert sealer.digest(BODY) == ThreadSealer(KEY, SECRET).digest(BODY)
    assert sealer.digest(BODY) != sealer.digest(WORDS)
    assert sealer.digest(BODY) != ThreadSealer(KEY, new_thread_key()).digest(BODY)


def test_what_a_payload_grows_by(sealer: ThreadSealer) -> None:
    assert len(sealer.seal(BODY, PayloadPlace(1))) - len(seal(BODY)) == 8 + 8 + 12 + 16
    assert unframe(sealer.seal(BODY, PayloadPlace(1)))[0] == ENCRYPTED


class TestWrapping:
    """Keys of threads, wrapped by keys of a keyring."""

    OLD, NEW = b"o" * KEY_BYTES, b"n" * KEY_BYTES

    def test_a_wrapped_key_is_unwrapped(self) -> None:
        wrapped = KeyWrapper({"new": self.NEW, "old": self.OLD}).wrap(SECRET, "here")
        assert wrapped[0] == "new"
        assert SECRET not in wrapped[1]
        assert KeyWrapper({"old": self.OLD, "new": self.NEW}).unwrap(wrapped, "here") == SECRET

    def test_a_key_that_the_keyring_does_not_have_is_named(self) -> None:
        wrapped = KeyWrapper({"old": self.OLD}).wrap(SECRET, "here")
        with pytest.raises(KeyNotFound, match="'old', which the keyring does not have"):
            KeyWrapper({"new": self.NEW}).unwrap(wrapped, "here")

    def test_another_key_under_the_same_id_does_not_open(self) -> None:
        wrapped = KeyWrapper({"main": self.OLD}).wrap(SECRET, "here")
        with pytest.raises(EncryptionError, match="different key under this id"):
            KeyWrapper({"main": self.NEW}).unwrap(wrapped, "here")

    def test_a_key_does_not_open_for_another_thread(self) -> None:
        wrapper = KeyWrapper({"main": self.OLD})
        with pytest.raises(EncryptionError):
            wrapper.unwrap(wrapper.wrap(SECRET, "here"), "there")

    def test_a_changed_key_does_not_open(self) -> None:
        wrapper = KeyWrapper({"main": self.OLD})
        key_id, data = wrapper.wrap(SECRET, "here")
        for place in range(len(data)):
            changed = bytearray(data)
            changed[place] ^= 1
            with pytest.raises(EncryptionError):
                wrapper.unwrap((key_id, bytes(changed)), "here")
            with pytest.raises(EncryptionError):
                wrapper.unwrap((key_id, data[:place]), "here")
