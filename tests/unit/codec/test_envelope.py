"""Sealed payloads: any damage is found, nothing is unpacked beyond the limit."""

from __future__ import annotations

import random
import struct
import sys
import tracemalloc
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milecastle.codec import envelope
from milecastle.codec.bounds import MAX_BYTES
from milecastle.codec.envelope import (
    COMPRESS_ABOVE,
    FORMAT_VERSION,
    UNBOUND,
    PayloadPlace,
    frame_archive,
    frame_objects,
    seal,
    unseal,
)
from milecastle.errors import CodecError, FormatTooNew, NoObjects

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

NOISE = random.Random(1).randbytes(COMPRESS_ABOVE + 100)
WORDS = b"the quick brown fox " * 400
BODIES = [b"", b"\x00", b"a small update", WORDS, bytes(200)]


def frame(version: int, flags: int, body: bytes) -> bytes:
    checksum = crc32(body, crc32(bytes((version, flags))))
    return struct.pack(">BBI", version, flags, checksum) + body


@given(st.binary(max_size=300), st.sampled_from([1, 40, 400]))
def test_what_is_sealed_is_unsealed(body: bytes, times: int) -> None:
    assert unseal(seal(body * times)) == body * times


def test_an_empty_body_has_a_frame() -> None:
    """Fails if a payload that is only a header is called too short."""
    assert envelope.unframe(envelope.frame(0, b"")) == (0, b"")


def test_nothing_is_sealed_before_the_thread_is_known() -> None:
    """Fails if a codec that encrypts stores, reads or compares anything without a key."""
    with pytest.raises(RuntimeError, match="encrypts for one thread"):
        UNBOUND.seal(b"body", PayloadPlace(1))
    with pytest.raises(RuntimeError, match="decrypts for one thread"):
        UNBOUND.unseal(b"payload", PayloadPlace(1))
    with pytest.raises(RuntimeError, match="digests for one thread"):
        UNBOUND.digest(b"body")


def test_large_bodies_are_compressed_when_that_helps() -> None:
    assert len(seal(WORDS)) < len(WORDS) // 10
    assert seal(NOISE)[6:] == NOISE
    assert seal(b"a" * COMPRESS_ABOVE)[6:] == b"a" * COMPRESS_ABOVE
    assert len(seal(b"a" * (COMPRESS_ABOVE + 1))) < 100


def test_the_first_six_bytes_keep_their_form() -> None:
    assert seal(b"abc") == frame(1, 0, b"abc")
    assert FORMAT_VERSION == 1


@pytest.mark.parametrize("body", BODIES, ids=len)
def test_every_flipped_bit_is_found(body: bytes) -> None:
    payload = seal(body)
    for place in range(len(payload) * 8):
        damaged = bytearray(payload)
        damaged[place // 8] ^= 1 << place % 8
        with pytest.raises(CodecError):
            unseal(bytes(damaged))


@pytest.mark.parametrize("body", BODIES, ids=len)
def test_every_truncation_is_found(body: bytes) -> None:
    payload = seal(body)
    for length in range(len(payload)):
        with pytest.raises(CodecError):
            unseal(payload[:length])
    with pytest.raises(CodecError):
        unseal(payload + b"\x00")


def test_newer_version_is_distinguished_from_damage() -> None:
    with pytest.raises(FormatTooNew) as caught:
        unseal(frame(FORMAT_VERSION + 1, 7, b"whatever"))
    assert (caught.value.found, caught.value.supported) == (2, 1)


def test_payload_that_names_objects_is_not_read_without_them() -> None:
    with pytest.raises(NoObjects):
        unseal(frame_objects(b"whatever"))
    with pytest.raises(NoObjects):
        unseal(frame_archive(b"segments", seal(b"whatever")))


@pytest.mark.parametrize(("version", "flags"), [(0, 0), (1, 32), (1, 128), (1, 33)])
def test_a_version_or_flag_that_never_was_is_refused(version: int, flags: int) -> None:
    with pytest.raises(CodecError, match="no format"):
        unseal(frame(version, flags, zstd.compress(b"x")))


def test_bodies_that_do_not_decompress_are_refused() -> None:
    good = zstd.compress(WORDS)
    for body in (b"", b"junk", good[:-3], good + b"tail", good + good, good[:20]):
        with pytest.raises(CodecError):
            unseal(frame(1, 1, body))


def test_a_frame_that_does_not_say_its_size_is_refused() -> None:
    compressor = zstd.ZstdCompressor()
    body = compressor.compress(WORDS) + compressor.flush()
    assert not zstd.get_frame_info(body).decompressed_size
    with pytest.raises(CodecError):
        unseal(frame(1, 1, body))


def test_a_bomb_is_refused_without_much_memory() -> None:
    compressor = zstd.ZstdCompressor()
    compressor.set_pledged_input_size(MAX_BYTES + 1024 * 1024)
    chunk = bytes(1024 * 1024)
    parts = [compressor.compress(chunk) for _ in range(MAX_BYTES // len(chunk) + 1)]
    bomb = frame(1, 1, b"".join([*parts, compressor.flush()]))
    assert len(bomb) < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(CodecError, match="over the limit"):
            unseal(bomb)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_a_frame_that_lies_about_its_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single-segment frame whose header says 100 bytes and whose blocks hold more."""
    block = struct.pack("<I", (5000 << 3) | (1 << 1) | 1)[:3] + b"a"  # 5000 times the same byte
    body = b"\x28\xb5\x2f\xfd" + bytes([0x20, 100]) + block
    with pytest.raises(CodecError):
        unseal(frame(1, 1, body))
    monkeypatch.setattr(envelope, "MAX_BYTES", 50)
    with pytest.raises(CodecError, match="over the limit"):
        unseal(frame(1, 1, zstd.compress(b"a" * 51)))


def test_a_frame_that_wants_a_huge_window_is_refused() -> None:
    options = {
        int(zstd.CompressionParameter.window_log): 25,
        int(zstd.CompressionParameter.compression_level): 1,
    }
    compressor = zstd.ZstdCompressor(options=options)
    size = 40 * 1024 * 1024
    compressor.set_pledged_input_size(size)
    body = compressor.compress(bytes(size)) + compressor.flush()
    with pytest.raises(CodecError, match="cannot be decompressed"):
        unseal(frame(1, 1, body))
