"""broker/records/compression.py"""

from __future__ import annotations

import gzip
import struct
import sys
import tracemalloc
import zlib

import lz4.frame
import pyarrow
import pytest
import snappy
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.codec import snappy_decode, snappy_encode

from broker.errors import ConfigError, CorruptBatch
from broker.records.compression import (
    STEP_BYTES,
    Codec,
    GrowsTooLarge,
    compress,
    compressed_parts,
    decompress,
    in_steps,
    plain_pieces,
    starts_slowly,
)

CODECS = [codec for codec in Codec if codec]
TEXT = b"".join(b'{"id":%d,"name":"alpha bravo"}' % number for number in range(8000))  # blocks in any codec

plain_bytes = st.one_of(
    st.binary(max_size=200), st.builds(lambda piece, times: piece * times, st.binary(max_size=30), st.integers(0, 9000))
)


def zstd_without_size(data: bytes) -> bytes:
    writer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return bytes(writer.compress(data) + writer.flush())


# What other clients write: every shape a codec's data may have on the wire.
FOREIGN = {
    "gzip of Java, two members": (Codec.GZIP, gzip.compress(TEXT[:999]) + gzip.compress(TEXT[999:])),
    "snappy block of librdkafka": (Codec.SNAPPY, snappy.compress(TEXT)),
    "snappy of Java in xerial framing": (Codec.SNAPPY, snappy_encode(TEXT, xerial_compatible=True)),
    "lz4 linked blocks, with size and checksums": (
        Codec.LZ4,
        lz4.frame.compress(TEXT, block_linked=True, content_checksum=True, block_checksum=True),
    ),
    "lz4 independent blocks, without size": (Codec.LZ4, lz4.frame.compress(TEXT, block_linked=False, store_size=False)),
    "lz4 in one linked block, with size": (Codec.LZ4, lz4.frame.compress(TEXT, block_size=7)),
    "lz4 frames behind each other": (Codec.LZ4, lz4.frame.compress(TEXT[:99]) + lz4.frame.compress(TEXT[99:])),
    "lz4 blocks of 4 MiB": (Codec.LZ4, lz4.frame.compress(TEXT, block_size=7, block_linked=False)),
    "zstd frames behind each other": (Codec.ZSTD, zstandard.compress(TEXT[:99]) + zstandard.compress(TEXT[99:])),
    "zstd with size": (Codec.ZSTD, zstandard.compress(TEXT)),
    "zstd of Java, without size": (Codec.ZSTD, zstd_without_size(TEXT)),
}


@pytest.mark.parametrize("codec", Codec)
@given(plain_bytes)
def test_what_is_compressed_comes_back(codec: Codec, data: bytes) -> None:
    assert bytes(decompress(codec, compress(codec, memoryview(data)))) == data


@pytest.mark.parametrize(("codec", "data"), FOREIGN.values(), ids=FOREIGN)
def test_other_clients_data_is_read(codec: Codec, data: bytes) -> None:
    assert decompress(codec, memoryview(data)) == TEXT


@pytest.mark.parametrize(("codec", "data"), FOREIGN.values(), ids=FOREIGN)
def test_the_pieces_are_the_whole(codec: Codec, data: bytes) -> None:
    pieces = [bytes(piece) for piece in plain_pieces(codec, data)]
    assert b"".join(pieces) == TEXT
    with pytest.raises(GrowsTooLarge):
        list(plain_pieces(codec, data, len(TEXT) - 1))


@pytest.mark.parametrize("codec", CODECS)
def test_pieces_of_a_bomb_take_little_memory(codec: Codec) -> None:
    bomb, size = bytes(compress(codec, bytes(30 << 20))), 0
    list(plain_pieces(codec, compress(codec, b"warm")))
    tracemalloc.start()
    before = pyarrow.total_allocated_bytes()
    for piece in plain_pieces(codec, bomb):
        size += len(piece)
        assert pyarrow.total_allocated_bytes() - before < 2 << 20
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (size, most < 2 << 20) == (30 << 20, True)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("size", [0, 1, STEP_BYTES, STEP_BYTES + 1, 5 * STEP_BYTES])
def test_what_is_compressed_step_by_step_is_read_by_all(codec: Codec, size: int) -> None:
    data = (TEXT * 3)[:size]
    pieces = (memoryview(data)[start : start + 1000] for start in range(0, size, 1000))
    compressed = b"".join(compressed_parts(codec, in_steps(pieces)))
    assert decompress(codec, compressed) == data
    reader = {Codec.GZIP: gzip.decompress, Codec.LZ4: lz4.frame.decompress}.get(codec)
    assert reader is None or reader(compressed) == data
    if codec is Codec.ZSTD:
        assert zstandard.ZstdDecompressor().decompressobj().decompress(compressed) == data
    if codec is Codec.SNAPPY and data:
        assert snappy_decode(compressed) == data


@pytest.mark.parametrize("data", [b"", b"x", TEXT])
def test_other_clients_read_ours(data: bytes) -> None:
    assert gzip.decompress(compress(Codec.GZIP, data)) == data
    assert lz4.frame.decompress(compress(Codec.LZ4, data)) == data
    assert zstandard.decompress(compress(Codec.ZSTD, data)) == data
    if data:
        assert snappy_decode(bytes(compress(Codec.SNAPPY, data))) == data


