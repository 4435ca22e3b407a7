"""compression.type: batches stored in the topic's codec, whatever the producer's is."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.errors import BrokerError, ErrorCode
from broker.log.inspection import check_partition
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.records.batch import build_batch, walk_batches
from broker.records.compression import STEP_BYTES, Codec
from tests.support.batches import append, batch, open_log
from tests.support.compaction import raw, records_of
from tests.support.randomness import noise

NAMES = ["uncompressed", "gzip", "snappy", "lz4", "zstd"]
VALUES = (b"x" * 500, b"", b"y")


def codecs(log: Log) -> list[int]:
    return [header.codec for _, header in walk_batches(raw(log))]


@pytest.mark.parametrize("name", NAMES)
def test_every_codec_becomes_the_topics(tmp_path: Path, name: str) -> None:
    log = open_log(tmp_path / "t-0", LogConfig(compression_type=name))
    for codec in Codec:
        append(log, batch(*VALUES, codec=codec), leader_epoch=3)
    assert codecs(log) == [NAMES.index(name)] * 5
    assert [record.value for record in records_of(log)] == [*VALUES] * 5
    log.close()
    assert check_partition(tmp_path / "t-0") == []


@pytest.mark.parametrize(("name", "fast", "small"), [("gzip", 1, 9), ("lz4", 9, 17), ("zstd", -50, 19)])
def test_the_level_of_the_topic_is_kept(tmp_path: Path, name: str, fast: int, small: int) -> None:
    text = b" ".join(b"%d" % (number * number) for number in range(5_000))
    sizes = []
    for level in (fast, small):
        config = LogConfig.from_properties({"compression.type": name, f"compression.{name}.level": str(level)})
        log = open_log(tmp_path / f"{level}-0", config)
        append(log, batch(text))
        assert [record.value for record in records_of(log)] == [text]
        sizes.append(log.size)
    assert sizes[1] < sizes[0]


def test_batches_of_several_codecs(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", LogConfig(compression_type="lz4"))
    for data in (batch(b"a"), batch(b"b", b"c", codec=Codec.LZ4), batch(b"d", codec=Codec.ZSTD)):
        result = append(log, data)
    assert (result.base_offset, result.last_offset) == (3, 3)
    assert codecs(log) == [Codec.LZ4] * 3
    assert [(record.offset, record.value) for record in records_of(log)] == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]


def test_a_batch_in_the_codec_already_is_stored_as_it_came(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", LogConfig(compression_type="gzip"))
    sent = batch(*VALUES, codec=Codec.GZIP)
    append(log, sent)
    assert raw(log)[16:] == sent[16:]


def test_with_append_time_and_an_idempotent_producer(tmp_path: Path) -> None:
    config = LogConfig(compression_type="zstd", message_timestamp_type="LogAppendTime")
    log = open_log(tmp_path / "t-0", config)
    data = batch(*VALUES, timestamp=5, producer_id=1, producer_epoch=0, sequence=0)
    first = append(log, data)
    again = append(log, data)
    assert again.duplicate
    assert again.base_offset == first.base_offset
    assert {record.timestamp for record in records_of(log)} == {first.log_append_time}


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", LogConfig(compression_type="zstd"))
    with pytest.raises(BrokerError) as raised:
        append(log, build_batch(b"no gzip", 1, codec=Codec.GZIP))
    assert raised.value.code is ErrorCode.unknown_server_error
    assert log.log_end_offset == 0


@pytest.mark.parametrize("name", NAMES[1:])
def test_large_batches_are_compressed_step_by_step_and_read_like_others(tmp_path: Path, name: str) -> None:
    values = [b"%d" % number * 50 for number in range(4 * STEP_BYTES // 250)]
    log = open_log(tmp_path / "t-0", LogConfig(compression_type=name))
    append(log, batch(*values))
    assert codecs(log) == [NAMES.index(name)]
    assert [record.value for record in records_of(log)] == values


@pytest.mark.parametrize("name", NAMES[:-1])
def test_what_is_larger_than_max_message_bytes_afterwards_is_refused(tmp_path: Path, name: str) -> None:
    """zstd alone sees that what comes twice, 40 kB apart, is the same."""
    apart = noise(40_000)
    log = open_log(tmp_path / "t-0", LogConfig(compression_type=name, max_message_bytes=50_000))
    with pytest.raises(BrokerError, match=r"max\.message\.bytes=50000") as raised:
        append(log, batch(apart, apart, codec=Codec.ZSTD))
    assert raised.value.code is ErrorCode.message_too_large
    assert log.log_end_offset == 0
