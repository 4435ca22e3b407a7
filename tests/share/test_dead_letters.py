"""Dead letters of share groups (KIP-1191): what is archived is in a topic first, whatever is killed."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.errors import ErrorCode
from broker.records.batch import patch_base_offset, walk_batches
from broker.records.builder import BatchBuilder
from broker.records.compression import Codec
from broker.records.record import Record
from broker.share import dead_letters
from broker.share.share_partition_state import FetchedBatch, Wanted, acknowledgements
from tests.share.test_share_failover import Shared
from tests.support.broker_process import BrokerProcess
from tests.support.kafka import Kafka
from tests.support.raw_requests import Requests, ask_for, records_of
from tests.support.raw_transactions import RawProducer
from tests.support.replicating import Brokers, until
from tests.support.share_members import REJECT, RELEASE, ShareMember, configure
from tests.support.waiting import eventually

ENABLED = {"errors.deadletterqueue.group.enable": "true"}


@pytest.fixture
def ask(own_broker: Kafka) -> Iterator[Requests]:
    with Requests(own_broker.bootstrap) as requests:
        yield requests


def member_of(ask: Requests, topic: str, dlq: str, **settings: str) -> ShareMember:
    """A member of a group that begins at the first record of `topic`."""
    configure(
        ask,
        f"share-{topic}",
        share_auto_offset_reset="earliest",
        errors_deadletterqueue_topic_name=dlq,
        **{name.replace("copies", "errors_deadletterqueue_copy_record_enable"): one for name, one in settings.items()},
    )
    return ShareMember(ask, f"share-{topic}", topic).join()


def letters(ask: Requests, topic: str) -> list[Record]:
    (found,) = ask.fetch([ask_for(topic)], version=12)
    return records_of(found)


def context(record: Record) -> dict[str, str]:
    return {name[13:]: (value or b"").decode() for name, value in record.headers if name.startswith("__dlq.errors.")}


def batch(count: int, codec: int = Codec.NONE, **producer: Any) -> bytes:
    builder = BatchBuilder(codec=codec, max_bytes=1 << 30, **producer)
    for number in range(count):
        builder.append(1_700_000_000_000, b"key %d" % number, b"value %d" % number * 100, [("own", b"%d" % number)])
    return builder.build()


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_rejected_record_is_copied_as_it_was(ask: Requests, topic: str, codec: Codec) -> None:
    ask.create(topic)
    ask.create(f"dlq.{topic}", 1, **ENABLED)
    ask.produce({(topic, 0): batch(10, codec)})
    member = member_of(ask, topic, f"dlq.{topic}", copies="true")
    assert member.take() == [(0, 9, 1)]
    member.acknowledge({0: [(0, 9, [1, 3, 3, 1, 1, 1, 1, 1, 1, 3])]})
    eventually(lambda: len(letters(ask, f"dlq.{topic}")) == 3)
    (sent,) = ask.fetch([ask_for(f"dlq.{topic}")], version=12)
    assert {header.codec for _, header in walk_batches(bytes(sent.records))} == {codec}
    found = records_of(sent)
    assert [(one.key, one.value) for one in found] == [
        (b"key %d" % number, b"value %d" % number * 100) for number in (1, 2, 9)
    ]
    assert found[0].headers[0] == ("own", b"1")
    assert context(found[1]) == {
        "topic": topic,
        "partition": "0",
        "offset": "2",
        "group": f"share-{topic}",
        "delivery.count": "1",
        "message": "a member rejected the record",
    }


def test_a_record_at_its_last_delivery_is_named_and_not_copied(ask: Requests, topic: str) -> None:
    ask.create(topic)
    ask.create(f"dlq.{topic}", 1, **ENABLED)
    ask.produce({(topic, 0): batch(2)})
    member = member_of(ask, topic, f"dlq.{topic}", share_delivery_count_limit="2")
    for _ in range(2):
        member.take()
        member.accept(0, 0, RELEASE)
    eventually(lambda: len(letters(ask, f"dlq.{topic}")) == 1)
    (found,) = letters(ask, f"dlq.{topic}")
    assert (found.key, found.value) == (None, None)
    assert context(found)["delivery.count"] == "2"
    assert context(found)["message"] == "the record was delivered too often"
    assert found.headers[0] == ("__dlq.errors.topic", topic.encode())


def test_records_of_a_transaction_and_not_its_marker(ask: Requests, topic: str) -> None:
    ask.create(topic)
    ask.create(f"dlq.{topic}", 1, **ENABLED)
    producer = RawProducer(ask, f"tx-{topic}").begin()
    producer.add((topic, 0))
    assert producer.send(topic, b"a", b"b") is ErrorCode.none
    producer.end(commit=True)
    ask.produce({(topic, 0): batch(1)})
    member = member_of(ask, topic, f"dlq.{topic}", copies="true", share_isolation_level="read_committed")
    rows: list[tuple[int, int, int]] = []

    def all_taken() -> bool:
        rows.extend(member.take())
        return sum(last - first + 1 for first, last, _ in rows) == 3

    eventually(all_taken)
    for first, last, _ in rows:
        member.accept(first, last, REJECT)
    eventually(lambda: len(letters(ask, f"dlq.{topic}")) == 3)
    assert [context(one)["offset"] for one in letters(ask, f"dlq.{topic}")] == ["0", "1", "3"]
    assert [one.value for one in letters(ask, f"dlq.{topic}")][:2] == [b"a", b"b"]


def test_what_is_too_large_goes_without_the_record(ask: Requests, topic: str) -> None:
    ask.create(topic)
    ask.create(f"dlq.{topic}", 1, **ENABLED, **{"max.message.bytes": "500"})
    ask.produce({(topic, 0): batch(3)})
    member = member_of(ask, topic, f"dlq.{topic}", copies="true")
    member.take()
    member.accept(0, 2, REJECT)
    eventually(lambda: len(letters(ask, f"dlq.{topic}")) == 3)
    assert [context(one)["offset"] for one in letters(ask, f"dlq.{topic}")] == ["0", "1", "2"]
    assert all(one.value is None for one in letters(ask, f"dlq.{topic}"))


def test_a_group_cannot_name_a_topic_of_brokers(ask: Requests, topic: str) -> None:
    with pytest.raises(AssertionError, match="do not begin it with __"):
        configure(ask, topic, errors_deadletterqueue_topic_name="__consumer_offsets")


def test_a_kill_before_they_are_written(tmp_path: Path) -> None:
    """The rejection was answered; the topic was not there yet."""
    with BrokerProcess(tmp_path, {"num.partitions": "1"}, standalone=True) as broker:
        with Requests(broker.bootstrap) as ask:
            ask.create("t")
            ask.produce({("t", 0): batch(4)})
            member = member_of(ask, "t", "dlq.t", copies="true")
            assert member.take() == [(0, 3, 1)]
            assert member.accept(0, 1, REJECT) is ErrorCode.none
            eventually(lambda: "are not written yet" in broker.output)
            broker.kill()  # before the connection ends, which would release the others
        broker.start()
        with Requests(broker.bootstrap) as ask:
            ask.create("dlq.t", 1, **ENABLED)
            member = ShareMember(ask, "share-t", "t").join()
            taken: list[tuple[int, int, int]] = []

            def is_taken() -> bool:
                taken.extend(member.take())
                return bool(taken)

            eventually(is_taken)
            eventually(lambda: len(letters(ask, "dlq.t")) >= 2)
            assert [one.key for one in letters(ask, "dlq.t")] == [b"key 0", b"key 1"]
            assert taken == [(2, 3, 1)], "what was rejected does not come again"


def test_a_damaged_batch_goes_without_its_records() -> None:
    good, bad = bytearray(batch(2, Codec.LZ4)), bytearray(batch(2))
    patch_base_offset(bad, 0, 2, 0)
    bad[-1] ^= 1
    records: dict[int, Record] = {}
    assert dead_letters._decode(bytes(good + bad), records) == (4, Codec.LZ4)
    assert list(records) == [0, 1]


@pytest.fixture
def three(three: Brokers, monkeypatch: pytest.MonkeyPatch) -> Brokers:
    monkeypatch.setattr(dead_letters, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(dead_letters, "LONGEST_PAUSE_S", 0.1)
    return three


async def test_another_broker_leads_their_topic(
    three: Brokers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """First there is no topic, and the records are archived without; then there is one on another broker. At last the
    leader may create one."""
    shared = Shared(three)
    key = shared.key(led_by_coordinator=True)

    async def choose(topic: str) -> None:
        new = {"errors.deadletterqueue.topic.name": topic}
        await shared.any._group_configs.alter(key.group_id, new, validate_only=False)
        configs = [one._group_configs for one in three.running.values()]
        await until(lambda: all(one.of(key.group_id).errors_deadletterqueue_topic_name == topic for one in configs))

    await choose("dlq.t")
    share = await shared.begin(key)
    writer = three.running[shared.leader(key)]._share.dead_letters

    async def reject(offset: int) -> None:
        share.acquire("a", offset, [FetchedBatch(offset, offset)], Wanted(1, 1))
        assert await share.acknowledge("a", acknowledgements([(offset, offset, [REJECT])])) is ErrorCode.none

    await reject(0)
    await until(lambda: share.state.start_offset == 1)
    assert "the records are archived without" in caplog.text
    assert writer.failed[key.group_id] == 5, "a topic that is not there is not waited for as long as a broker"
    other = next(broker_id for broker_id in three.running if broker_id != shared.leader(key))
    await asyncio.to_thread(create_on, three, other)
    await until(lambda: all("dlq.t" in one._topics.metadata.topics for one in three.running.values()))
    for offset in range(1, 4):
        await reject(offset)
    await until(lambda: writer.written[key.group_id] == 3)
    with Requests(f"127.0.0.1:{three.ports[other]}") as ask:
        found = await asyncio.to_thread(letters, ask, "dlq.t")
    assert [context(one)["offset"] for one in found] == ["1", "2", "3"]
    await until(lambda: share.state.start_offset == 4)

    settings = dataclasses.replace(writer.settings(), errors_deadletterqueue_auto_create_topics_enable=True)
    monkeypatch.setattr(writer, "settings", lambda: settings)
    await choose("dlq.made")
    await reject(4)
    await until(lambda: writer.written[key.group_id] == 4)
    assert shared.any._topics.metadata.topics["dlq.made"].config["errors.deadletterqueue.group.enable"] == "true"


def create_on(three: Brokers, broker_id: int) -> None:
    with Requests(three.bootstrap.split(",")[0]) as ask:
        assignments = [{"partition_index": 0, "broker_ids": [broker_id]}]
        configs = [{"name": name, "value": one} for name, one in {**ENABLED, "min.insync.replicas": "1"}.items()]
        counts = {"num_partitions": -1, "replication_factor": -1}
        (made,) = ask.create_topics({"name": "dlq.t", **counts, "assignments": assignments, "configs": configs})
        assert made.error_code is ErrorCode.none, made
