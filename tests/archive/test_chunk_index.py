"""The check of a downloaded chunk: no changed bit and no missing byte is served."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.archive.chunk_index import INDEX_INTERVAL, Chunk, index_chunk
from broker.errors import CorruptBatch
from broker.records.batch import HEADER_SIZE, patch_base_offset, walk_batches
from tests.support.batches import NOW, batch
from tests.support.randomness import seeded

EPOCHS = ((3, 0), (5, 240))


def batches(count: int = 80, first: int = 100, size: int = 40, epochs: tuple[tuple[int, int], ...] = EPOCHS) -> bytes:
    """Batches of three records each, from offset `first` on; the timestamps go up and down."""
    found = bytearray()
    for number in range(count):
        offset = first + 3 * number
        one = bytearray(batch(*[b"x" * size] * 3, timestamp=NOW + (number * 7) % 50))
        patch_base_offset(one, 0, offset, max(epoch for epoch, start in epochs if start <= offset))
        found += one
    return bytes(found)


def chunk_of(data: bytes, first: int = 100, end: int = 340) -> Chunk:
    return Chunk("a/object.log", 4096, len(data), first, end, EPOCHS)


def test_every_changed_bit_is_noticed() -> None:
    """The CRC of a batch covers neither its base offset nor its leader epoch."""
    data = batches(5, 228)
    chunk = chunk_of(data, 228, 243)
    assert index_chunk(chunk, data).end == len(data)
    heads = [(position, position + HEADER_SIZE) for position, _ in walk_batches(data)]
    bodies = seeded(3).sample(range(len(data)), 40)
    places = [*(at for head in heads for at in range(*head)), *bodies]
    for at in places:
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            with pytest.raises(CorruptBatch):
                index_chunk(chunk, bytes(flipped))


@given(st.binary(max_size=300), st.integers(0, 400), st.booleans())
def test_any_other_bytes_are_refused(noise: bytes, at: int, whole: bool) -> None:
    data = bytearray(batches(3, 228))
    if whole:
        data[at : at + len(noise)] = noise
    else:
        data = bytearray(noise)
    chunk = chunk_of(bytes(data), 228, 237)
    if data != batches(3, 228):
        with pytest.raises(CorruptBatch):
            index_chunk(chunk, bytes(data))


def test_missing_bytes_and_batches_are_noticed() -> None:
    data = batches()
    starts = [position for position, _ in walk_batches(data)]
    for broken in (data[:-1], data[: starts[-1]], data + b"\0", data[starts[1] :], b"", data[1:] + b"\0"):
        with pytest.raises(CorruptBatch):
            index_chunk(chunk_of(data), broken)
    exchanged = data[starts[1] : starts[2]] + data[: starts[1]] + data[starts[2] :]
    with pytest.raises(CorruptBatch, match="should follow"):
        index_chunk(chunk_of(data), exchanged)


def test_what_a_truncation_has_cut_off_does_not_count() -> None:
    data = batches()
    starts = [position for position, _ in walk_batches(data)]
    cut = index_chunk(chunk_of(data, end=100 + 3 * 10), data)
    assert cut.end == starts[10]
    assert index_chunk(chunk_of(data[:-7], end=130), data[:-7]) == cut, "the object may go on behind the chunk"
    for end in (129, 131):
        with pytest.raises(CorruptBatch, match="do not end at offset"):
            index_chunk(chunk_of(data, end=end), data)


def test_a_gap_that_compaction_has_left_is_no_damage() -> None:
    data = batches(2) + batches(3, 200)
    assert index_chunk(chunk_of(data, 90), data).end == len(data)


def test_look_ups_end_near_what_is_looked_for() -> None:
    data = batches(900, size=400, epochs=((3, 0),))
    index = index_chunk(chunk_of(data, end=100 + 2700)._replace(epochs=((3, 0),)), data)
    assert len(index.positions) == len(data) // INDEX_INTERVAL + 1
    known = list(walk_batches(data))
    newest = -1
    for position, header in known:
        for offset in range(header.base_offset, header.next_offset):
            assert position - INDEX_INTERVAL < index.position_of(offset) <= position
        assert position - INDEX_INTERVAL < index.batch_before(position + 1) <= position
        after = index.offset_after(position)
        assert after is None or after in range(header.base_offset, header.base_offset + 3 * 80)
        if header.max_timestamp > newest:
            newest = header.max_timestamp
            begin = index.position_for_timestamp(newest)
            assert begin is not None
            assert position - INDEX_INTERVAL < begin <= position
    assert index.position_for_timestamp(newest + 1) is None
    assert index.position_for_timestamp(0) == 0
