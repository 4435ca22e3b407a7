"""broker/records/record_check.py: what is let into the log, and that both implementations say the same."""

from __future__ import annotations

import dataclasses
import itertools
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BrokerError, ErrorCode
from broker.records.batch import HEADER_SIZE, build_batch, parse_header
from broker.records.columns import decode_columns
from broker.records.record import decode_batch, encode_record
from broker.records.record_check import MOST_FAULTS, Fault, RecordCheck, RecordRules
from broker.records.varint import encode_varint
from tests.support.codec_choice import in_turn
from tests.support.record_batches import NOW, Row, build, rows

NO_BOUND = 2**63 - 1
ANY = RecordRules(needs_key=False, now_ms=NOW, before_max_ms=NO_BOUND, after_max_ms=NO_BOUND)
STRICT = RecordRules(needs_key=True, now_ms=NOW, before_max_ms=5000, after_max_ms=100)


@dataclasses.dataclass(frozen=True)
class Verdict:
    error: str
    newest: int
    faults: Sequence[Fault]
    fault_count: int


def verdict(batch: bytes, rules: RecordRules = ANY, cuts: Sequence[int] = ()) -> Verdict:
    """Of the batch's section, fed in pieces that end at `cuts`."""
    section, check, error = batch[HEADER_SIZE:], RecordCheck(parse_header(batch), rules), ""
    edges = [0, *sorted(min(cut, len(section)) for cut in cuts), len(section)]
    try:
        for start, end in itertools.pairwise(edges):
            check.feed(memoryview(section)[start:end])
        check.finish()
    except BrokerError as caught:
        error = caught.message if caught.code is ErrorCode.invalid_record else str(caught)
    return Verdict(error, check.newest_timestamp, check.faults, check.fault_count)


def of_all(batch: bytes, rules: RecordRules = ANY, cuts: Sequence[int] = ()) -> Verdict:
    """What every implementation says, which is one thing, however the section is cut."""
    verdicts = {name: (verdict(batch, rules), verdict(batch, rules, cuts)) for name in in_turn()}
    first, *others = [each for pair in verdicts.values() for each in pair]
    assert all(each == first for each in others), verdicts
    return first


cuts = st.lists(st.integers(0, 400), max_size=6)
many_cuts = st.just(range(2000)) | cuts


@given(rows, many_cuts)
def test_what_producers_send_is_taken_and_its_newest_time_found(given_rows: list[Row], where: Sequence[int]) -> None:
    assert of_all(build(given_rows), cuts=where) == Verdict("", max(-1, *(row.timestamp for row in given_rows)), [], 0)


@given(rows, cuts)
def test_records_that_break_a_rule_are_named(given_rows: list[Row], where: Sequence[int]) -> None:
    expected = []
    for place, row in enumerate(given_rows):
        if row.key is None:
            expected.append(Fault(place, None))
        elif row.timestamp != -1 and not NOW - 5000 <= row.timestamp <= NOW + 100:
            expected.append(Fault(place, row.timestamp))
    found = of_all(build(given_rows), STRICT, where)
    assert (found.error, found.faults) == ("", expected)


changes = st.lists(st.tuples(st.integers(0, 300), st.binary(max_size=3), st.integers(0, 3)), min_size=1, max_size=3)


@given(rows, changes, cuts, st.integers(0, 3))
def test_hostile_bytes_get_one_verdict_and_what_is_taken_can_be_read(
    given_rows: list[Row], changed: list[tuple[int, bytes, int]], where: Sequence[int], more: int
) -> None:
    whole = build(given_rows[:5])
    section = bytearray(whole[HEADER_SIZE:])
    for position, written, removed in changed:
        section[position % len(section) : position % len(section) + removed] = written
        section = section or bytearray(b"\0")
    header = parse_header(whole)
    count = max(1, header.record_count - 1 + more % 3)
    hostile = build_batch(section, count, base_timestamp=header.base_timestamp, max_timestamp=header.max_timestamp)
    if not of_all(hostile, STRICT, where).error:
        assert len(decode_batch(hostile, 0, parse_header(hostile))) == count
        for _ in in_turn():
            assert decode_columns(hostile).num_rows == count


def record(
    place: int = 0, *, time: bytes = b"\0", offset: bytes | None = None, rest: bytes = b"\1\2v\0", attributes: int = 0
) -> bytes:
    body = bytes([attributes]) + time + (encode_varint(place) if offset is None else offset) + rest
    return encode_varint(len(body)) + body


