"""What a task reads, from a real broker and from logs that were damaged on its disk."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from broker.client.batch_producer import produce_batches
from broker.client.cluster import Cluster
from broker.client.fetcher import Fetched
from broker.client.partition_offsets import EARLIEST, list_offsets
from broker.errors import CorruptBatch, RequestTimedOut
from broker.protocol.topic_partition import TopicPartition
from broker.records import native
from broker.records.batch import HEADER_SIZE, build_batch, patch_base_offset, walk_batches
from broker.records.compression import Codec, compress
from broker.records.control import ControlType, end_transaction_marker
from spark_connector.errors import DataLoss
from spark_connector.options.read_options import Mode, SourceOptions, parse_options
from spark_connector.read.arrow_batches import MAX_ROWS, BatchMaker
from spark_connector.read.fetch import decode_fetched, read_range
from spark_connector.read.planning import OffsetRange
from tests.support.broker_process import BrokerProcess
from tests.support.kafka import Kafka
from tests.support.record_batches import Row, build, follow
from tests.support.sample_records import AWKWARD, CODECS
from tests.support.source_tree import ROOT
from tests.support.topics import Topic
from tests.support.waiting import eventually

BrokerFactory = Callable[..., BrokerProcess]


def options(bootstrap: str, topic: str, **more: str) -> SourceOptions:
    return parse_options({"kafka.bootstrap.servers": bootstrap, "subscribe": topic, **more}, Mode.BATCH)


def read(topic: Topic, first: int, until: int, topic_id: str | None = None, **more: str) -> list[bytes]:
    planned = OffsetRange(TopicPartition(topic.name, 0), first, until)
    batches = read_range(options(topic.bootstrap, topic.name, **more), planned, topic_id)
    return [value for batch in batches for value in batch["value"].to_pylist()]


def numbers(*runs: range) -> list[bytes]:
    return [b"%d" % number for run in runs for number in run]


@pytest.fixture
def ten(broker: Kafka, topic: str) -> Topic:
    """Ten numbered records in one partition."""
    made = Topic(broker.bootstrap, topic)
    made.number(10)
    return made


@pytest.mark.skipif(native.kernel is None, reason="the plain way makes scalars, for which pyarrow imports pandas")
def test_a_task_does_not_wait_for_pandas(ten: Topic) -> None:
    script = (
        "import sys\n"
        "from broker.protocol.topic_partition import TopicPartition\n"
        "from spark_connector.options.read_options import Mode, parse_options\n"
        "from spark_connector.read.fetch import read_range\n"
        "from spark_connector.read.planning import OffsetRange\n"
        "options = {'kafka.bootstrap.servers': sys.argv[1], 'subscribe': sys.argv[2]}\n"
        "planned = OffsetRange(TopicPartition(sys.argv[2], 0), 0, 10)\n"
        "batches = list(read_range(parse_options(options, Mode.BATCH), planned))\n"
        "print(sum(batch.num_rows for batch in batches), 'pandas' in sys.modules)\n"
    )
    words = [sys.executable, "-c", script, ten.bootstrap, ten.name]
    assert subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT).stdout == "10 False\n"


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_and_every_awkward_record(broker: Kafka, topic: str, codec: str) -> None:
    made = Topic(broker.bootstrap, topic)
    for sample in AWKWARD:
        made.produce([sample.value], key=sample.key, headers=sample.headers, codec=codec, timestamp=1_700_000_000_000)
    planned = OffsetRange(TopicPartition(topic, 0), 0, len(AWKWARD))
    table = pa.Table.from_batches(read_range(options(broker.bootstrap, topic, includeHeaders="true"), planned))
    for row, sample in zip(table.to_pylist(), AWKWARD, strict=True):
        assert (row["key"], row["value"]) == (sample.key, sample.value)
        headers = None if row["headers"] is None else tuple((h["key"], h["value"]) for h in row["headers"])
        assert headers == (sample.headers or None)
        assert row["timestamp"].timestamp() == 1_700_000_000
    assert table["offset"].to_pylist() == list(range(len(AWKWARD)))


@pytest.mark.parametrize(("first", "until"), [(0, 10), (0, 1), (3, 7), (9, 10), (4, 4)])
def test_a_range_is_cut_inside_its_batches(ten: Topic, first: int, until: int) -> None:
    assert read(ten, first, until) == numbers(range(first, until))


def test_only_the_columns_asked_for_come(ten: Topic) -> None:
    planned = OffsetRange(TopicPartition(ten.name, 0), 2, 5)
    batches = read_range(options(ten.bootstrap, ten.name, columns="partition,value,headers"), planned)
    assert [row for batch in batches for row in batch.to_pylist()] == [
        {"partition": 0, "value": b"%d" % number, "headers": None} for number in range(2, 5)
    ]


def test_a_long_range_comes_whole_in_moderate_batches(broker: Kafka, topic: str) -> None:
    made, count = Topic(broker.bootstrap, topic), 60_000
    made.produce((b"%08d" % number * 20 for number in range(count)), codec="lz4")
    planned = OffsetRange(TopicPartition(topic, 0), 0, count)
    batches = list(
        read_range(options(broker.bootstrap, topic, **{"kafka.max.partition.fetch.bytes": "262144"}), planned)
    )
    assert max(batch.num_rows for batch in batches) <= MAX_ROWS
    assert pa.Table.from_batches(batches)["offset"].to_pylist() == list(range(count))


def test_a_read_that_was_left_early_spoils_nothing(ten: Topic) -> None:
    small = {"kafka.max.partition.fetch.bytes": "1"}
    for _ in range(3):
        ten.number(10)
    planned = OffsetRange(TopicPartition(ten.name, 0), 0, 40)
    left: Iterator[pa.RecordBatch] = read_range(options(ten.bootstrap, ten.name, **small), planned)
    next(left)
    del left
    assert read(ten, 0, 40, **small) == numbers(*[range(10)] * 4)


def test_a_range_that_is_not_there_names_all_there_is_to_know(ten: Topic) -> None:
    with pytest.raises(DataLoss) as raised:
        read(ten, 50, 60)
    text = str(raised.value)
    assert text.startswith("[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE]")
    assert f"offset [50, 60) for topic partition {ten.name}-0 (topic '{ten.name}', partition 0)" in text
    assert "The broker has offsets [0, 10)" in text
    assert "set the source option failOnDataLoss to false" in text


def test_a_range_that_is_not_there_can_be_skipped(ten: Topic, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pykafka.spark"):
        assert read(ten, 50, 60, failOnDataLoss="false") == []
    assert "COULD_NOT_READ_OFFSET_RANGE" in caplog.text


def test_records_that_never_come_are_a_clear_error(ten: Topic) -> None:
    with pytest.raises(RequestTimedOut, match=rf"{ten.name}-0: nothing came at offset 10 .* ends at 12"):
        read(ten, 8, 12, **{"kafkaConsumer.pollTimeoutMs": "2000"})


def test_a_deleted_topic_is_data_loss(ten: Topic) -> None:
    ten.delete()
    with pytest.raises(DataLoss, match=rf"COULD_NOT_READ_OFFSET_RANGE.*no topic '{ten.name}'"):
        read(ten, 0, 10)
    assert read(ten, 0, 10, failOnDataLoss="false") == []


def test_a_topic_that_was_recreated_after_planning_is_not_read(ten: Topic) -> None:
    with pytest.raises(DataLoss, match=r"COULD_NOT_READ_OFFSET_RANGE.*recreated since the batch was planned"):
        read(ten, 0, 10, topic_id="00000000-0000-0000-0000-000000000001")


@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_that_is_recreated_while_it_is_read_is_read_no_further(
    ten: Topic, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Though the new topic has a record at each offset of the range. A fetch brings one batch, and the next one is on
    its way."""
    for number in range(10, 15):
        ten.produce([b"%d" % number])
    with Cluster(ten.bootstrap) as cluster:
        id_ = str(cluster.topic(ten.name).topic_id)
    given = options(
        ten.bootstrap, ten.name, failOnDataLoss=str(fails).lower(), **{"kafka.max.partition.fetch.bytes": "1"}
    )
    batches = read_range(given, OffsetRange(TopicPartition(ten.name, 0), 0, 15), id_)
    rows = next(batches)["value"].to_pylist()
    ten.delete()
    ten.create()
    ten.produce([b"of another topic"] * 20)
    if fails:
        with pytest.raises(DataLoss, match=r"COULD_NOT_READ_OFFSET_RANGE.*recreated while it was read"):
            list(batches)
    else:
        rows += [value for batch in batches for value in batch["value"].to_pylist()]
        assert rows == numbers(range(len(rows)))
        assert "recreated while it was read" in caplog.text