def test_lz4_blocks_are_independent_as_java_demands() -> None:
    info = lz4.frame.get_frame_info(compress(Codec.LZ4, TEXT))
    assert (info["block_linked"], info["block_size"]) == (False, 65536)


@pytest.mark.parametrize("codec", CODECS)
def test_data_that_cannot_be_compressed_does_not_grow_much(codec: Codec) -> None:
    noise = zstandard.compress(bytes(range(256)) * 3) + zlib.compress(TEXT)
    assert len(compress(codec, noise)) < len(noise) + 100


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_refused_before_it_explodes(codec: Codec) -> None:
    bomb = compress(codec, bytes(3_000_000))
    assert len(bomb) < 200_000
    assert decompress(codec, bomb, limit=3_000_000) == bytes(3_000_000)
    with pytest.raises(CorruptBatch, match="beyond 2999999 bytes"):
        decompress(codec, bomb, limit=2_999_999)


def test_a_snappy_block_cannot_claim_more_than_it_could_hold() -> None:
    with pytest.raises(CorruptBatch, match="claims to hold"):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\x7f" + bytes(20))


def test_a_snappy_frame_cannot_claim_more_than_there_is() -> None:
    framed = bytes(compress(Codec.SNAPPY, b"x" * 10))
    for claimed in (-1, 1 << 30):
        with pytest.raises(CorruptBatch, match="does not fit"):
            decompress(Codec.SNAPPY, framed[:16] + struct.pack(">i", claimed) + framed[20:])


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=150)
@given(data=st.data())
def test_cut_data_never_passes_for_whole(codec: Codec, data: st.DataObject) -> None:
    whole = bytes(compress(codec, TEXT))
    cut = data.draw(st.integers(0, len(whole) - 1))
    try:
        assert len(decompress(codec, whole[:cut])) < len(TEXT)
    except CorruptBatch:
        pass


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=300)
@given(data=st.data())
def test_changed_data_is_corrupt_or_stays_within_the_limit(codec: Codec, data: st.DataObject) -> None:
    changed = bytearray(compress(codec, TEXT[:5000]))
    for position in data.draw(st.lists(st.integers(0, len(changed) - 1), min_size=1, max_size=3)):
        changed[position] = data.draw(st.integers(0, 255))
    try:
        assert len(decompress(codec, changed, limit=100_000)) <= 100_000
    except CorruptBatch:
        pass


def test_an_unknown_codec_is_corrupt() -> None:
    with pytest.raises(CorruptBatch, match="codec 6"):
        decompress(6, b"")
    with pytest.raises(ConfigError, match="codec 6"):
        compress(6, b"")


def test_codecs_have_kafkas_names() -> None:
    assert [Codec.from_name(name) for name in ("none", "gzip", "snappy", "lz4", " ZSTD")] == list(Codec)
    with pytest.raises(ConfigError, match="'brotli' is not known: use one of none, gzip, snappy, lz4, zstd"):
        Codec.from_name("brotli")


@pytest.mark.parametrize(("level", "plain", "most"), [(22, 3 * STEP_BYTES, 3 * STEP_BYTES), (22, 9 << 20, 8 << 20)])
def test_zstd_takes_no_more_memory_than_a_batch_is_large(level: int, plain: int, most: int) -> None:
    """The window tells: level 22 takes one of 128 MiB for what it is not told the size of, and 780 MiB in all."""
    pieces = in_steps([bytes(plain)])
    frame = zstandard.get_frame_parameters(b"".join(compressed_parts(Codec.ZSTD, pieces, level)))
    assert frame.window_size <= most


@pytest.mark.parametrize("level", [-50, 1, 3, 19, 22])
@pytest.mark.parametrize("size", [0, 1, STEP_BYTES, STEP_BYTES + 1, 5 * STEP_BYTES, 9 << 20])
def test_every_zstd_frame_tells_its_plain_size(level: int, size: int) -> None:
    plain = (TEXT * (size // len(TEXT) + 1))[:size] if size < 1 << 20 else bytes(size)
    frames = [
        b"".join(compressed_parts(Codec.ZSTD, in_steps([memoryview(plain)]), level)),
        bytes(compress(Codec.ZSTD, plain, level)),
    ]
    for frame in frames:
        assert zstandard.get_frame_parameters(frame).content_size == size
        assert zstandard.decompress(frame) == plain
        assert decompress(Codec.ZSTD, frame) == plain


def test_what_has_to_load_cramjam_is_known_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first compressed batch of a broker is checked in a thread, which may import."""
    usual = compress(Codec.LZ4, TEXT)
    monkeypatch.delitem(sys.modules, "cramjam")
    assert starts_slowly(Codec.LZ4, usual)
    assert [starts_slowly(codec) for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY)] == [False, False, True]


def test_what_has_to_load_pyarrow_is_known_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes some tenths of a second, which an event loop has not."""
    usual = compress(Codec.LZ4, TEXT)
    linked = lz4.frame.compress(TEXT, block_linked=True)
    summed = lz4.frame.compress(TEXT, block_linked=False, content_checksum=True)
    assert not starts_slowly(Codec.LZ4, linked)
    monkeypatch.delitem(sys.modules, "pyarrow")
    assert [starts_slowly(Codec.LZ4, frame) for frame in (usual, linked, summed)] == [False, True, True]
    assert [starts_slowly(codec) for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)] == [False] * 3 + [True]
