"""Reads of a topic with an archive, and records for it; for the tests of `archive=direct` and `archive=only`."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer
from pyspark.sql.datasource import InputPartition

from broker.protocol.topic_partition import TopicPartition
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.read.archive_plan import StoredRange, stored_range
from spark_connector.read.fetch import read_ranges
from spark_connector.read.planning import OffsetRange
from spark_connector.read.readers import KafkaBatchReader
from tests.support.kafka import await_markers
from tests.support.small_archive import SmallArchive
from tests.support.stream_calls import ALL, Reader, as_spark_does

NOON = 1_700_000_000_000
TP = TopicPartition("flights", 0)
"""The partition of a SmallArchive."""

Row = tuple[object, ...]


class Reads:
    """Batch reads of one topic, through the broker and from the store at `url`, or where the broker says it is."""

    def __init__(self, bootstrap: str, topic: str, url: str | None = None) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.url = url

    @property
    def where(self) -> dict[str, str]:
        """The options of a direct read."""
        return {"archive": "direct"} if self.url is None else {"archive": "direct", "archive.url": self.url}

    def tasks(self, **more: str) -> list[tuple[OffsetRange, ...]]:
        return [task.value for task in self.reader(**more).partitions()]

    def rows(self, **more: str) -> list[Row]:
        return rows_of(self.reader(includeHeaders="true", **more))

    def direct(self, **more: str) -> list[Row]:
        return self.rows(**{**self.where, **more})

    def only(self, **more: str) -> list[Row]:
        """From the store, without a broker."""
        options = {**self.where, "archive": "only", "includeHeaders": "true", "subscribe": self.topic, **more}
        return rows_of(KafkaBatchReader(parse_options(options, Mode.BATCH)))

    def stored(self, **more: str) -> list[StoredRange]:
        """What the tasks of a direct read take from the store."""
        tasks = self.tasks(**{**self.where, **more})
        return [one for task in tasks for one in task if isinstance(one, StoredRange)]

    def reader(self, **more: str) -> KafkaBatchReader:
        options = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": self.topic, **more}
        return KafkaBatchReader(parse_options(options, Mode.BATCH))


def rows_of(reader: KafkaBatchReader) -> list[Row]:
    """All that a query reads, sorted."""
    return read_all(reader, reader.partitions())


def read_all(reader: KafkaBatchReader, tasks: Iterable[InputPartition]) -> list[Row]:
    """What the tasks of a query read, sorted."""
    batches = [batch for task in tasks for batch in reader.read(task)]
    return sorted(tuple(map(str, row.values())) for batch in batches for row in batch.to_pylist())


class Filler:
    """Records of several sizes in both partitions, in batches of at most seven: key, headers and time follow from a
    number that grows."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.number = 0

    @property
    def values(self) -> list[bytes]:
        """Of all records, sorted."""
        return sorted([b"%d" % number * (number % 3) for number in range(self.number)] * 2)

    def producer(self, name: str | None = None) -> Producer:
        settings = {"bootstrap.servers": self.bootstrap, "batch.num.messages": 7, "log_level": 0}
        if name is None:
            return Producer(settings)
        producer = Producer({**settings, "transactional.id": f"{self.topic}-{name}"})
        producer.init_transactions(30)
        return producer

    def send(self, producer: Producer, count: int) -> None:
        for number in range(self.number, self.number + count):
            key = None if number % 5 == 0 else b"key-%d" % (number % 11)
            headers: list[tuple[str, str | bytes | None]] = [("kind", b"%d" % (number % 3))] if number % 4 else []
            value, time = b"%d" % number * (number % 3), NOON + number * 1000
            for partition in (0, 1):
                producer.produce(self.topic, value, key, partition, timestamp=time, headers=headers)
        self.number += count
        assert producer.flush(60) == 0

    def transact(self, rounds: int) -> None:
        """Short transactions, a third of them aborted, within long ones, which are aborted and committed in turn."""
        long_one, short_one = self.producer("long"), self.producer("short")
        for number in range(rounds):
            if number % 6 == 0:
                long_one.begin_transaction()
            self.send(long_one, 3)
            short_one.begin_transaction()
            self.send(short_one, 20)
            short_one.abort_transaction(30) if number % 3 == 0 else short_one.commit_transaction(30)
            if number % 6 == 5:
                long_one.abort_transaction(30) if number % 12 == 5 else long_one.commit_transaction(30)
        assert rounds % 6 == 0, "nothing stays open"
        await_markers(self.bootstrap, self.topic)


class StreamQuery:
    """A stream that counts what came from the store and what from the broker."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.at: dict[str, Any] = as_spark_does(reader.initialOffset())
        self.values: list[bytes] = []
        self.stored = self.live = 0

    def run(self, limit: Any = ALL) -> bool:
        """One batch; False if there is none."""
        end = as_spark_does(self.reader.latestOffset(self.at, limit))
        if end == self.at:
            return False
        for task in self.reader.partitions(self.at, end):
            for one in task.value:
                if isinstance(one, StoredRange):
                    self.stored += one.size
                else:
                    self.live += one.size
            self.values += [value.as_py() for batch in self.reader.read(task) for value in batch["value"]]
        self.reader.commit(end)
        self.at = end
        return True


def bounds(rng: random.Random, topic: str, end: int) -> dict[str, str]:
    """Options of a read: offsets or times, filters, and how it is split."""
    options: dict[str, str] = {}
    starts, ends = zip(*(sorted((rng.randint(0, end), rng.randint(0, end))) for _ in (0, 1)), strict=True)
    match rng.randrange(4):
        case 0:
            options["startingOffsets"] = json.dumps({topic: {"0": starts[0], "1": starts[1]}})
            options["endingOffsets"] = json.dumps({topic: {"0": ends[0], "1": ends[1]}})
        case 1:
            options["startingTimestamp"] = str(NOON + min(starts) * 700)
            options["startingOffsetsByTimestampStrategy"] = "latest"
            options["endingTimestamp"] = str(NOON + max(ends) * 700)
        case 2:
            low = NOON + starts[0] * 700
            options["where"] = f"timestamp >= {low} AND timestamp < {low + 60_000} AND key IN ('key-1', 'key-7')"
        case 3:
            options["filterOffsets"] = f"{starts[0]}-{ends[0]},{starts[1]}-{ends[1]}"
            options["filterHeader"] = "kind=1"
    options |= rng.choice(
        [{}, {"minPartitions": "7"}, {"maxRecordsPerPartition": "53"}, {"maxBytesPerPartition": "700"}, {}]
    )
    isolation = rng.choice(["read_committed", "read_uncommitted", "read_committed"])
    return {**options, "kafka.isolation.level": isolation, "minBytesPerPartition": rng.choice(["0", "1m"])}


def planned(archive: SmallArchive, low: int = 0, high: int | None = None) -> StoredRange:
    """What one task reads of a small archive, by its manifest as it is now."""
    manifest = archive.store.load()
    part = OffsetRange(TP, max(low, manifest.start), manifest.end if high is None else high)
    return stored_range(part, manifest, archive.storage.url, archive.place)


def values(archive: SmallArchive, task: StoredRange | None = None, **options: str) -> list[bytes]:
    """The values that a task reads; without a task of the whole archive."""
    given = {"archive": "only", "archive.url": archive.storage.url, "subscribe": TP.topic, **options}
    parts = [planned(archive) if task is None else task]
    batches = read_ranges(parse_options(given, Mode.BATCH), parts, {})
    return [value.as_py() for batch in batches for value in batch["value"]]
