"""`archive=direct` at a broker that archives, deletes and loses records while it is read; no Spark runs here."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from broker.client.cluster import Cluster
from broker.client.partition_offsets import EARLIEST, LATEST, list_offsets
from broker.protocol.topic_partition import TopicPartition
from tests.conftest import BrokerFactory
from tests.support.archive_reads import Filler, Reads, StreamQuery, bounds
from tests.support.broker_process import BrokerProcess
from tests.support.scrape import Scrape
from tests.support.stream_calls import ReaderOf
from tests.support.topics import Topic
from tests.support.waiting import eventually

EARLIEST_LOCAL = -4
BYTES_OUT = "kafka_server_brokertopicmetrics_bytesout_total"


@pytest.fixture
def archiving(broker_factory: BrokerFactory, tmp_path: Path) -> BrokerProcess:
    """A broker with an archive that looks for segments to delete five times a second."""
    return broker_factory(
        {
            "archive.url": (tmp_path / "archive").as_uri(),
            "remote.log.storage.system.enable": "true",
            "log.retention.check.interval.ms": "200",
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
    reads, rng, producer = Reads(archiving.bootstrap, filler.topic), random.Random(7), filler.producer()
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

    def bytes_out(**options: str) -> tuple[int, float]:
        before = Scrape(archiving.metrics_url).total(BYTES_OUT, topic=filler.topic)
        rows = len(reads.rows(**options))
        return rows, Scrape(archiving.metrics_url).total(BYTES_OUT, topic=filler.topic) - before

    rows, whole = bytes_out()
    direct_rows, direct = bytes_out(archive="direct")
    assert rows == direct_rows == 4000
    assert 0 < direct < whole / 5


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
