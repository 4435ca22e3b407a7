"""`archive=direct`: the same rows as through the broker, wherever the archive begins and ends; no Spark runs here."""

from __future__ import annotations

import itertools

import pytest

from broker.errors import ConfigError, CorruptBatch
from spark_connector.errors import ConnectorError, DataLoss
from spark_connector.read import archive_reader
from tests.support.archive_reads import NOON, Filler, Reads, bounds, read_all
from tests.support.free_ports import refused_port
from tests.support.randomness import seeded
from tests.support.topic_archiver import TopicArchiver
from tests.support.topics import Topic


def test_rows_are_those_of_the_broker_within_any_bounds(
    reads: Reads, archiver: TopicArchiver, topic_of_segments: Filler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_reader, "READ_BYTES", 700)  # a batch has up to 300
    rng = seeded(34)
    topic_of_segments.transact(24)
    end = topic_of_segments.number
    stored = 0
    for _ in range(12):
        if rng.random() < 0.5:
            archiver.archive(most=1)
        options = bounds(rng, reads.topic, end)
        stored += len(reads.stored(**options))
        assert reads.direct(**options) == reads.rows(**options), options
    assert stored > 20


def test_what_is_gone_from_the_store_a_broker_is_asked_for(
    reads: Reads, archiver: TopicArchiver, topic_of_segments: Filler, caplog: pytest.LogCaptureFixture
) -> None:
    topic_of_segments.send(topic_of_segments.producer(), 300)
    archiver.archive()
    reader = reads.reader(**reads.where)
    tasks = reader.partitions()
    archiver.begin_at(150)
    archiver.remove_objects(below=100)
    assert read_all(reader, tasks) == read_all(reads.reader(), reads.reader().partitions())
    assert "is gone from the archive from offset" in caplog.text


def test_what_retention_has_taken_since_the_plan_is_data_loss(
    reads: Reads, archiver: TopicArchiver, topic_of_segments: Filler
) -> None:
    topic_of_segments.send(topic_of_segments.producer(), 300)
    archiver.archive()
    for fail in ("true", "false"):
        reader = reads.reader(failOnDataLoss=fail, **reads.where)
        tasks = reader.partitions()
        if fail == "true":
            everything = read_all(reader, tasks)
            archiver.begin_at(150)
            archiver.remove_objects(below=150)
            Topic.eat(reads.bootstrap, reads.topic, 0, 150)
            with pytest.raises(DataLoss, match=r"Could not read records in offset \[0, "):
                read_all(reader, tasks)
        else:
            assert len(read_all(reader, tasks)) == len(everything) - 150


@pytest.mark.parametrize("harm", ["short", "flipped", "other"])
def test_an_object_that_is_not_what_was_archived_fails_the_read(
    reads: Reads, archiver: TopicArchiver, topic_of_segments: Filler, harm: str
) -> None:
    topic_of_segments.send(topic_of_segments.producer(), 300)
    archiver.archive()
    store, manifest = archiver.store(), archiver.store().load()
    path, other = (store.place.segment(segment.name) for segment in manifest.segments[:2])
    data = bytearray(archiver.storage.read(path))
    if harm == "short":
        del data[-100:]
    elif harm == "flipped":
        data[-1] ^= 1
    else:
        data = bytearray(archiver.storage.read(other))
    archiver.storage.remove(path)
    archiver.storage.create(path, bytes(data))
    with pytest.raises(CorruptBatch, match=reads.topic):
        reads.direct()


def test_times_leave_out_what_cannot_pass(reads: Reads, archiver: TopicArchiver, topic_of_segments: Filler) -> None:
    topic_of_segments.send(topic_of_segments.producer(), 600)
    archiver.archive()
    whole = sum(piece.end - piece.start for one in reads.stored() for piece in one.pieces)
    where = {"where": f"timestamp >= {NOON + 300_000}"}
    some = sum(piece.end - piece.start for one in reads.stored(**where) for piece in one.pieces)
    assert some < whole * 0.6
    assert reads.direct(**where) == reads.rows(**where)


def test_history_is_cut_into_tasks_that_share_no_bytes(
    reads: Reads, archiver: TopicArchiver, topic_of_segments: Filler
) -> None:
    topic_of_segments.send(topic_of_segments.producer(), 600)
    archiver.archive()
    parts = reads.stored(minPartitions="9", minBytesPerPartition="0")
    assert len(parts) >= 8
    read = [(one.tp, piece.segment, piece.start, piece.end) for one in parts for piece in one.pieces]
    assert len(set(read)) == len(read)
    for (tp, name, _, end), (next_tp, next_name, start, _) in itertools.pairwise(sorted(read)):
        assert (tp, name) != (next_tp, next_name) or end <= start


def test_a_small_rest_shares_a_task(reads: Reads, archiver: TopicArchiver, topic_of_segments: Filler) -> None:
    topic_of_segments.send(topic_of_segments.producer(), 200)
    archiver.archive(most=1)
    assert len(reads.tasks(**reads.where)) == 2, "one from the store, one live"


def test_brokers_without_an_archive_are_told(reads: Reads, topic_of_segments: Filler) -> None:
    topic_of_segments.send(topic_of_segments.producer(), 10)
    with pytest.raises(ConfigError, match=r"'archive'=direct: the brokers have no archive.*'archive.url'"):
        reads.rows(archive="direct")


def test_a_store_that_cannot_be_read_is_named_without_secrets(reads: Reads, topic_of_segments: Filler) -> None:
    topic_of_segments.send(topic_of_segments.producer(), 10)
    options = {"archive": "direct", "archive.url": "s3://bucket/archive", "archive.option.key": "k"}
    options |= {"archive.option.secret": "hush", "archive.option.endpoint_url": f"http://127.0.0.1:{refused_port()}"}
    with pytest.raises(ConnectorError, match=r"PYKAFKA_ARCHIVE_UNAVAILABLE.*'s3://bucket/archive'") as caught:
        reads.rows(**options)
    assert "hush" not in f"{caught.value!r}"
    with pytest.raises(ConfigError, match="storage option wrong: s3:// takes key, secret"):
        reads.rows(**{**options, "archive.option.wrong": "hush"})
