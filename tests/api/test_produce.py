"""Produce: every version, every refusal, idempotence, timestamps, and the disk."""

from __future__ import annotations

import struct

import pytest

from broker.client.consumer import Consumer
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import build_batch
from broker.records.builder import BatchBuilder
from broker.records.compression import Codec, compress
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests, batch, records_of, versions
from tests.support.waiting import eventually

NOW = 1_700_000_000_000


@pytest.mark.parametrize("version", versions(ApiKey.PRODUCE))
def test_every_version_appends_and_tells_the_offset(ask: Requests, topic: str, version: int) -> None:
    ask.create(topic)
    for round_ in range(2):
        answer = ask.produce({(topic, 0): batch(b"a", b"b")}, version=version)[topic, 0]
        assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 2 * round_)
    assert ask.values(topic) == [b"a", b"b"] * 2


@pytest.mark.parametrize("acks", [1, -1])
def test_acks_one_and_all_are_answered(ask: Requests, topic: str, acks: int) -> None:
    ask.create(topic)
    assert ask.produce({(topic, 0): batch(b"a")}, acks=acks)[topic, 0].error_code is ErrorCode.none


def send_without_acks(ask: Requests, topic: str, records: bytes) -> None:
    data = {"name": topic, "partition_data": [{"index": 0, "records": records}]}
    ask.send(ApiKey.PRODUCE, {"transactional_id": None, "acks": 0, "timeout": 1000, "topic_data": [data]})


def test_acks_zero_appends_without_an_answer(ask: Requests, topic: str) -> None:
    ask.create(topic)
    send_without_acks(ask, topic, batch(b"a"))
    assert ask.values(topic) == [b"a"]  # the next answer is the fetch's


def test_acks_zero_is_appended_when_its_producer_has_left(broker: BrokerProcess, ask: Requests, topic: str) -> None:
    """All that was sent, while the disk is slower than the producer."""
    ask.create(topic, flush_messages="1")
    with Requests(broker.bootstrap) as gone:
        for number in range(300):
            send_without_acks(gone, topic, batch(b"%d" % number))
    eventually(lambda: ask.list_offset(topic, -1).offset == 300)
    assert ask.values(topic) == [b"%d" % number for number in range(300)]


def test_acks_zero_that_fails_closes_the_connection(ask: Requests) -> None:
    send_without_acks(ask, "no-such-topic", batch(b"a"))
    assert ask.is_hung_up()


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_other_acks_are_refused(ask: Requests, topic: str, acks: int) -> None:
    ask.create(topic)
    assert ask.produce({(topic, 0): batch(b"a")}, acks=acks)[topic, 0].error_code is ErrorCode.invalid_required_acks
    assert ask.values(topic) == []


def with_byte(data: bytes, position: int, value: int) -> bytes:
    return data[:position] + bytes([value]) + data[position + 1 :]


WHOLE = batch(b"some value")
REFUSED = {
    "no records": (b"", ErrorCode.invalid_record),
    "null records": (None, ErrorCode.invalid_record),
    "a flipped bit": (with_byte(WHOLE, len(WHOLE) - 3, WHOLE[-3] ^ 1), ErrorCode.corrupt_message),
    "a wrong CRC": (with_byte(WHOLE, 17, WHOLE[17] ^ 1), ErrorCode.corrupt_message),
    "magic 0": (with_byte(WHOLE, 16, 0), ErrorCode.invalid_record),
    "magic 1": (with_byte(WHOLE, 16, 1), ErrorCode.invalid_record),
    "magic 3": (with_byte(WHOLE, 16, 3), ErrorCode.corrupt_message),
    "magic -1": (with_byte(WHOLE, 16, 255), ErrorCode.corrupt_message),
    "a cut batch": (WHOLE[:-1], ErrorCode.invalid_record),
    "a cut header": (WHOLE[:20], ErrorCode.invalid_record),
    "garbage": (b"\xff" * 200, ErrorCode.corrupt_message),
    "a length below any": (WHOLE[:8] + struct.pack(">i", 3) + WHOLE[12:], ErrorCode.corrupt_message),
    "a length below the header": (WHOLE[:8] + struct.pack(">i", 30) + WHOLE[12:], ErrorCode.corrupt_message),
    "two batches": (WHOLE * 2, ErrorCode.invalid_record),
    "a batch and garbage": (WHOLE + b"\xff" * 20, ErrorCode.corrupt_message),
    "a base offset": (struct.pack(">q", 5) + WHOLE[8:], ErrorCode.invalid_record),
}


