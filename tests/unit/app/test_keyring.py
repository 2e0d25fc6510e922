"""The keyring: where its keys come from, one key for each thread, rotation and erasure."""

from __future__ import annotations

import os
import sys
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from milecastle import CheckpointStore, InvalidRequest, Keyring, ThreadKey
from milecastle.app.encryption.keyring import KeyStore
from milecastle.codec.deltas import LogCodec
from milecastle.codec.envelope import PayloadPlace
from milecastle.codec.registry import TypeRegistry
from milecastle.codec.values import ValueCodec
from milecastle.errors import Corrupted, EncryptionError, KeyNotFound
from milecastle.stores.memory import MemoryStore
from milecastle.stores.sqlite import SqliteStore

KEY = ThreadKey("acme", "order-7")
OLD, NEW = b"o" * 32, b"n" * 32
TENANT = "milecastle.keys"


@pytest.fixture
def keys() -> MemoryStore:
    return MemoryStore()


def as_text(key: bytes) -> str:
    return b64encode(key).decode()


def opens(ring: Keyring, payload: bytes, key: ThreadKey = KEY) -> bool:
    return ring.sealer(key).unseal(payload, PayloadPlace(1)) == b"body"


def first_payload(ring: Keyring, key: ThreadKey) -> bytes:
    return ring.sealer(key, new=True).seal(b"body", PayloadPlace(1))


def test_a_thread_keeps_its_key(keys: MemoryStore) -> None:
    payload = (
        Keyring({"main": OLD}, store=keys).sealer(KEY, new=True).seal(b"body", PayloadPlace(1))
    )
    again = Keyring({"main": as_text(OLD)}, store=keys)
    assert opens(again, payload)
    assert opens(again, again.sealer(KEY, new=True).seal(b"body", PayloadPlace(1)))


def test_each_thread_has_its_own_key(keys: MemoryStore) -> None:
    ring = Keyring({"main": OLD}, store=keys)
    ring.sealer(KEY, new=True)
    other = ThreadKey("acme", "order-8")
    ring.sealer(other, new=True)
    with pytest.raises(KeyNotFound):
        opens(ring, ring.sealer(other, new=True).seal(b"body", PayloadPlace(1)))


def test_reading_makes_no_key(keys: MemoryStore) -> None:
    ring = Keyring({"main": OLD}, store=keys)
    with pytest.raises(KeyNotFound):
        ring.sealer(KEY).seal(b"body", PayloadPlace(1))
    assert not keys.threads(TENANT)


def test_names_and_secrets_are_not_in_the_store_of_keys(tmp_path: Path) -> None:
    with_names = ThreadKey("tenant-amber", "thread-amber")
    ring = Keyring({"main": OLD}, store=f"file://{tmp_path}")
    ring.sealer(with_names, new=True)
    ring.close()
    found = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert found
    assert not any(b"amber" in data or OLD in data for data in found)


def test_ids_that_look_alike_have_different_keys(keys: MemoryStore) -> None:
    ring = Keyring({"main": OLD}, store=keys)
    for tenant, thread in [("a", "b:c"), ("a:b", "c"), ("1:a", "b"), ("a", "1:b"), ("a", "b")]:
        ring.sealer(ThreadKey(tenant, thread), new=True)
    assert len(keys.threads(TENANT)) == 5


def test_keys_may_be_kept_beside_the_threads(keys: MemoryStore) -> None:
    store = CheckpointStore(keys, encryption=Keyring({"main": OLD}, store=keys))
    store.put(KEY, {"n": 1})
    assert [info.key.thread for info in store.list_threads("acme")] == ["order-7"]
    found = store.get_latest(KEY)
    assert found is not None
    assert found.state == {"n": 1}


def test_many_that_begin_at_once_agree_on_the_key(tmp_path: Path) -> None:
    rings = [Keyring({"main": OLD}, store=SqliteStore(tmp_path / "keys.db")) for _ in range(4)]
    for round in range(20):
        key = ThreadKey("acme", f"thread {round}")
        with ThreadPoolExecutor(len(rings)) as pool:
            waiting = [pool.submit(first_payload, ring, key) for ring in rings]
        assert all(opens(rings[0], future.result(), key) for future in waiting)
    for ring in rings:
        ring.close()


