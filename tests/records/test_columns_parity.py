"""The column codec against its slow reference and other clients' parsers, on random and on hostile batches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import CorruptBatch
from broker.records import native
from broker.records.batch import HEADER_SIZE, LENGTH_END, parse_header, verify_batch, walk_batches
from broker.records.builder import BatchBuilder
from broker.records.column_decoder import FIELDS, HEADERS_TYPE
from broker.records.columns import Columns, decode_columns, encode_columns
from broker.records.compression import Codec
from broker.records.control import AbortedTransactions, ControlType, end_transaction_marker
from broker.records.record import Record, decode_batch
from broker.records.record_sections import NO_LIMIT
from tests.support.codec_choice import BUILT, in_turn
from tests.support.record_batches import NOW, PARSERS, Row, build, columns_of, follow, parse, rows

# --- The column codec in plain Python, record by record: slow, but obviously right; tests compare the other with it.

Buffer = bytes | bytearray | memoryview


def decode_reference(
    chunk: Buffer,
    *,
    fields: Collection[str] = FIELDS,
    low: int = 0,
    high: int = NO_LIMIT,
    check_crcs: bool = True,
    aborted: Iterable[tuple[int, int]] = (),
) -> Columns:
    """What `columns.decode_columns` promises. Raises CorruptBatch."""
    transactions = AbortedTransactions(aborted)
    records: list[Record] = []
    next_offset, last_offset = low, -1
    for position, header in walk_batches(chunk):
        if not last_offset < header.base_offset <= header.last_offset < NO_LIMIT:
            raise CorruptBatch(f"offset {header.base_offset} follows {last_offset}")
        if header.base_offset >= high:
            break
        last_offset = header.last_offset
        if last_offset >= low or header.is_control:
            verify_batch(chunk, position, header, check_crc=check_crcs)
            dropped = transactions.drops(chunk, position, header)
            if header.record_count and not header.is_control and not dropped:
                records += decode_batch(chunk, position, header)
        next_offset = max(low, header.next_offset)
    return _to_columns([record for record in records if low <= record.offset < high], fields, next_offset)


def _to_columns(records: list[Record], fields: Collection[str], next_offset: int) -> Columns:
    pairs = [[{"key": key, "value": value} for key, value in record.headers] or None for record in records]
    try:
        timestamp = pa.array([record.timestamp for record in records], pa.int64())
    except (OverflowError, pa.ArrowInvalid) as error:
        raise CorruptBatch(f"a timestamp does not fit in 64 bits: {error}") from error
    columns = {
        "key": pa.array([record.key for record in records], pa.binary()),
        "value": pa.array([record.value for record in records], pa.binary()),
        "offset": pa.array([record.offset for record in records], pa.int64()),
        "timestamp": timestamp,
        "timestamp_type": pa.array([record.timestamp_type for record in records], pa.int32()),
        "headers": pa.array(pairs, HEADERS_TYPE),
    }
    asked = {name: column if name in fields else None for name, column in columns.items()}
    return Columns(**asked, num_rows=len(records), next_offset=next_offset, exhausted=True)


def encode_reference(
    records: Sequence[Record],
    batch_rows: Sequence[int],
    *,
    codec: int = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> list[bytes]:
    """Batches of as many records each as `batch_rows` says, every one with base offset 0."""
    batches: list[bytes] = []
    row = 0
    for count in batch_rows:
        builder = BatchBuilder(
            codec=codec,
            max_bytes=1 << 31,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence if base_sequence < 0 else (base_sequence + row) & 0x7FFFFFFF,
            transactional=transactional,
        )
        for record in records[row : row + count]:
            builder.append(record.timestamp, record.key, record.value, record.headers)
        batches.append(builder.build())
        row += count
    return batches


# --- the tests

needs_kernel_crc = pytest.mark.skipif(
    not (BUILT and native.crc_in_kernel()), reason="the kernel was not built, or the processor has no CRC-32C"
)

PRODUCERS = (1, 2)

fields_asked_for = st.just(FIELDS) | st.just(FIELDS - {"headers"}) | st.frozensets(st.sampled_from(sorted(FIELDS)))


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """A stretch of a log: batches of any codec, some transactional, markers between them, gaps."""
    batches = []
    for _ in range(draw(st.integers(1, 6))):
        producer = draw(st.sampled_from([-1, *PRODUCERS]))
        if producer > 0 and draw(st.booleans()):
            batches.append(end_transaction_marker(producer, 0, draw(st.sampled_from(ControlType)), 0, NOW))
        options = {"producer_id": producer, "producer_epoch": 0, "transactional": producer > 0}
        batches.append(build(draw(rows), codec=draw(st.sampled_from(Codec)), **options))
    return follow(batches, base_offset=draw(st.sampled_from([0, 1000, 1 << 40])), gap=draw(st.integers(0, 3)))


def assert_equal(fast: Columns, slow: Columns) -> None:
    assert fast.num_rows == slow.num_rows
    for name in sorted(FIELDS):
        column, expected = getattr(fast, name), getattr(slow, name)
        if column is not None:
            column.validate(full=True)
        assert column == expected, name
    assert (fast.next_offset, fast.exhausted) == (slow.next_offset, slow.exhausted)


@settings(max_examples=200)
@given(logs(), fields_asked_for, st.data())
def test_decoding_equals_the_reference(log: bytes, fields: frozenset[str], data: st.DataObject) -> None:
    offsets = [header.base_offset for _, header in walk_batches(log)]
    end = max(header.next_offset for _, header in walk_batches(log))
    low = data.draw(st.just(0) | st.integers(offsets[0], end))
    high = data.draw(st.just(1 << 62) | st.integers(low, end + 1))
    aborted = [(producer, data.draw(st.sampled_from(offsets))) for producer in PRODUCERS if data.draw(st.booleans())]
    cut = len(log) - data.draw(st.integers(0, 100))
    consume = data.draw(st.booleans())
    slow = decode_reference(log[:cut], fields=fields, low=low, high=high, aborted=aborted)
    for _ in in_turn():
        chunk = bytearray(log[:cut])
        fast = decode_columns(chunk, fields=fields, low=low, high=high, aborted=aborted, consume=consume)
        assert_equal(fast, slow)
        assert consume or chunk == log[:cut]


@needs_kernel_crc
@pytest.mark.parametrize("headers", [None, (), (("h", b"x" * 40), ("", None), ("last", b""))])
def test_values_of_a_chunk_that_is_given_away_stay_in_it(headers: tuple[tuple[str, bytes | None], ...] | None) -> None:
    """No second copy of them: all other columns are small."""
    wanted, given = headers is not None, headers or ()
    log = follow(
        [build([Row(NOW, b"k", b"v" * size, given), Row(NOW, None, None)]) for size in (1, 40, 300, 0, 70_000)], gap=2
    )
    expected = decode_reference(log, fields=FIELDS if wanted else FIELDS - {"headers"})
    chunk = bytearray(log)
    columns = decode_columns(memoryview(chunk), consume=True, headers=wanted)
    assert_equal(columns, expected)
    held, data = pa.py_buffer(chunk), columns.value.buffers()[2]
    assert held.address <= data.address < data.address + data.size <= held.address + held.size
    kept = decode_columns(log, consume=True, headers=wanted)  # bytes may not change
    assert_equal(kept, expected)


@needs_kernel_crc
def test_headers_take_no_more_memory_than_they_have() -> None:
    """Room is reserved for as many as could be there."""
    log = build([Row(NOW, None, b"v" * 100_000, (("h", b"x"),))])
    headers = decode_columns(bytearray(log), headers=True, consume=True).headers
    assert headers is not None
    assert headers.get_total_buffer_size() < 1000


@settings(max_examples=50)
@given(st.lists(rows, min_size=1, max_size=3), st.integers(40, 120), fields_asked_for)
def test_many_batches_in_lock_step_equal_the_reference(
    some: list[list[Row]], count: int, fields: frozenset[str]
) -> None:
    batches = [build(rows) for rows in some]
    log = follow([batches[number % len(batches)] for number in range(count)])
    slow = decode_reference(log, fields=fields)
    for _ in in_turn():
        assert_equal(decode_columns(log, fields=fields), slow)


TELLING_BYTES = [b"\0", b"\x01", b"\x0e", b"\x7f", b"\x80", b"\xff"]
"""Lengths of 0, -1, 7, -64; varints that go on."""

small_rows = st.builds(Row, st.just(NOW), st.none() | st.binary(max_size=3), st.none() | st.binary(max_size=5))
WITH_HEADERS = build([Row(NOW, None, b"v", (("h", b""),)), Row(NOW, b"k", None, (("g", None), ("h", b"x")))])


def change(draw: st.DrawFn, section: bytearray) -> None:
    """Overwrite, drop or add a few bytes."""
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, max(len(section) - 1, 0)))
        match draw(st.sampled_from(["set", "set", "set", "cut", "insert"])):
            case "set":
                section[position : position + 1] = draw(st.sampled_from(TELLING_BYTES))
            case "cut":
                del section[position : position + draw(st.integers(1, 5))]
            case "insert":
                section[position:position] = draw(st.binary(min_size=1, max_size=11))


@st.composite
def hostile_logs(draw: st.DrawFn) -> bytes:
    """Batches whose length is right, whatever their records say."""
    kinds = [WITH_HEADERS, build(draw(st.lists(small_rows, min_size=1, max_size=6)))]
    batches = [kinds[number % 2] for number in range(draw(st.sampled_from([1, 2, 3, 60])))]
    for index in {draw(st.integers(0, len(batches) - 1)) for _ in range(2)}:
        section = bytearray(batches[index][HEADER_SIZE:])
        change(draw, section)
        length = HEADER_SIZE - LENGTH_END + len(section)
        batches[index] = batches[index][:8] + length.to_bytes(4, "big") + batches[index][12:HEADER_SIZE] + section
    return follow(batches)


@settings(max_examples=300)
@given(hostile_logs())
def test_hostile_records_are_corrupt_to_both_or_equal(log: bytes) -> None:
    try:
        slow = decode_reference(log, check_crcs=False)
    except CorruptBatch:
        for _ in in_turn():
            with pytest.raises(CorruptBatch):
                decode_columns(log, headers=True, check_crcs=False)
    else:
        for _ in in_turn():
            assert_equal(decode_columns(log, headers=True, check_crcs=False), slow)


@settings(max_examples=200)
@given(logs(), st.data())
def test_hostile_bytes_anywhere_raise_nothing_but_corrupt_batch(log: bytes, data: st.DataObject) -> None:
    changed = bytearray(log)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    headers, consume = data.draw(st.booleans()), data.draw(st.booleans())
    assert_same_to_both(changed, headers=headers, consume=consume)


@settings(max_examples=300)
@given(hostile_logs(), st.booleans(), st.integers(0, 3), st.booleans())
def test_hostile_records_are_the_same_to_both(log: bytes, consume: bool, low: int, headers: bool) -> None:
    assert_same_to_both(log, headers=headers, consume=consume, low=low)


def assert_same_to_both(log: bytes | bytearray, **options: Any) -> None:
    """Corrupt to the kernel and without it, or the same whole columns."""
    results: list[Columns | None] = []
    for _ in in_turn():
        try:
            columns = decode_columns(bytearray(log), check_crcs=False, batch_limit=1 << 20, **options)
        except CorruptBatch:
            results.append(None)
            continue
        results.append(columns)
        for column in (columns.key, columns.value, columns.headers):
            if column is not None:
                column.validate(full=True)
                assert len(column) == columns.num_rows
    if results[0] is None or results[-1] is None:
        assert results in ([None], [None, None])
    else:
        assert_equal(results[0], results[-1])


@pytest.mark.parametrize("codec", Codec)
@settings(max_examples=40)
@given(rows=rows, limit=st.sampled_from([100, 500, 16384]), sequence=st.sampled_from([-1, 0, 2**31 - 5]))
def test_encoding_equals_the_builder_byte_for_byte(
    codec: Codec, rows: Sequence[Row], limit: int, sequence: int
) -> None:
    identity: dict[str, Any] = {"producer_id": 9, "producer_epoch": 1, "base_sequence": sequence, "transactional": True}
    records = [Record(0, *row) for row in rows]
    columns = columns_of(rows)
    cuts = []
    for _ in in_turn():
        batches = encode_columns(*columns, codec=codec, max_bytes=limit, **identity)
        cuts.append([parse_header(batch).record_count for batch in batches])
        assert follow(batches) == follow(encode_reference(records, cuts[0], codec=codec, **identity))
    assert cuts[0] == cuts[-1]


@settings(max_examples=60)
@given(rows=rows, limit=st.sampled_from([100, 500, 16384]))
def test_encoded_columns_come_back_through_every_parser(rows: Sequence[Row], limit: int) -> None:
    key, value, timestamp, headers = columns_of(rows)
    chunks = [
        follow(encode_columns(key, value, timestamp, headers, max_bytes=limit), base_offset=77) for _ in in_turn()
    ]
    assert chunks[0] == chunks[-1]
    chunk = chunks[0]
    columns = decode_columns(chunk, headers=True)
    assert (columns.key, columns.value, columns.timestamp, columns.headers) == (key, value, timestamp, headers)
    assert columns.offset.to_pylist() == list(range(77, 77 + len(rows)))
    for parser in PARSERS:
        assert [tuple(record[:5]) for record in parse(parser, chunk)] == [(77 + i, *row) for i, row in enumerate(rows)]
