"""`archive=only`: what is archived, without a broker; no Spark runs here."""

from __future__ import annotations

import json

import pytest

from broker.archive.layout import DELETED_FILE, topic_directory
from broker.client.cluster_metadata import UnknownTopic
from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import ConnectorError, DataLoss
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.read.archive_topics import ArchiveOffsetReader
from spark_connector.read.offset_readers import open_offset_reader
from tests.support.archive_reads import NOON, Filler, Reads
from tests.support.randomness import seeded
from tests.support.topic_archiver import TopicArchiver

COMMITTED = {"kafka.isolation.level": "read_committed"}


def ends(reads: Reads, **more: str) -> dict[str, int]:
    """Where a read of the archive ends, by partition."""
    options = {**reads.where, "archive": "only", "subscribe": reads.topic, **more}
    reader = open_offset_reader(parse_options(options, Mode.BATCH))
    assert isinstance(reader, ArchiveOffsetReader)
    return {str(tp.partition): offset for tp, offset in reader.batch_bounds().end.items()}


def test_rows_are_those_of_the_broker_up_to_the_archives_end(
    reads: Reads, archiver: TopicArchiver, topic_of_segments: Filler
) -> None:
    rng = seeded(35)
    topic_of_segments.transact(12)
    for _ in range(6):
        archiver.archive(most=2)
        isolation = {"kafka.isolation.level": rng.choice(["read_committed", "read_uncommitted"])}
        end = ends(reads, **isolation)
        until = json.dumps({reads.topic: end})
        assert reads.only(**isolation) == reads.rows(endingOffsets=until, **isolation)
        low = NOON + rng.randrange(topic_of_segments.number) * 700
        times = {"startingTimestamp": str(low), "startingOffsetsByTimestampStrategy": "latest", "minPartitions": "5"}
        archived = [row for row in reads.rows(**times, **isolation) if int(str(row[4])) < end[str(row[3])]]
        assert reads.only(**times, **isolation) == archived


def test_committed_records_end_where_it_is_not_known_whether_they_are(
    reads: Reads, archiver: TopicArchiver, topic_of_segments: Filler
) -> None:
    topic_of_segments.transact(6)
    cut = 0
    for _ in range(20):
        archiver.archive(most=1)
        manifest = archiver.store().load()
        end = ends(reads, **COMMITTED)["0"]
        assert end <= manifest.end
        cut += end < manifest.end
        assert ends(reads)["0"] == manifest.end
    assert cut > 2, "the long transaction begins at once and ends late"


def test_times_are_found_as_brokers_find_them(reads: Reads, archiver: TopicArchiver, topic_of_segments: Filler) -> None:
    topic_of_segments.transact(6)
    archiver.archive()
    tp = TopicPartition(reads.topic, 0)
    options = {"subscribe": reads.topic}
    ours = open_offset_reader(parse_options({**options, **reads.where, "archive": "only"}, Mode.BATCH))
    theirs = open_offset_reader(parse_options({**options, "kafka.bootstrap.servers": reads.bootstrap}, Mode.BATCH))
    end = ours.log_ends([tp])[tp].offset
    for number in range(0, topic_of_segments.number, 7):
        ms = NOON + number * 1000 - 1
        expected = theirs._list({tp: ms})[tp]
        assert ours._list({tp: ms})[tp] == (expected if expected < end else -1)
    theirs.close()


def test_a_topic_is_found_by_its_name(reads: Reads, archiver: TopicArchiver, topic_of_segments: Filler) -> None:
    topic_of_segments.send(topic_of_segments.producer(), 100)
    archiver.archive()
    everything = reads.only()
    assert everything
    with pytest.raises(UnknownTopic, match="is not in the archive"):
        reads.only(subscribe="another")
    archiver.write_topic(topic_directory("another-cluster", archiver.topic_id))
    with pytest.raises(ConfigError, match=r"several archives.*another-cluster.*'archive\.cluster'"):
        reads.only()
    assert reads.only(**{"archive.cluster": archiver.cluster_id}) == everything
    assert reads.only(**{"archive.cluster": "another-cluster"}) == []
    root = topic_directory(archiver.cluster_id, archiver.topic_id)
    archiver.storage.create(f"{root}/{DELETED_FILE}", b"{}")
    assert reads.only() == [], "that of the other cluster"


def test_what_the_archive_does_not_have_is_data_loss(
    reads: Reads, archiver: TopicArchiver, topic_of_segments: Filler
) -> None:
    topic_of_segments.send(topic_of_segments.producer(), 200)
    archiver.archive()
    everything = reads.only()
    archiver.begin_at(50)
    start = {"startingOffsets": json.dumps({reads.topic: {"0": 10, "1": 0}})}
    with pytest.raises(DataLoss, match=r"offset \[10, 50\).*The archive has offsets \[50, "):
        reads.only(**start)
    assert len(reads.only(**start, failOnDataLoss="false")) == len(everything) - 50
    assert reads.only() == reads.only(**start, failOnDataLoss="false")
    archiver.storage.create(f"{topic_directory('broken', archiver.topic_id)}/topic.json", b"[]")
    with pytest.raises(ConnectorError, match="PYKAFKA_ARCHIVE_BROKEN"):
        reads.only()
