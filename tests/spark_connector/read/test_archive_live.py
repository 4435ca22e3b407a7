"""`archive=direct` at a broker that archives, deletes and loses records while it is read; no Spark runs here."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition

from broker.client.cluster import Cluster
from broker.client.partition_offsets import EARLIEST, EARLIEST_LOCAL, LATEST, list_offsets
from broker.protocol.topic_partition import TopicPartition
from spark_connector.read.archive_plan import StoredRange
from spark_connector.read.readers import KafkaBatchReader
from spark_connector.read.size_estimator import SizeEstimator
from tests.conftest import BrokerFactory
from tests.support.archive_reads import Filler, Reads, StreamQuery, bounds, read_all
from tests.support.broker_process import BrokerProcess
from tests.support.randomness import seeded
from tests.support.scrape import Scrape
from tests.support.stream_calls import ReaderOf
from tests.support.topics import Topic
from tests.support.waiting import eventually

BATCH_BYTES = 400
"""More than a batch of seven records has."""
BYTES_OUT = "kafka_server_brokertopicmetrics_bytesout_total"


@pytest.fixture
def archiving(broker_factory: BrokerFactory, tmp_path: Path) -> BrokerProcess:
    """A broker with an archive that looks for segments to delete five times a second."""
    return broker_factory(
        {
            "archive.url": (tmp_path / "archive").as_uri(),
            "remote.log.storage.system.enable": "true",
            "log.retention.check.interval.ms": "200",
            "log.flush.scheduler.interval.ms": "50",
            "transaction.state.log.num.partitions": "2",
            "metrics.listener": "HTTP://127.0.0.1:0",
        }
    )


@pytest.fixture
def filler(archiving: BrokerProcess, topic: str) -> Filler:
    Topic(
        archiving.bootstrap,
        topic,
        2,
        segment_bytes="2000",
        index_interval_bytes="100",
        remote_storage_enable="true",
        local_retention_bytes="3000",
    )
    return Filler(archiving.bootstrap, topic)


def offsets(filler: Filler, place: int) -> dict[str, int]:
    with Cluster(filler.bootstrap) as cluster:
        found = list_offsets(cluster, {TopicPartition(filler.topic, partition): place for partition in (0, 1)})
    return {str(tp.partition): one.offset for tp, one in found.items()}


def test_rows_are_those_of_the_broker_while_segments_move_and_vanish(archiving: BrokerProcess, filler: Filler) -> None:
    """Promise A7, in batches."""
    reads, rng, producer = Reads(archiving.bootstrap, filler.topic), seeded(7), filler.producer()
    filler.transact(6)
    stored = 0
    for number in range(40):
        filler.send(producer, 30)
        if number == 20:
            Topic.configure(archiving.bootstrap, filler.topic, retention_bytes="20000")
        options = {**bounds(rng, filler.topic, filler.number), "failOnDataLoss": "false"}
        through_the_broker = reads.rows(**options)
        direct = reads.direct(**options)
        stored += len(reads.stored(**options))
        first = offsets(filler, EARLIEST)

        def left(rows: list[tuple[object, ...]], first: dict[str, int] = first) -> Counter[tuple[object, ...]]:
            return Counter(row for row in rows if int(str(row[4])) >= first[str(row[3])])

        assert left(direct) == left(through_the_broker), options
    assert stored > 50
    assert min(offsets(filler, EARLIEST).values()) > 0, "retention has moved the start"
    assert offsets(filler, EARLIEST_LOCAL) != offsets(filler, EARLIEST)


def test_the_broker_sends_only_what_is_live(archiving: BrokerProcess, filler: Filler) -> None:
    """Promise A8."""
    filler.send(filler.producer(), 2000)

    def settled() -> bool:
        live = [offsets(filler, LATEST)[one] - first for one, first in offsets(filler, EARLIEST_LOCAL).items()]
        return max(live) < 300

    eventually(settled)
    reads = Reads(archiving.bootstrap, filler.topic)

    def sent(reader: KafkaBatchReader, tasks: list[InputPartition]) -> tuple[int, float]:
        """How many rows are read, and the bytes that the broker sends for them."""
        before = Scrape(archiving.metrics_url).total(BYTES_OUT, topic=filler.topic)
        rows = len(read_all(reader, tasks))
        return rows, Scrape(archiving.metrics_url).total(BYTES_OUT, topic=filler.topic) - before

    direct = reads.reader(archive="direct")
    tasks = direct.partitions()
    ranges = [one for task in tasks for one in task.value if not isinstance(one, StoredRange)]
    starts = {str(one.tp.partition): one.from_offset for one in ranges}
    live = reads.reader(startingOffsets=json.dumps({filler.topic: starts}))
    rows, sent_for_all = sent(direct, tasks)
    live_rows, sent_for_live = sent(live, live.partitions())
    assert rows == 4000
    assert live_rows == sum(one.size for one in ranges) < 600
    assert sent_for_live > 0
    assert abs(sent_for_all - sent_for_live) <= len(ranges) * BATCH_BYTES


def test_sizes_are_estimated_by_what_the_disk_has(archiving: BrokerProcess, filler: Filler, tmp_path: Path) -> None:
    filler.send(filler.producer(), 1500)
    eventually(lambda: min(offsets(filler, EARLIEST_LOCAL).values()) > 1000)
    ends = {TopicPartition(filler.topic, int(one)): end for one, end in offsets(filler, LATEST).items()}
    with Cluster(archiving.bootstrap) as cluster:
        found = SizeEstimator(cluster).estimate(dict.fromkeys(ends, 0), ends)
    for tp in ends:
        archived = sum(path.stat().st_size for path in tmp_path.glob(f"archive/*/*/{tp.partition}/*.log"))
        expected = archived / offsets(filler, EARLIEST_LOCAL)[str(tp.partition)]
        assert expected * 0.6 < found[tp] < expected * 2


def test_a_stream_reads_each_record_once_while_segments_move(
    archiving: BrokerProcess, filler: Filler, reader_of: ReaderOf
) -> None:
    """Promise A7, in micro-batches."""
    producer = filler.producer()
    filler.send(producer, 1000)
    eventually(lambda: max(offsets(filler, EARLIEST_LOCAL).values()) > 500)
    where = {"kafka.bootstrap.servers": archiving.bootstrap, "subscribe": filler.topic, "archive": "direct"}
    query = StreamQuery(reader_of(**where, maxOffsetsPerTrigger="150"))
    while query.run(query.reader.getDefaultReadLimit()):
        if filler.number < 1500:
            filler.send(producer, 100)
    assert sorted(query.values) == filler.values
    assert query.stored > 1000
    assert query.live > 0