class TestRotation:
    """Another key comes first; the old one goes when nothing needs it."""

    def test_old_threads_are_read_and_new_ones_use_the_new_key(self, keys: MemoryStore) -> None:
        payload = (
            Keyring({"old": OLD}, store=keys).sealer(KEY, new=True).seal(b"body", PayloadPlace(1))
        )
        both = Keyring({"new": NEW, "old": OLD}, store=keys)
        assert opens(both, payload)
        newer = ThreadKey("acme", "newer")
        sealed = both.sealer(newer, new=True).seal(b"body", PayloadPlace(1))
        only_new = Keyring({"new": NEW}, store=keys)
        assert opens(only_new, sealed, newer)
        with pytest.raises(KeyNotFound, match="'old'"):
            opens(only_new, payload)

    def test_after_rotate_the_old_key_may_go(self, keys: MemoryStore) -> None:
        old = Keyring({"old": OLD}, store=keys)
        threads = [ThreadKey("acme", f"thread {number}") for number in range(5)]
        payloads = [old.sealer(key, new=True).seal(b"body", PayloadPlace(1)) for key in threads]
        both = Keyring({"new": NEW, "old": OLD}, store=keys)
        assert both.rotate() == 5
        assert both.rotate() == 0
        only_new = Keyring({"new": NEW}, store=keys)
        assert all(opens(only_new, *pair) for pair in zip(payloads, threads, strict=True))
        with pytest.raises(KeyNotFound, match="'new'"):
            opens(old, payloads[0], threads[0])

    def test_rotate_leaves_nothing_that_the_old_key_opens(self, keys: MemoryStore) -> None:
        Keyring({"old": OLD}, store=keys).sealer(KEY, new=True)
        Keyring({"new": NEW, "old": OLD}, store=keys).rotate()
        (info,) = keys.threads(TENANT)
        assert len(list(keys.history(info.key))) == 1

    def test_rotations_beside_each_other_and_erasures_do_no_harm(self, tmp_path: Path) -> None:
        rings = [
            Keyring({"new": NEW, "old": OLD}, store=SqliteStore(tmp_path / "keys.db"))
            for _ in range(3)
        ]
        old = Keyring({"old": OLD}, store=SqliteStore(tmp_path / "keys.db"))
        threads = [ThreadKey("acme", f"thread {number}") for number in range(30)]
        payloads = [old.sealer(key, new=True).seal(b"body", PayloadPlace(1)) for key in threads]
        with ThreadPoolExecutor(4) as pool:
            rotations = [pool.submit(ring.rotate) for ring in rings]
            erased = pool.submit(lambda: [old.erase(key) for key in threads[::3]])
            assert all(erased.result())
            assert sum(rotation.result() for rotation in rotations) <= 30
        rings[0].rotate()
        only_new = Keyring({"new": NEW}, store=SqliteStore(tmp_path / "keys.db"))
        for number, (payload, key) in enumerate(zip(payloads, threads, strict=True)):
            if number % 3:
                assert opens(only_new, payload, key)
            else:
                with pytest.raises(KeyNotFound, match="erased"):
                    opens(only_new, payload, key)
        for ring in (*rings, old, only_new):
            ring.close()


class TestErasure:
    def test_an_erased_key_opens_nothing_in_any_keyring(self, keys: MemoryStore) -> None:
        ring, other = (Keyring({"main": OLD}, store=keys) for _ in range(2))
        payload = ring.sealer(KEY, new=True).seal(b"body", PayloadPlace(1))
        assert opens(other, payload)
        assert ring.erase(KEY) is True
        assert ring.erase(KEY) is False
        with pytest.raises(KeyNotFound, match="erased"):
            opens(other, payload)

    def test_a_name_that_is_used_again_has_another_key(self, keys: MemoryStore) -> None:
        ring = Keyring({"main": OLD}, store=keys)
        payload = ring.sealer(KEY, new=True).seal(b"body", PayloadPlace(1))
        ring.erase(KEY)
        assert opens(ring, ring.sealer(KEY, new=True).seal(b"body", PayloadPlace(1)))
        with pytest.raises(KeyNotFound, match="has no key to decrypt"):
            opens(ring, payload)