GOOD = record()
WRONG: dict[str, tuple[bytes, int, str]] = {
    "fewer records than the header says": (GOOD + record(1), 3, "ends after 2 whole records; its header says 3"),
    "more records": (GOOD + record(1), 1, "record 1 .* bytes follow"),
    "a byte behind the last": (GOOD + b"\0", 1, "bytes follow"),
    "no bytes": (b"", 1, "ends after 0 whole"),
    "half a record": (GOOD[:-2], 1, "ends after 0 whole"),
    "a length of 0": (b"\0" + GOOD, 1, "not above 0"),
    "a negative length": (b"\1" + GOOD, 1, "not above 0"),
    "a length that is too short": (encode_varint(len(GOOD) - 3) + GOOD[1:], 1, "ends within a field|longer than it is"),
    "a length that is too long": (encode_varint(len(GOOD)) + GOOD[1:] + b"\0", 1, "does not end where"),
    "a length of six bytes": (b"\x8a\x80\x80\x80\x80\0" + GOOD[1:], 1, "too long"),
    "an offset delta twice": (GOOD + record(0), 2, "record 1 .* offset delta"),
    "an offset delta left out": (GOOD + record(2), 2, "offset delta"),
    "a timestamp beyond 64 bits": (record(time=encode_varint(2**63 - 1)), 1, "does not fit in 64 bits"),
    "a timestamp of eleven bytes": (record(time=b"\x80" * 10 + b"\0"), 1, "too long"),
    "a key longer than its record": (record(rest=b"\x20\2v\0"), 1, "its key is longer"),
    "a key of length -2": (record(rest=b"\3\2v\0"), 1, "its key is longer than it is, or of negative length"),
    "a value longer than its record": (record(rest=b"\1\x20v\0"), 1, "its value is longer"),
    "no header count": (record(rest=b"\1\2v"), 1, "ends within a field"),
    "a negative header count": (record(rest=b"\1\2v\1"), 1, "more headers than bytes"),
    "more headers than bytes": (record(rest=b"\1\2v\x04\0\0"), 1, "more headers than bytes"),
    "a header without a key": (record(rest=b"\1\2v\x02\1\0"), 1, "key of a header"),
    "a header's value that is too long": (record(rest=b"\1\2v\x02\0\x10"), 1, "value of a header"),
    "bytes behind the headers": (record(rest=b"\1\2v\x02\0\0xy"), 1, "does not end where"),
}


@pytest.mark.parametrize(("section", "count", "reason"), WRONG.values(), ids=WRONG)
def test_what_readers_would_stick_on_is_told(section: bytes, count: int, reason: str) -> None:
    batch = build_batch(section, count, base_timestamp=NOW)
    found = of_all(batch, cuts=range(len(section)))
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(found.error)


@pytest.mark.parametrize("attributes", [0, 0x7F, 0xFF])
def test_a_records_attributes_are_let_pass_as_kafka_does(attributes: int) -> None:
    assert not of_all(build_batch(record(attributes=attributes), 1)).error


def test_numbers_of_every_length_are_taken() -> None:
    """8,200 records make offset deltas of three bytes, and the values' lengths have one to four."""
    sections = [encode_record(place * 7, place, b"k" * (place % 130), b"v") for place in range(8200)]
    sections += [encode_record(0, 8200 + more, None, bytes(1 << 7 * more)) for more in range(4)]
    batch = build_batch(b"".join(sections), len(sections), base_timestamp=NOW)
    assert of_all(batch, cuts=range(0, len(batch), 1000)) == Verdict("", NOW + 8199 * 7, [], 0)


def test_all_faults_are_counted_and_the_first_are_kept() -> None:
    batch = build([Row(NOW, None, b"")] * (MOST_FAULTS + 20))
    found = of_all(batch, STRICT, range(0, 1000, 3))
    assert (found.fault_count, found.faults) == (MOST_FAULTS + 20, [Fault(place, None) for place in range(MOST_FAULTS)])


@pytest.mark.parametrize(
    ("timestamp", "refused"), [(-1, False), (-2, True), (NOW - 5001, True), (NOW - 5000, False), (NOW + 101, True)]
)
def test_the_bounds_of_a_timestamp(timestamp: int, refused: bool) -> None:
    assert bool(of_all(build([Row(timestamp, b"k", b"")]), STRICT).fault_count) is refused


def test_nothing_is_kept_of_a_large_value() -> None:
    for _ in in_turn():
        check, size = RecordCheck(parse_header(build_batch(b"", 1)), ANY), 200 << 20
        body = b"\0\0\0\1" + encode_varint(size)
        piece = bytes(1 << 20)
        tracemalloc.start()
        check.feed(encode_varint(len(body) + size + 1) + body)
        for _ in range(200):
            check.feed(piece)
        check.feed(b"\0")
        check.finish()
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 3 << 20
