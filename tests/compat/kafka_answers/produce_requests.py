"""Produce: batches that are sound, and every way in which they may not be; idempotent producers; a topic's limits."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from broker.protocol.api_keys import ApiKey
from broker.records.builder import BatchBuilder
from broker.records.crc32c import crc32c
from tests.compat.kafka_answers.asking import Asking, versions
from tests.support.raw_requests import NO_ID

HOUR_MS = 3_600_000
MAGIC, CRC, ATTRIBUTES = 16, 17, 21  # places in a batch
LENGTH, LAST_OFFSET_DELTA, MAX_TIMESTAMP, COUNT, RECORDS = 8, 23, 35, 57, 61
GZIP, ZSTD = 1, 4


class Sent(NamedTuple):
    """One partition's part of a request."""

    records: bytes | None
    topic: str = ""
    partition: int = 0
    acks: int = -1
    transactional_id: str | None = None


def batch(*values: bytes, timestamp: int | None = None, key: bytes | None = None, **producer: Any) -> bytes:
    """One batch, by now unless a time is given."""
    builder = BatchBuilder(max_bytes=1 << 30, **producer)
    for value in values:
        builder.append(int(time.time() * 1000) if timestamp is None else timestamp, key, value)
    return builder.build()


def by(producer_id: int, epoch: int, sequence: int, *values: bytes, transactional: bool = False) -> bytes:
    """A batch of an idempotent producer."""
    return batch(
        *values or (b"x",),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


def altered(records: bytes, *changes: tuple[str, int, int], sealed: bool = True) -> bytes:
    """With (format, place, value) written into it, and, sealed, a CRC that fits."""
    changed = bytearray(records)
    for form, place, value in changes:
        struct.pack_into(form, changed, place, value)
    if sealed:
        struct.pack_into(">I", changed, CRC, crc32c(changed[ATTRIBUTES:]))
    return bytes(changed)


def ask_all(asking: Asking) -> None:
    topic = f"{asking.prefix}p"
    asking.create(topic)
    for version in versions(ApiKey.PRODUCE):
        _produce(asking, "ok", Sent(batch(b"x"), topic), version)
    for version in (3, 7, 9, versions(ApiKey.PRODUCE)[-1]):
        for name, sent in (*_ways_to_send(), *_damaged(), *_odd(version)):
            _produce(asking, name, sent if sent.topic else sent._replace(topic=topic), version)
    _ask_latest(asking, topic)
    _without_acks(asking, topic)
    _idempotent(asking)
    _limits_of_topics(asking)


def _produce(asking: Asking, name: str, sent: Sent, version: int = 9, *, offsets: bool = False) -> None:
    """`offsets`: what base offset is given, not only whether there is one, is part of the answer."""
    data = {"index": sent.partition, "records": sent.records}
    body = {
        "transactional_id": sent.transactional_id,
        "acks": sent.acks,
        "timeout": 10_000,
        "topic_data": [{"name": sent.topic, "partition_data": [data]}],
    }

    def pick(answer: Any) -> Any:
        (partition,) = answer["responses"][0]["partition_responses"]
        if not offsets and partition["base_offset"] >= 0:
            partition["base_offset"] = "stored"
        return partition

    asking.ask(f"Produce {name}", ApiKey.PRODUCE, body, version, pick)


def _ways_to_send() -> Iterator[tuple[str, Sent]]:
    x = batch(b"x")
    yield "acks 1", Sent(x, acks=1)
    yield "acks 2", Sent(x, acks=2)
    yield "unknown topic", Sent(x, "nope-y")
    yield "unknown part", Sent(x, partition=5)
    yield "neg part", Sent(x, partition=-1)
    yield "null records", Sent(None)
    yield "empty records", Sent(b"")
    yield "bad topic name", Sent(x, "a/b")
    yield "internal topic", Sent(x, "__consumer_offsets")
    yield "txid but not transactional", Sent(x, transactional_id="no-such")


def _damaged() -> Iterator[tuple[str, Sent]]:
    x, xs, two = batch(b"x"), batch(b"x" * 100), batch(b"x", b"y")
    yield "bad crc", Sent(altered(x, (">B", len(x) - 1, x[-1] ^ 1), sealed=False))
    yield "magic 3", Sent(altered(x, (">b", MAGIC, 3), sealed=False))
    yield "magic 1", Sent(altered(x, (">b", MAGIC, 1), sealed=False))
    yield "two batches", Sent(x + batch(b"y"))
    yield "truncated", Sent(x[:-3])
    yield "trailing junk", Sent(x + b"junk")
    yield "5 bytes", Sent(b"hello")
    yield "too large", Sent(batch(b"x" * 1_100_000))
    yield "zstd", Sent(batch(b"x" * 100, codec=ZSTD))
    yield "codec 5", Sent(altered(batch(b"x" * 100, codec=GZIP), (">h", ATTRIBUTES, 5)))
    yield "gzip that is not", Sent(altered(xs, (">h", ATTRIBUTES, GZIP)))
    yield "count wrong", Sent(altered(two, (">i", COUNT, 3)))
    yield "count less", Sent(altered(two, (">i", COUNT, 1)))
    yield "count 0", Sent(altered(two, (">i", COUNT, 0)))
    yield "last offset delta wrong", Sent(altered(two, (">i", LAST_OFFSET_DELTA, 7)))
    yield "base offset 100", Sent(altered(two, (">q", 0, 100), sealed=False))
    yield "length 5", Sent(altered(x, (">i", LENGTH, 5), sealed=False))
    yield "length neg", Sent(altered(x, (">i", LENGTH, -5), sealed=False))
    yield "control batch", Sent(altered(x, (">h", ATTRIBUTES, 0x20)))
    yield "delete horizon flag", Sent(altered(x, (">h", ATTRIBUTES, 0x40)))
    yield "append time flag", Sent(altered(x, (">h", ATTRIBUTES, 0x08)))
    yield "reserved attr", Sent(altered(x, (">h", ATTRIBUTES, 0x100)))
    yield "record attrs", Sent(altered(x, (">B", RECORDS + 1, 0x7F)))
    yield "record len short", Sent(altered(x, (">B", RECORDS, 2)))
    yield "no records in batch", Sent(altered(x[:RECORDS], (">i", COUNT, 0), (">i", LENGTH, RECORDS - 12)))


def _odd(version: int) -> Iterator[tuple[str, Sent]]:
    """Times and producers that do not fit; a producer id of its own for each version."""
    now = int(time.time() * 1000)
    yield "ts neg", Sent(batch(b"x", timestamp=-1))
    yield "ts future", Sent(batch(b"x", timestamp=now + 60 * HOUR_MS))
    yield "max ts wrong", Sent(altered(batch(b"x"), (">q", MAX_TIMESTAMP, now + 3 * HOUR_MS)))
    yield "pid without seq", Sent(by(77, 0, -1))
    yield "pid no epoch", Sent(by(77, -1, 0))
    yield "unknown pid seq 5", Sent(by(900_000 + version, 0, 5))
    yield "unknown pid seq 0", Sent(by(910_000 + version, 0, 0))
    yield "transactional no txid", Sent(by(77, 0, 0, transactional=True))
    yield "transactional unknown txid", Sent(by(77, 0, 0, transactional=True), transactional_id="no-such")


def _ask_latest(asking: Asking, topic: str) -> None:
    """One record lies there for each that was stored; a time in the answer tells a duplicate."""
    stored = sum(
        isinstance(answer, dict) and answer.get("base_offset") == "stored" and answer["log_append_time"] is None
        for answers in asking.answers.values()
        for answer in answers.values()
    )
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    body = {"replica_id": -1, "topics": [{"name": topic, "partitions": [partition]}], "timeout": 1000}

    def pick(answer: Any) -> Any:
        return answer["topics"][0]["partitions"][0]["offset"] - stored

    asking.ask("latest", ApiKey.LIST_OFFSETS, body, 8, pick)


def _without_acks(asking: Asking, topic: str) -> None:
    """No answer, and for what is refused a connection that is closed: the next request says which."""
    sound = batch(b"z")
    for name, records in (("ok", sound), ("bad crc", altered(sound, (">b", len(sound) - 1, 1), sealed=False))):
        data = {"name": topic, "partition_data": [{"index": 0, "records": records}]}
        body = {"transactional_id": None, "acks": 0, "timeout": 1000, "topic_data": [data]}
        asking.requests.send(ApiKey.PRODUCE, body, 9)
        asked = {"topics": [{"name": topic, "topic_id": NO_ID}], "allow_auto_topic_creation": False}
        asking.ask(f"after acks 0 {name}", ApiKey.METADATA, asked, 9, lambda p: p["topics"][0]["error_code"])


def _idempotent(asking: Asking) -> None:
    topic = f"{asking.prefix}idem"
    asking.create(topic)
    body = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
    given = asking.ask(
        "InitPid", ApiKey.INIT_PRODUCER_ID, body, 4, lambda p: {**p, "producer_id": p["producer_id"] >= 0}
    )
    producer_id = int(given.producer_id)

    def send(name: str, epoch: int, sequence: int, count: int = 1) -> None:
        records = by(producer_id, epoch, sequence, *[b"x"] * count)
        _produce(asking, f"idem {name}", Sent(records, topic), offsets=True)

    send("0", 0, 0)
    send("dup", 0, 0)
    send("1..3", 0, 1, 3)
    send("dup 1..3", 0, 1, 3)
    send("gap", 0, 9)
    send("overlap", 0, 2)
    send("overlap2", 0, 3, 2)
    send("4", 0, 4)
    for sequence in range(5, 12):
        send(str(sequence), 0, sequence)
    send("old dup out of window", 0, 4)
    send("dup in window", 0, 8)
    send("oldest in window", 0, 7)
    send("new epoch seq 3", 1, 3)
    send("new epoch seq 0", 1, 0)
    send("old epoch", 0, 12)
    send("epoch jump", 7, 0)
    send("wrap", 7, 2**31 - 1)
    both = by(producer_id, 7, 1, b"a") + by(producer_id, 7, 2, b"b")
    _produce(asking, "idem two batches", Sent(both, topic), offsets=True)
    _describe_producers(asking, topic)


def _describe_producers(asking: Asking, topic: str) -> None:
    asked = [(topic, [0, 4]), ("nope-y", [0]), ("a/b", [0])]

    def pick(answer: Any) -> Any:
        partitions = [partition for topic in answer["topics"] for partition in topic["partitions"]]
        for partition in partitions:
            for producer in partition["active_producers"]:
                del producer["producer_id"], producer["last_timestamp"]
        return partitions

    body = {"topics": [{"name": name, "partition_indexes": indexes} for name, indexes in asked]}
    asking.ask("DescribeProducers", ApiKey.DESCRIBE_PRODUCERS, body, 0, pick)


def _limits_of_topics(asking: Asking) -> None:
    now = int(time.time() * 1000)

    def send(name: str, suffix: str, records: bytes, acks: int = -1) -> None:
        _produce(asking, name, Sent(records, asking.prefix + suffix, acks=acks), offsets=True)

    def create(suffix: str, **config: str) -> None:
        asking.create(asking.prefix + suffix, 1, **config)

    create("cmp", cleanup_policy="compact")
    send("compact no key", "cmp", batch(b"x"))
    send("compact key", "cmp", batch(b"x", key=b"k"))
    send("compact one of two no key", "cmp", batch(b"x", key=b"k") + batch(b"x"))
    create("lat", message_timestamp_type="LogAppendTime")
    send("append time", "lat", batch(b"x"))
    create("small", max_message_bytes="100")
    send("max.message.bytes", "small", batch(b"x" * 200))
    send("gz below", "small", batch(b"x" * 200, codec=GZIP))
    create("seg", segment_bytes="100")
    send("bigger than segment", "seg", batch(b"x" * 200))
    create("isr", min_insync_replicas="2")
    send("min isr 2 all", "isr", batch(b"x"))
    send("min isr 2 acks 1", "isr", batch(b"x"), acks=1)
    create("tsb", message_timestamp_before_max_ms="1000")
    send("ts before", "tsb", batch(b"x", timestamp=now - 100_000))
    create("tsa", message_timestamp_after_max_ms="1000")
    send("ts after", "tsa", batch(b"x", timestamp=now + 100_000))