class TestWhereKeysComeFrom:
    def test_from_the_environment(self, keys: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
        payload = (
            Keyring({"old": OLD}, store=keys).sealer(KEY, new=True).seal(b"body", PayloadPlace(1))
        )
        monkeypatch.setenv("MILECASTLE_KEYS", f"new={as_text(NEW)}, old={as_text(OLD)}")
        ring = Keyring.from_environment(store=keys)
        assert opens(ring, payload)
        assert ring.rotate() == 1

    def test_the_place_of_the_keys_from_the_environment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MILECASTLE_KEYS", f"new={as_text(NEW)}")
        with pytest.raises(InvalidRequest, match="MILECASTLE_KEY_STORE"):
            Keyring.from_environment()
        monkeypatch.setenv("MILECASTLE_KEY_STORE", f"file://{tmp_path}")
        ring = Keyring.from_environment()
        ring.sealer(KEY, new=True)
        ring.close()
        assert any(tmp_path.iterdir())

    def test_from_a_file(self, keys: MemoryStore, tmp_path: Path) -> None:
        payload = (
            Keyring({"old": OLD}, store=keys).sealer(KEY, new=True).seal(b"body", PayloadPlace(1))
        )
        file = tmp_path / "keys"
        file.write_text(f"# ours\n\nnew = {as_text(NEW)}\nold={as_text(OLD)}\n")
        ring = Keyring.from_file(file, store=keys)
        assert opens(ring, payload)
        assert ring.rotate() == 1

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("", "has no keys"),
            ("# nothing", "has no keys"),
            (as_text(NEW).rstrip("="), "not a new id in the form id=base64"),
            (f"={as_text(NEW)}", "not a new id in the form id=base64"),
            (f"a={as_text(NEW)}\na={as_text(OLD)}", "key 2 of"),
            ("a=secret-$%&", "'a' is not base64"),
            (f"a={as_text(NEW[:16])}", "'a' has 16 bytes; it must have 32"),
        ],
    )
    def test_a_file_that_says_no_keys_is_refused(
        self, keys: MemoryStore, tmp_path: Path, text: str, reason: str
    ) -> None:
        file = tmp_path / "keys"
        file.write_text(text)
        with pytest.raises(InvalidRequest, match=reason) as caught:
            Keyring.from_file(str(file), store=keys)
        assert "secret" not in str(caught.value)

    def test_a_keyring_without_keys_is_refused(self, keys: MemoryStore) -> None:
        with pytest.raises(InvalidRequest, match="needs a key"):
            Keyring({}, store=keys)

    def test_a_keyring_does_not_show_its_keys(self, keys: MemoryStore) -> None:
        ring = Keyring({"main": OLD}, store=keys)
        assert as_text(OLD) not in repr(ring)
        assert repr(OLD)[2:-1] not in repr(ring)


def test_without_the_package_the_extra_is_named(
    keys: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "milecastle.codec.encryption", raising=False)
    for name in [name for name in sys.modules if name.startswith("cryptography")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(InvalidRequest, match=r'pip install "milecastle\[encryption\]"'):
        Keyring({"main": OLD}, store=keys)


def test_the_package_is_not_imported_until_a_keyring_is_made() -> None:
    import subprocess

    code = "import sys, milecastle; milecastle.open_store('memory://'); print(*sys.modules)"
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert "milecastle.app.encryption.keyring" in done.stdout.split()
    assert "cryptography" not in done.stdout.split()
    assert "hashlib" not in done.stdout.split()


def test_something_that_is_not_a_key_is_corruption(keys: MemoryStore) -> None:
    ring = Keyring({"main": OLD}, store=keys)
    ring.sealer(KEY, new=True)
    (info,) = keys.threads(TENANT)
    plain = KeyStore(keys)
    plain.put(info.key, {"key_id": "main", "wrapped": "text"})
    with pytest.raises(Corrupted, match="not a key"):
        ring.sealer(KEY)


def test_a_key_moved_to_another_thread_does_not_open(keys: MemoryStore) -> None:
    ring = Keyring({"main": OLD}, store=keys)
    ring.sealer(KEY, new=True)
    (info,) = keys.threads(TENANT)
    plain = KeyStore(keys)
    stored = plain.get_latest(info.key)
    assert stored is not None
    other = ThreadKey("acme", "order-8")
    ring.sealer(other, new=True)
    target = next(i.key for i in keys.threads(TENANT) if i.key != info.key)
    plain.put(target, stored.state)
    with pytest.raises(EncryptionError, match="cannot be unwrapped"):
        ring.sealer(other)


def test_an_encrypting_codec_does_nothing_without_a_thread(keys: MemoryStore) -> None:
    codec = LogCodec(ValueCodec(TypeRegistry()), sealers=Keyring({"main": OLD}, store=keys))
    with pytest.raises(RuntimeError, match="for_thread"):
        codec.seal(b"", PayloadPlace(1))
    with pytest.raises(RuntimeError, match="for_thread"):
        codec.unseal(b"", PayloadPlace(1))
    with pytest.raises(RuntimeError, match="for_thread"):
        codec.digest(b"")