class Disk:
    """A topic of one partition, three batches (offsets 0-9, 10-19, 20-29), and its file on its own broker's disk."""

    def __init__(self, broker: BrokerProcess, name: str) -> None:
        self.broker = broker
        self.topic = Topic(broker.bootstrap, name)
        tens = (numbers(range(first, first + 10)) for first in (0, 10, 20))
        now = int(time.time() * 1000)
        batches = [build([Row(now, None, value) for value in values]) for values in tens]
        with Cluster(broker.bootstrap) as cluster:  # other clients cut batches as their threads get time
            produce_batches(cluster, TopicPartition(name, 0), batches)
        (self.log,) = broker.data_dir.glob(f"**/{name}-0/*.log")

    def batches(self) -> list[bytes]:
        log = self.log.read_bytes()
        return [log[position : position + header.size] for position, header in walk_batches(log)]


@pytest.fixture
def disk(broker_factory: BrokerFactory, topic: str) -> Disk:
    return Disk(broker_factory(), topic)


def test_holes_that_compaction_left_are_passed_over_silently(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    disk.broker.stop()  # cleanly: after a crash a log that is not compacted would be cut at the hole
    disk.log.write_bytes(b"".join(disk.batches()[::2]))
    for index in disk.log.parent.glob("*index"):
        index.unlink()
    disk.broker.start()
    assert read(disk.topic, 0, 30) == numbers(range(10), range(20, 30))
    assert read(disk.topic, 5, 15) == numbers(range(5, 10))
    assert read(disk.topic, 12, 18) == []
    assert "DATA_LOSS" not in caplog.text


def test_a_corrupt_batch_names_partition_and_offset(disk: Disk) -> None:
    with disk.log.open("r+b") as log:
        log.seek(sum(map(len, disk.batches()[:2])) - 1)
        log.write(b"\x7f")
    with pytest.raises(CorruptBatch, match=rf"{disk.topic.name}-0 .*reading \[0, 30\) .*CRC of the batch at offset 10"):
        read(disk.topic, 0, 30)
    assert read(disk.topic, 20, 30) == numbers(range(20, 30))


def test_what_retention_deleted_is_data_loss_or_skipped_up_to_what_is_left(
    broker_factory: BrokerFactory, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    own = broker_factory({"log.retention.check.interval.ms": "50"})
    made = Topic(own.bootstrap, topic, segment_bytes="1000", retention_bytes="2000")
    for first in range(0, 300, 10):
        made.number(10, first=first)
    cluster = Cluster(own.bootstrap)
    tp = TopicPartition(topic, 0)
    eventually(lambda: list_offsets(cluster, {tp: EARLIEST})[tp].offset > 0)
    with pytest.raises(DataLoss, match=r"offset \[0, 300\).*The broker has offsets \[[1-9]\d*, 300\)"):
        read(made, 0, 300)
    left = read(made, 0, 300, failOnDataLoss="false")
    assert left == numbers(range(300 - len(left), 300))
    assert 0 < len(left) < 300
    assert "COULD_NOT_READ_OFFSET_RANGE" in caplog.text
    cluster.close()


def test_aborted_records_and_markers_are_left_out_and_counted_as_read() -> None:
    committed, aborted = 7, 8
    log = bytearray()
    for offset, batch in (
        (0, transactional(committed, b"a", b"b")),
        (2, transactional(aborted, b"never")),
        (3, end_transaction_marker(aborted, 0, ControlType.ABORT, 0, 0)),
        (4, end_transaction_marker(committed, 0, ControlType.COMMIT, 0, 0)),
        (5, transactional(aborted, b"c")),
    ):
        log += batch
        patch_base_offset(log, len(log) - len(batch), offset, 0)
    fetched = Fetched(memoryview(log), 6, 6, 0, [(aborted, 2)], 6)
    planned = OffsetRange(TopicPartition("t", 0), 0, 6)
    batches = decode_fetched(BatchMaker(("offset", "value")), planned, fetched, 0, check_crcs=True)
    assert [(row["offset"], row["value"]) for batch in batches for row in batch.to_pylist()] == [
        (0, b"a"),
        (1, b"b"),
        (5, b"c"),
    ]


def test_a_fetch_with_aborted_records_is_decoded_in_parts_of_bounded_memory() -> None:
    mebibyte, committed, aborted = 1 << 20, 7, 8
    batches: list[bytes] = []
    for number in range(100):  # the aborted transaction ends in the middle of the second part
        producer = aborted if number % 4 == 0 else committed
        batches.append(transactional(producer, b"%03d" % number + bytes(mebibyte), codec=Codec.LZ4))
        if number == 50:
            batches.append(end_transaction_marker(aborted, 0, ControlType.ABORT, 0, 0))
    log = memoryview(follow(batches))
    fetched = Fetched(log, len(batches), len(batches), 0, [(aborted, 0)], len(batches))
    planned = OffsetRange(TopicPartition("t", 0), 0, len(batches))
    rows, largest = [], 0
    for batch in decode_fetched(BatchMaker(("value",)), planned, fetched, 0, check_crcs=True):
        rows += [value.as_py()[:3] for value in batch["value"]]
        largest = max(largest, batch["value"].buffers()[2].size)
    assert rows == [b"%03d" % number for number in range(100) if number > 50 or number % 4]
    assert largest <= 32 * mebibyte


def transactional(producer_id: int, *values: bytes, codec: int = Codec.NONE) -> bytes:
    plain = build([Row(0, None, value) for value in values])
    records = compress(codec, plain[HEADER_SIZE:])
    return build_batch(records, len(values), codec=codec, producer_id=producer_id, producer_epoch=0, transactional=True)