@pytest.mark.parametrize(("records", "code"), REFUSED.values(), ids=REFUSED)
def test_what_kafka_refuses_is_refused_and_nothing_is_written(
    ask: Requests, topic: str, records: bytes | None, code: ErrorCode
) -> None:
    ask.create(topic)
    answer = ask.produce({(topic, 0): records})[topic, 0]
    assert answer.error_code is code
    assert answer.base_offset == -1
    assert answer.error_message
    assert ask.values(topic) == []


@pytest.mark.parametrize("rest", [b"junk", WHOLE[:-1]], ids=["a few bytes", "a cut batch"])
def test_what_is_cut_off_behind_a_whole_batch_is_left_out_as_kafka_does(ask: Requests, topic: str, rest: bytes) -> None:
    ask.create(topic)
    assert ask.produce({(topic, 0): WHOLE + rest})[topic, 0].error_code is ErrorCode.none
    ask.put(topic, b"next")
    assert ask.values(topic) == [b"some value", b"next"]


@pytest.mark.parametrize(("version", "code"), [(6, ErrorCode.unsupported_compression_type), (7, ErrorCode.none)])
def test_zstd_needs_version_7(ask: Requests, topic: str, version: int, code: ErrorCode) -> None:
    ask.create(topic)
    builder = BatchBuilder(codec=Codec.ZSTD)
    builder.append(NOW, None, b"x" * 100)
    assert ask.produce({(topic, 0): builder.build()}, version=version)[topic, 0].error_code is code


@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_records_that_are_refused_are_named(ask: Requests, topic: str, version: int) -> None:
    ask.create(topic, cleanup_policy="compact")
    builder = BatchBuilder()
    for key in (b"k", None, b"k", None):
        builder.append(NOW, key, b"v")
    answer = ask.produce({(topic, 0): builder.build()}, version=version)[topic, 0]
    assert answer.error_code is ErrorCode.invalid_record
    if version >= 8:
        errors = [(error.batch_index, error.batch_index_error_message) for error in answer.record_errors]
        assert errors == [(place, "it has no key, and cleanup.policy has compact") for place in (1, 3)]
        assert answer.error_message.startswith("2 of 4 records are refused: record 1: it has no key")
        assert answer.log_start_offset == 0
    assert ask.values(topic) == []


@pytest.mark.parametrize("codec", Codec)
def test_a_consumer_goes_on_past_a_batch_whose_records_lie(
    ask: Requests, broker: BrokerProcess, topic: str, codec: Codec
) -> None:
    """Its checksum is right. A broker that accepted it, as an older one did, would block every consumer."""
    ask.create(topic)
    ask.put(topic, b"before")
    lying = build_batch(compress(codec, b"these are no records at all"), 3, codec=codec, base_timestamp=NOW)
    assert ask.produce({(topic, 0): lying})[topic, 0].error_code is ErrorCode.invalid_record
    ask.put(topic, b"after")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "auto.offset.reset": "earliest"})
    with consumer:
        consumer.assign([TopicPartition(topic, 0)])
        found: list[tuple[int, bytes | None]] = []
        while len(found) < 2:
            found += [(record.offset, record.value) for record in consumer.poll(5.0)]
    assert found == [(0, b"before"), (1, b"after")]


def test_a_batch_above_max_message_bytes_is_too_large(ask: Requests, topic: str) -> None:
    ask.create(topic, max_message_bytes="1000")
    answers = [ask.produce({(topic, 0): batch(b"x" * size)})[topic, 0].error_code for size in (800, 1200)]
    assert answers == [ErrorCode.none, ErrorCode.message_too_large]


