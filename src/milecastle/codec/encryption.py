"""Encryption for payloads and their keys: AES-256-GCM. Needs the extra `encryption`.

Rules:

- Each thread has its own random key. Without it, nothing of the thread can be read.
- Bytes can be decrypted only at their position. Authenticated with them are tenant, thread and
  life; of an entry seq, kind, base_seq, parent and the newest rollup or snapshot before it; of a
  task result seq and task. So nothing in a log's middle can be left out, moved or replaced.
- A *life* of a thread starts with its first entry and ends when it is deleted: 8 random bytes, in
  each payload. A sealer handles only one life.
- A file's content in object storage is encrypted with its own key, which is in the state
  and so is encrypted with that of the thread.
- First compressed, then encrypted; decrypted bytes are decompressed within the usual limit.
- A nonce is 12 random bytes, new for each message. That is safe for up to 2**32 messages under one
  key: entries and task results for a thread's key, wrapped keys for a key of the keyring.

A sealed payload is the envelope's header, the id of the thread's key, the life, the nonce, the
ciphertext.
"""

from __future__ import annotations

import hmac
import os
import struct
from collections.abc import Mapping
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from milecastle.codec.envelope import (
    COMPRESSED,
    ENCRYPTED,
    FORMAT_VERSION,
    PayloadPlace,
    compress,
    decompress,
    frame,
    unframe,
)
from milecastle.errors import EncryptionError, KeyNotFound, PlaintextRefused
from milecastle.model.checkpoint import SNAPSHOT
from milecastle.model.keys import ThreadKey

KEY_BYTES: Final = 32

_ID_BYTES: Final = 8
_LIFE_BYTES: Final = 8
_NONCE_BYTES: Final = 12
_NONCE: Final = _ID_BYTES + _LIFE_BYTES
_DATA: Final = _NONCE + _NONCE_BYTES
"""Where a sealed payload's nonce and its ciphertext begin."""

_NO_LIFE: Final = bytes(_LIFE_BYTES)
_PLACE: Final = struct.Struct(">BBQB")
_LINKS: Final = struct.Struct(">QQ")
_RESULT: Final = 255
"""Marks a task result where an entry has its kind."""

_FILE_PURPOSE: Final = b"milecastle file\0"

WrappedKey = tuple[str, bytes]
"""The id of the key of the keyring that wraps it, and the wrapped bytes."""


def new_thread_key() -> bytes:
    return os.urandom(_ID_BYTES + 2 * KEY_BYTES)


class KeyWrapper:
    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        self.current = next(iter(keys))

    def wrap(self, thread_key: bytes, address: str) -> WrappedKey:
        nonce = os.urandom(_NONCE_BYTES)
        cipher = self._ciphers[self.current]
        return self.current, nonce + cipher.encrypt(nonce, thread_key, _purpose(address))

    def unwrap(self, wrapped: WrappedKey, address: str) -> bytes:
        """The key wrapped for this address.

        Raises:
            KeyNotFound: the keyring does not have the key it was wrapped with.
            EncryptionError: it has a different key under that id, or the bytes were changed.
        """
        key_id, data = wrapped
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise KeyNotFound(
                f"a thread's key is wrapped with '{key_id}', which the keyring does not have "
                f"(it has {', '.join(self._ciphers)}): add that key until rotate() has been called"
            )
        try:
            return cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], _purpose(address))
        except (InvalidTag, ValueError):
            raise EncryptionError(
                f"a thread's key cannot be unwrapped with '{key_id}': the keyring has a different "
                "key under this id than the one used to wrap it, or the stored key was changed"
            ) from None


