"""A client's batch is appended as Kafka would, or refused as Kafka would; the log is left as it was."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from pathlib import Path

import lz4.frame
import pytest

from broker.errors import BrokerError, ErrorCode, RecordsRefused
from broker.log.append_checks import (
    Allowance,
    BatchCheck,
    assign_offsets,
    coordinator_batches,
    stamp_append_time,
    writable,
)
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.records.batch import (
    build_batch,
    parse_header,
    patch_log_append_time,
    patch_producer,
    recompressed_batch,
)
from broker.records.builder import BatchBuilder
from broker.records.compression import STEP_BYTES, Codec, compress, compressed_parts, decompress, in_steps
from broker.records.crc32c import crc32c
from broker.records.record import decode_records, encode_record
from tests.support.batches import NOW, append, batch, open_log
from tests.support.codec_choice import BUILT, in_turn, using

COMPACTED = LogConfig(cleanup_policy=("compact",))
HOUR_MS = 3_600_000


def with_crc(data: bytearray) -> bytes:
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return bytes(data)


def changed(layout: str, position: int, value: int, codec: int = 0, values: tuple[bytes, ...] = (b"x", b"y")) -> bytes:
    """A batch with another number in its header, and a checksum that is right."""
    data = bytearray(batch(*values, codec=codec))
    struct.pack_into(layout, data, position, value)
    return with_crc(data)


def with_body(change: Callable[[bytes], bytes], codec: int = 0) -> bytes:
    """A batch whose plain records were changed behind its header's back."""
    plain = batch(b"x", b"y")[61:]
    return build_batch(compress(codec, change(plain)), 2, codec=codec, base_timestamp=NOW, max_timestamp=NOW)


def without_sequence(data: bytes, producer_id: int = 77) -> bytes:
    patched = bytearray(data)
    patch_producer(patched, 0, parse_header(patched), producer_id, 0, -1)
    return bytes(patched)


INVALID, UNKNOWN = ErrorCode.invalid_record, ErrorCode.unknown_server_error
REFUSED = {
    "a base offset that is not 0": (changed(">q", 0, 100), INVALID, "base offset .* is 0, not 100"),
    "more records than offsets": (changed(">i", 57, 3), INVALID, "3 records with a last offset delta of 1"),
    "fewer records than offsets": (changed(">i", 57, 1), INVALID, "1 records with a last offset delta of 1"),
    "another last offset": (changed(">i", 23, 7), INVALID, "last offset delta of 7"),
    "no records": (changed(">i", 57, 0), INVALID, "0 records"),
    "no records and no offsets": (build_batch(b"", 0), INVALID, "0 records with a last offset delta of -1"),
    "a control batch": (changed(">h", 21, 0x20), INVALID, "control"),
    "a transactional batch of nobody": (changed(">h", 21, 0x10), INVALID, "without a producer id"),
    "a producer id without a sequence": (without_sequence(batch(b"x")), INVALID, ": producer id 77 with sequence -1$"),
    "the first producer id without one": (
        without_sequence(batch(b"x"), 0),
        INVALID,
        ": producer id 0 with sequence -1$",
    ),
    "a codec there is not": (changed(">h", 21, 5), UNKNOWN, "codec 5"),
    "gzip that is none": (changed(">h", 21, 1), UNKNOWN, "gzip data cannot be decompressed"),
    "snappy that is none": (changed(">h", 21, 2, values=(b"x" * 50,)), UNKNOWN, "snappy"),
    "lz4 that is none": (changed(">h", 21, 3), UNKNOWN, "lz4"),
    "zstd that is none": (changed(">h", 21, 4), UNKNOWN, "zstd"),
    "a wrong checksum": (batch(b"x")[:-1] + b"\1", ErrorCode.corrupt_message, "CRC"),
}


