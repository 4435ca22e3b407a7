"""Loads and streams of a cluster that was lost and restored from its archive: they go on, or say what is missing."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from broker.archive.manifest_store import ManifestStore
from broker.client.partition_offsets import LATEST
from broker.cluster.cluster_backup import BackupFiles
from broker.errors import ErrorCode
from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import open_storage
from spark_connector.errors import DataLoss
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.read.micro_batches import MicroBatches
from spark_connector.read.stream_offset import Document, StreamOffset
from tests.support.broker_process import BrokerProcess
from tests.support.console import answer_of
from tests.support.plain_loads import PlainLoads
from tests.support.raw_requests import Requests
from tests.support.waiting import eventually

TP = TopicPartition("t", 0)


def produce(broker: BrokerProcess, count: int) -> None:
    with Requests(broker.bootstrap) as ask:
        eventually(lambda: ask.list_offset("t", LATEST).error_code is ErrorCode.none)
        for _ in range(0, count, 40):
            ask.put("t", *[bytes(100)] * 40)


def offsets(loads: PlainLoads) -> list[int]:
    return [offset for _, _, offset in loads.visible()]


def next_batch(broker: BrokerProcess, checkpoint: Document | None, **options: str) -> Document:
    """The end of the next batch of a stream that this offset of its checkpoint ended."""
    words = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t", "startingOffsets": "earliest", **options}
    with contextlib.closing(MicroBatches(parse_options(words, Mode.STREAM))) as batches:
        return batches.next_end(batches.initial() if checkpoint is None else checkpoint)


@pytest.mark.slow  # 5 s: two starts of a broker
def test_loads_go_on_after_a_restore_or_say_what_is_missing(tmp_path: Path) -> None:
    """One group had loaded records that were not archived, and the new ones have their offsets. The other had not."""
    archive = open_storage(str(tmp_path / "archive"))
    settings = {"standalone": "true", "broker.id": "7", "archive.url": archive.url, "offsets.topic.num.partitions": "1"}
    settings |= {"remote.log.storage.system.enable": "true", "archive.cluster.backup.interval.ms": "100"}
    with BrokerProcess(tmp_path / "data", settings) as broker:
        with Requests(broker.bootstrap) as ask:
            topic_id = ask.create("t", 1, remote_storage_enable="true", segment_bytes="20000", retention_ms="-1")
            cluster_id = ask.metadata("t").cluster_id
        produce(broker, 2000)
        eventually(lambda: ManifestStore(archive, cluster_id, topic_id, 0).load().end > 1600)
        ahead = PlainLoads(broker.bootstrap, "t", tmp_path / "ahead", group="ahead")
        behind = PlainLoads(broker.bootstrap, "t", tmp_path / "behind", group="behind", max_records=500)
        ahead.must_load()
        behind.must_load()
        read = next_batch(broker, None)
        files = BackupFiles(archive, cluster_id)
        eventually(lambda: (found := files.newest()[1]) is not None and "t" in found.topics())
        broker.kill()
        end = ManifestStore(archive, cluster_id, topic_id, 0).load().end
        assert 500 < end < 2000
        shutil.rmtree(broker.data_dir / "broker")
        answer_of("log", "restore", "--archive", archive.url, "--data", str(broker.data_dir / "broker"))
        broker.start()
        produce(broker, 1000)
        last = end + 1000

        for loads in (ahead, behind):
            loads.bootstrap = broker.bootstrap
        while behind.load().load_id is not None:
            pass
        assert offsets(behind) == list(range(last))
        before = offsets(ahead)
        with pytest.raises(DataLoss, match=f"loaded up to offset 2000.*{end}"):
            ahead.load()
        assert offsets(ahead) == before == list(range(2000))
        lenient = PlainLoads(
            broker.bootstrap, "t", tmp_path / "ahead", group="ahead", options={"failOnDataLoss": "false"}
        )
        lenient.must_load()
        assert offsets(ahead) == sorted([*range(2000), *range(end, last)])  # the new ones, each once
        assert lenient.load().load_id is None

        assert StreamOffset.from_json(read).offsets == {TP: 2000}
        with pytest.raises(DataLoss, match=f"2000.*{end}"):
            next_batch(broker, read)
        went_on = StreamOffset.from_json(next_batch(broker, read, failOnDataLoss="false"))
        assert (went_on.added, went_on.offsets) == ({TP: end}, {TP: last})
        archived = replace(StreamOffset.from_json(read), offsets={TP: 500}).to_json()
        went_on = StreamOffset.from_json(next_batch(broker, archived))
        assert (went_on.added, went_on.offsets) == ({}, {TP: last})