class FileCipher:
    """Encrypts one file's chunks with its own key: each for its number.

    The number is the nonce, so each is used once for a key.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise EncryptionError(f"the key of a file has {KEY_BYTES} bytes, not {len(key)}")
        self._cipher = AESGCM(key)

    def seal(self, number: int, chunk: bytes) -> bytes:
        return self._cipher.encrypt(
            number.to_bytes(_NONCE_BYTES), frame(*compress(chunk)), _FILE_PURPOSE
        )

    def unseal(self, number: int, data: bytes) -> bytes:
        try:
            found = self._cipher.decrypt(number.to_bytes(_NONCE_BYTES), data, _FILE_PURPOSE)
        except (InvalidTag, ValueError):
            raise EncryptionError("a file cannot be decrypted with the key in its state") from None
        flags, body = unframe(found)
        return decompress(body) if flags & COMPRESSED else body


class ThreadSealer:
    """Encrypts and decrypts payloads for one life of a thread. Without a key it does neither.

    ``new`` means a life starts. Otherwise it is the first opened payload's, and nothing can be
    sealed before.
    """

    def __init__(self, key: ThreadKey, thread_key: bytes | None, *, new: bool = False) -> None:
        self._thread = key.thread
        self._life = os.urandom(_LIFE_BYTES) if new else None
        self._id = thread_key[:_ID_BYTES] if thread_key else b""
        self._digest_key = thread_key[-KEY_BYTES:] if thread_key else b""
        self._cipher = AESGCM(thread_key[_ID_BYTES:-KEY_BYTES]) if thread_key else None
        self._owner = b"milecastle payload\0" + _framed(key.tenant) + _framed(key.thread) + self._id

    def seal(self, body: bytes, place: PayloadPlace) -> bytes:
        if self._cipher is None:
            raise self._missing(place.seq)
        life = self._life
        if life is None:
            if place.seq:
                raise RuntimeError(
                    "an entry of the thread must be decrypted before one is encrypted"
                )
            life = _NO_LIFE  # a cached result: it belongs to the thread's key but to no life
        flags, body = compress(body)
        flags |= ENCRYPTED
        nonce = os.urandom(_NONCE_BYTES)
        data = self._cipher.encrypt(nonce, body, self._bound(flags, place, life))
        return frame(flags, self._id + life + nonce + data)

    def unseal(self, payload: bytes, place: PayloadPlace) -> bytes:
        """The body sealed for this position.

        Raises: CodecError: the payload is damaged. PlaintextRefused: it is not encrypted.
        KeyNotFound: the key it was sealed with no longer exists. EncryptionError: it cannot be
        decrypted here.
        """
        seq = place.seq
        flags, data = unframe(payload)
        if not flags & ENCRYPTED:
            raise PlaintextRefused(
                f"the entry with seq {seq} of thread '{self._thread}' is not encrypted but must "
                "be: it was written without a keyring; read it without one and write it again",
                thread=self._thread,
                seq=seq,
            )
        if self._cipher is None or data[:_ID_BYTES] != self._id:
            raise self._missing(seq)
        life, nonce, data = data[_ID_BYTES:_NONCE], data[_NONCE:_DATA], data[_DATA:]
        try:
            body = self._cipher.decrypt(nonce, data, self._bound(flags, place, life))
        except (InvalidTag, ValueError):
            raise self._refused(seq, "written for another position, or modified") from None
        if seq and self._life is None:
            self._life = life
        elif seq and life != self._life:
            raise self._refused(seq, "written for an earlier thread of the same name, now deleted")
        return decompress(body) if flags & COMPRESSED else body

    def digest(self, body: bytes) -> str:
        if self._cipher is None:
            raise self._missing(0)
        return hmac.digest(self._digest_key, body, "sha256")[:16].hex()

    def _bound(self, flags: int, place: PayloadPlace, life: bytes) -> bytes:
        if place.task is not None:
            packed = _PLACE.pack(FORMAT_VERSION, flags, place.seq, _RESULT)
            return self._owner + packed + _bytes_of(place.task) + life
        packed = _PLACE.pack(FORMAT_VERSION, flags, place.seq, place.kind)
        links = _LINKS.pack(place.base_seq, 0 if place.kind == SNAPSHOT else place.rolled)
        parent = b"" if place.parent_id is None else b"\1" + _bytes_of(place.parent_id)
        return self._owner + packed + life + links + parent

    def _refused(self, seq: int, why: str) -> EncryptionError:
        return EncryptionError(
            f"the entry with seq {seq} of thread '{self._thread}' cannot be decrypted: it was "
            f"{why}; restore the thread from a copy",
            thread=self._thread,
            seq=seq,
        )

    def _missing(self, seq: int) -> KeyNotFound:
        return KeyNotFound(
            f"thread '{self._thread}' has no key to decrypt this: the key was erased with the "
            "thread, the data belongs to another thread or was never encrypted, or the keyring "
            "uses another key store",
            thread=self._thread,
            seq=seq,
        )


def _bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _framed(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(4) + data


def _purpose(address: str) -> bytes:
    return b"milecastle thread key\0" + address.encode()