@pytest.mark.parametrize(("records", "code", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_a_header_says_is_held_against_it(log: Log, records: bytes, code: ErrorCode, reason: str) -> None:
    with pytest.raises(BrokerError, match=reason) as raised:
        append(log, records)
    assert (raised.value.code, log.log_end_offset, log.size) == (code, 0, 0)


def test_the_first_producer_id_may_open_a_transaction(log: Log) -> None:
    append(log, batch(b"x", producer_id=0, producer_epoch=0, sequence=0, transactional=True))
    assert (log.log_end_offset, log.first_unstable_offset) == (1, 0)


@pytest.mark.parametrize("extra", [0, 1])
def test_a_batch_may_be_as_large_as_the_topic_says(extra: int) -> None:
    data = batch(b"x" * 100)
    config = LogConfig(max_message_bytes=len(data) - extra)
    if not extra:
        assert BatchCheck(bytearray(data), config, NOW).run()
        return
    with pytest.raises(
        BrokerError, match=f"a batch of {len(data)} bytes; max.message.bytes is {len(data) - 1}"
    ) as raised:
        BatchCheck(bytearray(data), config, NOW)
    assert raised.value.code is ErrorCode.message_too_large


BODIES: dict[str, Callable[[bytes], bytes]] = {
    "a record cut off": lambda plain: plain[:-3],
    "a byte too many": lambda plain: plain + b"\0",
    "a wrong length": lambda plain: b"\x02" + plain[1:],
    "an offset twice": lambda plain: plain[:8] * 2,
    "one record fewer": lambda plain: plain[: len(plain) // 2],
    "one record more": lambda plain: plain + plain[:8],
    "no record at all": lambda plain: b"nonsense",
}


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("change", BODIES.values(), ids=BODIES)
def test_a_body_that_is_not_what_its_header_says_is_refused(
    tmp_path: Path, change: Callable[[bytes], bytes], codec: Codec
) -> None:
    """Its checksum is right: before, it was acknowledged, and every consumer stuck on it."""
    for implementation in in_turn():
        log = open_log(tmp_path / f"{implementation}-0")
        with pytest.raises(BrokerError) as raised:
            append(log, with_body(change, codec))
        assert (raised.value.code, log.log_end_offset) == (ErrorCode.invalid_record, 0)
        assert append(log, with_body(bytes, codec)).last_offset == 1


def rows(*given: tuple[int, bytes | None]) -> bytes:
    builder = BatchBuilder()
    for timestamp, key in given:
        builder.append(timestamp, key, b"v")
    return builder.build()


def refusal(data: bytes, config: LogConfig) -> RecordsRefused:
    with pytest.raises(RecordsRefused) as raised:
        BatchCheck(bytearray(data), config, NOW).run()
    return raised.value


def test_each_record_without_a_key_is_named() -> None:
    error = refusal(rows((NOW, b"k"), (NOW, None), (NOW, b"k"), *[(NOW, None)] * 4), COMPACTED)
    assert error.code is ErrorCode.invalid_record
    assert [place for place, _ in error.record_errors] == [1, 3, 4, 5, 6]
    keyless = "it has no key, and cleanup.policy has compact"
    assert error.message == (
        f"5 of 7 records are refused: record 1: {keyless}; record 3: {keyless}; record 4: {keyless} and 2 more"
    )
    assert error.record_errors[0] == (1, keyless)


def test_three_records_are_named_before_the_rest_is_counted() -> None:
    three, four = (refusal(rows(*[(NOW, None)] * count), COMPACTED).message for count in (3, 4))
    assert three.endswith("record 2: it has no key, and cleanup.policy has compact")
    assert four.endswith("record 2: it has no key, and cleanup.policy has compact and 1 more")


def test_a_wrong_time_among_records_without_keys_decides_the_code() -> None:
    error = refusal(rows((NOW, None), (NOW + HOUR_MS + 7, b"k"), (-1, b"k")), COMPACTED)
    assert error.code is ErrorCode.invalid_timestamp
    assert [place for place, _ in error.record_errors] == [0, 1]
    assert error.record_errors[1][1] == (
        f"timestamp {NOW + HOUR_MS + 7} lies 3600007 ms ahead of the broker's clock; "
        "message.timestamp.after.max.ms is 3600000"
    )


def test_an_old_record_between_new_ones_is_found() -> None:
    """Looking at the header's two times would miss it."""
    config = LogConfig(message_timestamp_before_max_ms=1000)
    error = refusal(rows((NOW, None), (NOW - 1001, None), (NOW, None)), config)
    assert [place for place, _ in error.record_errors] == [1]
    assert error.message == (
        f"1 of 3 records are refused: record 1: timestamp {NOW - 1001} lies 1001 ms behind the broker's clock; "
        "message.timestamp.before.max.ms is 1000"
    )


def test_a_record_is_ahead_by_a_single_millisecond() -> None:
    error = refusal(rows((NOW, None), (NOW + 1, None)), LogConfig(message_timestamp_after_max_ms=0))
    assert error.code is ErrorCode.invalid_timestamp
    assert "lies 1 ms ahead of the broker's clock; message.timestamp.after.max.ms is 0" in error.message


def test_each_record_of_a_batch_that_sets_the_brokers_time_itself_is_named() -> None:
    data = bytearray(rows((NOW, None), (NOW, None)))
    patch_log_append_time(data, 0, parse_header(data), NOW)
    error = refusal(bytes(data), LogConfig(message_timestamp_type="LogAppendTime"))
    text = "producers may not set the timestamp type LogAppendTime"
    assert (error.code, error.message) == (ErrorCode.invalid_timestamp, text)
    assert error.record_errors == ((0, text), (1, text))


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("claimed", [-1, NOW - 1, NOW + 10 * HOUR_MS])
def test_the_newest_timestamp_is_what_the_records_say(log: Log, codec: Codec, claimed: int) -> None:
    data = bytearray(batch(b"a", b"b", b"c", timestamps=[NOW, NOW + 9, NOW + 2], codec=codec))
    struct.pack_into(">q", data, 35, claimed)
    append(log, with_crc(data))
    found = log.read(0, 1000)
    assert found is not None
    assert parse_header(found.read()).max_timestamp == NOW + 9
    assert [record.timestamp for record in decode_records(found.read())] == [NOW, NOW + 9, NOW + 2]
    assert log.offset_for_timestamp(NOW + 9) == (1, NOW + 9)


def test_a_timestamp_type_that_is_the_brokers_to_set_is_taken_back(log: Log) -> None:
    """As Kafka does where records keep their own times; see test_log.py for where they do not."""
    data = bytearray(batch(b"a", timestamp=NOW - 5))
    patch_log_append_time(data, 0, parse_header(data), NOW)
    append(log, data)
    found = log.read(0, 1000)
    assert found is not None
    (record,) = decode_records(found.read())
    assert (record.timestamp, record.timestamp_type) == (NOW - 5, 0)


class TestLargeBatches:
    """Checked bit by bit, and bounded."""

    BOMB = batch(*[bytes(1 << 20)] * 8, codec=Codec.ZSTD)
    GZIP = LogConfig(compression_type="gzip")

    def test_a_check_stops_when_its_cost_is_spent_and_goes_on_later(self) -> None:
        check = BatchCheck(bytearray(self.BOMB), LogConfig(), NOW)
        costs = []
        while not check.run(1 << 20):
            costs.append(check.cost)
        assert len(costs) >= 7
        assert all(1 << 20 <= after - before <= 3 << 19 for before, after in zip([0, *costs], costs, strict=False))
        assert check.cost > 8 << 20
        assert check.run(0)

    def test_a_check_stops_as_soon_as_its_cost_is_spent(self) -> None:
        first = BatchCheck(bytearray(self.BOMB), LogConfig(), NOW)
        assert not first.run(1)
        again = BatchCheck(bytearray(self.BOMB), LogConfig(), NOW)
        assert not again.run(first.cost)
        assert again.cost == first.cost > 0
        assert not again.run(1)
        assert again.cost > first.cost

    def test_a_byte_that_is_compressed_anew_costs_eight(self) -> None:
        size = len(decompress(Codec.ZSTD, self.BOMB[61:]))
        same, anew = (BatchCheck(bytearray(self.BOMB), config, NOW) for config in (LogConfig(), self.GZIP))
        assert same.run()
        assert anew.run()
        assert anew.cost - same.cost == 7 * size
        if BUILT:
            assert same.cost == size

    @pytest.mark.parametrize("headers", [0, 2, 30])
    def test_without_the_kernel_a_plain_batch_stops_as_well(self, headers: int) -> None:
        """Once its records were walked in one go, 0.2 s for a MB of small ones, whatever might be spent."""
        small = encode_record(0, 0, b"k", b"value", [("name", b"v")] * headers)
        count = (1 << 20) // len(small)
        section = b"".join(
            encode_record(0, place, b"k", b"value", [("name", b"v")] * headers) for place in range(count)
        )
        data = bytearray(build_batch(section, count, base_timestamp=NOW, max_timestamp=NOW))
        config = LogConfig(max_message_bytes=2 << 20)
        with using("plain"):
            check = BatchCheck(data, config, NOW)
            assert not check.run(0)
            assert check.cost == 0
            assert not check.run(1)
            assert check.cost < 3 << 20, "what a piece costs"
            assert not check.run(1 << 20)
            assert 1 << 20 <= check.cost < 6 << 20
            assert check.run()
            assert check.cost > 4 * len(section)

    def test_a_compressed_batch_is_not_begun_when_nothing_may_be_spent_a_plain_one_is(self) -> None:
        check = BatchCheck(bytearray(self.BOMB), LogConfig(), NOW)
        assert not check.run(0)
        assert check.cost == 0
        if BUILT:
            plain = BatchCheck(bytearray(batch(b"x")), LogConfig(), NOW)
            assert plain.run(0)
            assert plain.cost == 0

    @pytest.mark.parametrize(
        ("codec", "name", "begun"),
        [
            *[(Codec.ZSTD, "producer", False), (Codec.ZSTD, "gzip", False), (Codec.NONE, "zstd", False)],
            *[(Codec.GZIP, "producer", True), (Codec.LZ4, "producer", True), (Codec.LZ4, "gzip", True)],
            *[(Codec.NONE, "lz4", True), (Codec.NONE, "producer", True)],
        ],
    )
    def test_a_codec_whose_library_is_not_loaded_yet_is_not_for_the_event_loop(
        self, monkeypatch: pytest.MonkeyPatch, codec: Codec, name: str, begun: bool
    ) -> None:
        """The import takes some tenths of a second."""
        data = batch(b"x" * 1000, codec=codec)
        check = BatchCheck(bytearray(data), LogConfig(compression_type=name), NOW)
        monkeypatch.delitem(sys.modules, "pyarrow")
        assert check.run(1 << 20) is begun

    def test_an_unusual_frame_of_lz4_needs_that_library_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Go's clients write them."""
        plain = batch(b"x" * 300_000)
        frame = lz4.frame.compress(plain[61:], block_linked=True)
        data = build_batch(frame, 1, codec=Codec.LZ4, base_timestamp=NOW, max_timestamp=NOW)
        check = BatchCheck(bytearray(data), LogConfig(), NOW)
        with monkeypatch.context() as patch:
            patch.delitem(sys.modules, "pyarrow")
            assert not check.run(1 << 20)
        assert check.run(1 << 20)

    def test_compressing_anew_costs_more(self) -> None:
        check = BatchCheck(bytearray(self.BOMB), self.GZIP, NOW)
        assert not check.run(1 << 20)
        assert check.cost <= 16 * 3 * STEP_BYTES

    @pytest.mark.parametrize(
        ("name", "level", "begun"),
        [
            *[("zstd", 3, True), ("zstd", -5, True), ("zstd", 4, False), ("zstd", 22, False)],
            *[("gzip", -1, True), ("gzip", 6, True), ("gzip", 7, False), ("lz4", 9, True), ("lz4", 12, False)],
        ],
    )
    def test_a_level_above_the_default_is_not_for_the_event_loop(self, name: str, level: int, begun: bool) -> None:
        """100 KiB alone took up to 65 ms there, 300 KiB up to 0.7 s."""
        config = LogConfig.from_properties({"compression.type": name, f"compression.{name}.level": str(level)})
        check = BatchCheck(bytearray(batch(b"x" * 1000)), config, NOW)
        assert check.run(1 << 20) is begun
        assert check.run()

    def test_a_batch_in_the_topics_codec_already_is_begun_whatever_the_level(self) -> None:
        config = LogConfig(compression_type="zstd", compression_zstd_level=22)
        assert BatchCheck(bytearray(batch(b"x" * 1000, codec=Codec.ZSTD)), config, NOW).run(1 << 20)

    def test_the_batches_of_a_request_share_what_they_may_grow_to(self) -> None:
        allowance = Allowance(20 << 20)
        checks = [BatchCheck(bytearray(self.BOMB), LogConfig(), NOW, allowance) for _ in range(3)]
        assert [checks[0].run(), checks[1].run()] == [True, True]
        assert allowance.left == (20 << 20) - 2 * len(decompress(Codec.ZSTD, self.BOMB[61:]))
        with pytest.raises(BrokerError, match="this request grow too large") as raised:
            checks[2].run()
        assert raised.value.code is ErrorCode.message_too_large

    def test_a_request_may_grow_to_exactly_its_allowance(self) -> None:
        size = len(decompress(Codec.ZSTD, self.BOMB[61:]))
        assert BatchCheck(bytearray(self.BOMB), LogConfig(), NOW, Allowance(size)).run()
        with pytest.raises(BrokerError, match=": the batches of this request grow too large when decompressed: send"):
            BatchCheck(bytearray(self.BOMB), LogConfig(), NOW, Allowance(size - 1)).run()

    def test_a_recompressed_batch_is_one_compressed_with_the_topics_codec_and_level(self) -> None:
        plain = batch(b" ".join(b"%d" % (number * number) for number in range(50_000)), b"y")
        config = LogConfig.from_properties({"compression.type": "gzip", "compression.gzip.level": "1"})
        check = BatchCheck(bytearray(plain), config, NOW)
        assert check.run()
        expected = b"".join(compressed_parts(Codec.GZIP, in_steps([plain[61:]]), 1))
        assert bytes(check.batch) == recompressed_batch(parse_header(plain), expected, Codec.GZIP)
        assert check.header == parse_header(check.batch)

    @pytest.mark.parametrize("size", [300, 301])
    def test_a_recompressed_batch_may_be_as_large_as_a_batch_may_be(self, size: int) -> None:
        """Once decompressed it is larger than it was sent."""
        data = batch(b"x" * (size - len(batch(b"x" * 200)) + 200), codec=Codec.GZIP)
        check = BatchCheck(bytearray(data), LogConfig(compression_type="none", max_message_bytes=300), NOW)
        if size > 300:
            complaint = "compressed with none, as compression.type asks, .* larger than max.message.bytes=300"
            with pytest.raises(BrokerError, match=complaint) as raised:
                check.run()
            assert raised.value.code is ErrorCode.message_too_large
            return
        assert check.run()
        assert check.size_as_sent == len(data) < len(check.batch) == check.header.size == 300
        assert check.header == parse_header(check.batch)

    def test_plain_batches_have_no_such_bound(self) -> None:
        assert BatchCheck(bytearray(batch(b"x" * 1000)), LogConfig(), NOW, Allowance(10)).run()


class TestCoordinatorsBatches:
    """A coordinator's batches: only their headers are checked."""

    ONE, TWO = batch(b"a", timestamp=1), batch(b"b", b"c", timestamp=2)

    def test_each_batch_is_found_at_its_position(self) -> None:
        hollow = build_batch(b"", 0, last_offset_delta=0)
        data = self.ONE + hollow + self.TWO + hollow
        found = coordinator_batches(bytearray(data), LogConfig())
        starts = [0, len(self.ONE), len(self.ONE) + 61, len(data) - 61]
        assert found == [(position, parse_header(data, position)) for position in starts]

    @pytest.mark.parametrize(
        ("data", "code", "complaint"),
        [
            (b"", INVALID, ": no record batch to append$"),
            (ONE + TWO[:60], ErrorCode.corrupt_message, ": 60 bytes after the last whole batch$"),
            (ONE + TWO[:-1], ErrorCode.corrupt_message, "does not fit"),
            (ONE + TWO[:-1] + b"?", ErrorCode.corrupt_message, "CRC"),
            (ONE + batch(b"x" * 400)[:-1] + b"?", ErrorCode.message_too_large, "max.message.bytes is 400$"),
        ],
    )
    def test_others_are_refused(self, data: bytes, code: ErrorCode, complaint: str) -> None:
        with pytest.raises(BrokerError, match=complaint) as raised:
            coordinator_batches(bytearray(data), LogConfig(max_message_bytes=400))
        assert raised.value.code is code

    def test_offsets_follow_each_other_from_batch_to_batch(self) -> None:
        data = bytearray(self.TWO + self.ONE + self.TWO)
        batches = coordinator_batches(data, LogConfig())
        assert [last for last, _ in assign_offsets(data, batches, 40, leader_epoch=6)] == [41, 42, 44]
        again = coordinator_batches(data, LogConfig())
        assert [(header.base_offset, header.leader_epoch) for _, header in again] == [(40, 6), (42, 6), (43, 6)]

    def test_the_brokers_time_is_in_the_batches_and_in_their_headers(self) -> None:
        data = bytearray(self.TWO + self.ONE)
        before = coordinator_batches(data, LogConfig())
        stamped = stamp_append_time(data, before, NOW + 5)
        assert stamped == coordinator_batches(data, LogConfig())
        assert [position for position, _ in stamped] == [position for position, _ in before]
        assert [(header.max_timestamp, header.is_log_append_time) for _, header in stamped] == [(NOW + 5, True)] * 2

    def test_only_what_cannot_be_patched_is_copied(self) -> None:
        data = bytearray(self.ONE)
        view, fixed = memoryview(data), memoryview(self.ONE)
        assert writable(data) is data
        assert writable(view) is view
        for records in (self.ONE, fixed):
            assert type(writable(records)) is bytearray
            assert bytes(writable(records)) == self.ONE