def test_each_partition_has_its_own_error(ask: Requests, topic: str) -> None:
    ask.create(topic, 2)
    answers = ask.produce(
        {
            (topic, 0): batch(b"a"),
            (topic, 1): b"garbage that is no batch",
            (topic, 2): batch(b"b"),
            ("no-such-topic", 0): batch(b"c"),
            (topic, -1): batch(b"d"),
        }
    )
    assert {place: answer.error_code for place, answer in answers.items()} == {
        (topic, 0): ErrorCode.none,
        (topic, 1): ErrorCode.corrupt_message,
        (topic, 2): ErrorCode.unknown_topic_or_partition,
        ("no-such-topic", 0): ErrorCode.unknown_topic_or_partition,
        (topic, -1): ErrorCode.unknown_topic_or_partition,
    }


def test_more_replicas_in_sync_than_there_are_cannot_be_asked_for(ask: Requests, topic: str) -> None:
    ask.create(topic, min_insync_replicas="2")
    codes = [ask.produce({(topic, 0): batch(b"a")}, acks=acks)[topic, 0].error_code for acks in (-1, 1)]
    assert codes == [ErrorCode.none, ErrorCode.none]


def test_log_append_time_stamps_and_tells_it(ask: Requests, topic: str) -> None:
    ask.create(topic, message_timestamp_type="LogAppendTime")
    answer = ask.produce({(topic, 0): batch(b"a", timestamp=5)})[topic, 0]
    (found,) = ask.fetch([{"topic": topic, "partitions": [asked()]}], version=12)
    assert answer.log_append_time is not None
    (record,) = records_of(found)
    assert record.timestamp > 1_700_000_000_000
    assert record.timestamp_type == 1


def asked() -> dict[str, int]:
    return {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "log_start_offset": -1}


class TestIdempotence:
    @staticmethod
    def send(ask: Requests, topic: str, producer_id: int, sequence: int, epoch: int = 0) -> tuple[ErrorCode, int]:
        records = batch(b"%d" % sequence, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        answer = ask.produce({(topic, 0): records})[topic, 0]
        return answer.error_code, answer.base_offset

    def test_a_repeated_batch_is_acknowledged_and_not_doubled(self, ask: Requests, topic: str) -> None:
        ask.create(topic)
        sent = [self.send(ask, topic, 7, sequence) for sequence in (0, 1, 0, 1, 2)]
        assert sent == [(ErrorCode.none, offset) for offset in (0, 1, 0, 1, 2)]
        assert ask.values(topic) == [b"0", b"1", b"2"]

    def test_a_gap_is_out_of_order(self, ask: Requests, topic: str) -> None:
        ask.create(topic)
        assert self.send(ask, topic, 7, 0) == (ErrorCode.none, 0)
        assert self.send(ask, topic, 7, 5) == (ErrorCode.out_of_order_sequence_number, -1)

    def test_an_old_epoch_is_fenced(self, ask: Requests, topic: str) -> None:
        ask.create(topic)
        assert self.send(ask, topic, 7, 0, epoch=1) == (ErrorCode.none, 0)
        assert self.send(ask, topic, 7, 1, epoch=0)[0] is ErrorCode.invalid_producer_epoch

    def test_producers_do_not_disturb_each_other(self, ask: Requests, topic: str) -> None:
        ask.create(topic)
        sent = [self.send(ask, topic, producer, sequence)[0] for sequence in range(3) for producer in (7, 8)]
        assert sent == [ErrorCode.none] * 6


def test_clients_do_not_write_to_internal_topics(ask: Requests) -> None:
    internal = "__consumer_offsets"
    ask.ask(ApiKey.FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": ["g"]})
    answer = ask.produce({(internal, 0): batch(b"garbage")})[internal, 0]
    assert answer.error_code is ErrorCode.invalid_topic_exception


def test_flush_messages_1_acknowledges_what_is_on_disk(ask: Requests, broker: BrokerProcess, topic: str) -> None:
    """The recovery point is not visible to clients, so only the answers and their order are checked."""
    ask.create(topic, 3, flush_messages="1")
    for offset in range(5):
        answers = ask.produce({(topic, index): batch(b"a") for index in range(3)})
        assert [a.base_offset for a in answers.values()] == [offset] * 3
