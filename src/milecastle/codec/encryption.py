"""Encryption of payloads and of the keys for them: AES-256-GCM. Needs the extra `encryption`.

Rules:

- A thread has a random key of its own. Who does not have it has nothing of the thread.
- Bytes open only where they stood: tenant, thread, seq, kind and task are authenticated with them.
- First compressed, then encrypted; what was decrypted is decompressed within the usual bound.
- A nonce is 12 random bytes, new for each message. That is sound up to 2**32 messages under one
  key: entries and task results for a thread's key, wrapped keys for a key of the keyring.

A sealed payload is the envelope's header, the id of the thread's key, the nonce, the ciphertext.
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
    compress,
    decompress,
    frame,
    unframe,
)
from milecastle.errors import EncryptionError, KeyNotFound, PlaintextRefused
from milecastle.model.keys import ThreadKey

__all__ = ["KEY_BYTES", "KeyWrapper", "ThreadSealer", "WrappedKey", "new_thread_key"]

KEY_BYTES: Final = 32

_ID_BYTES: Final = 8
_NONCE_BYTES: Final = 12
_START: Final = _ID_BYTES + _NONCE_BYTES
_PLACE: Final = struct.Struct(">BBQB")
_RESULT: Final = 255
"""Stands for a task result where an entry has its kind."""

WrappedKey = tuple[str, bytes]
"""The id of the key of the keyring that wraps it, and the wrapped bytes."""


def new_thread_key() -> bytes:
    """The key of a thread that begins: an id, a key to encrypt with and one for digests."""
    return os.urandom(_ID_BYTES + 2 * KEY_BYTES)


class KeyWrapper:
    """Wraps and unwraps the keys of threads with the keys of a keyring; the first one wraps."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        self.current = next(iter(keys))

    def wrap(self, thread_key: bytes, address: str) -> WrappedKey:
        """The key of the thread at this address, for storing."""
        nonce = os.urandom(_NONCE_BYTES)
        cipher = self._ciphers[self.current]
        return self.current, nonce + cipher.encrypt(nonce, thread_key, _purpose(address))

    def unwrap(self, wrapped: WrappedKey, address: str) -> bytes:
        """The key that was wrapped for this address.

        Raises:
            KeyNotFound: the keyring does not have the key that it was wrapped with.
            EncryptionError: it has another one under that id, or the bytes were changed.
        """
        key_id, data = wrapped
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise KeyNotFound(
                f"a thread's key is wrapped with '{key_id}', which the keyring does not have "
                f"(it has {', '.join(self._ciphers)}): add it until rotate() was called"
            )
        try:
            return cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], _purpose(address))
        except (InvalidTag, ValueError):
            raise EncryptionError(
                f"a thread's key does not open with '{key_id}': the keyring has another key "
                "under this id than the one it was wrapped with, or the stored key was changed"
            ) from None


class ThreadSealer:
    """Seals and unseals the payloads of one thread. Without a key it opens and seals nothing."""

    def __init__(self, key: ThreadKey, thread_key: bytes | None) -> None:
        self._thread = key.thread
        self._id = thread_key[:_ID_BYTES] if thread_key else b""
        self._digest_key = thread_key[-KEY_BYTES:] if thread_key else b""
        self._cipher = AESGCM(thread_key[_ID_BYTES:-KEY_BYTES]) if thread_key else None
        self._owner = b"milecastle payload\0" + _framed(key.tenant) + _framed(key.thread) + self._id

    def seal(self, body: bytes, seq: int, kind: int = 0, task: str | None = None) -> bytes:
        """Compress and encrypt ``body`` for its place."""
        if self._cipher is None:
            raise self._missing(seq)
        flags, body = compress(body)
        flags |= ENCRYPTED
        nonce = os.urandom(_NONCE_BYTES)
        data = self._cipher.encrypt(nonce, body, self._place(flags, seq, kind, task))
        return frame(flags, self._id + nonce + data)

    def unseal(self, payload: bytes, seq: int, kind: int = 0, task: str | None = None) -> bytes:
        """The body that was sealed for this place.

        Raises:
            CodecError: the payload is damaged.
            PlaintextRefused: it is not encrypted.
            KeyNotFound: the key that it was sealed with is not there any more.
            EncryptionError: it does not open here.
        """
        flags, data = unframe(payload)
        if not flags & ENCRYPTED:
            raise PlaintextRefused(
                f"the entry with seq {seq} of thread '{self._thread}' is not encrypted and must "
                "be: it was written without a keyring; read it without one and write it anew",
                thread=self._thread,
                seq=seq,
            )
        if self._cipher is None or data[:_ID_BYTES] != self._id:
            raise self._missing(seq)
        nonce = data[_ID_BYTES:_START]
        try:
            body = self._cipher.decrypt(nonce, data[_START:], self._place(flags, seq, kind, task))
        except (InvalidTag, ValueError):
            raise EncryptionError(
                f"the entry with seq {seq} of thread '{self._thread}' does not open: it was "
                "written for another place, or somebody changed it; restore it from a copy",
                thread=self._thread,
                seq=seq,
            ) from None
        return decompress(body) if flags & COMPRESSED else body

    def digest(self, body: bytes) -> str:
        """Tells two bodies apart, and tells nothing to who does not have the key."""
        if self._cipher is None:
            raise self._missing(0)
        return hmac.digest(self._digest_key, body, "sha256")[:16].hex()

    def _place(self, flags: int, seq: int, kind: int, task: str | None) -> bytes:
        if task is None:
            return self._owner + _PLACE.pack(FORMAT_VERSION, flags, seq, kind)
        name = task.encode("utf-8", "surrogatepass")
        return self._owner + _PLACE.pack(FORMAT_VERSION, flags, seq, _RESULT) + name

    def _missing(self, seq: int) -> KeyNotFound:
        return KeyNotFound(
            f"thread '{self._thread}' does not have the key that this was encrypted with: it was "
            "erased, and the thread with it; or this stood in another thread, or was never "
            "encrypted; or the keyring names another store of keys",
            thread=self._thread,
            seq=seq,
        )


def _framed(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(4) + data


def _purpose(address: str) -> bytes:
    return b"milecastle thread key\0" + address.encode()
