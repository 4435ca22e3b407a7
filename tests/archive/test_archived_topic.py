"""What clients see of a topic that a running broker archives: its offsets, deletions, settings, and its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.client.admin import Admin, ResourceType
from broker.client.cluster import Cluster
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import EARLIEST, LATEST, Requests, ask_for, batch
from tests.support.scrape import Scrape
from tests.support.waiting import eventually

EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING, MAX_TIMESTAMP = -4, -5, -6, -3
BEGIN = 1_700_000_000_000
ARCHIVED = {
    "remote_storage_enable": "true",
    "retention_ms": "-1",
    "local_retention_bytes": "0",
    "segment_bytes": "1100",
    "file_delete_delay_ms": "0",
}
"""Four records a segment, and only the active one stays on the disk."""


@pytest.fixture(scope="module")
def archiving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    root: Path = tmp_path_factory.mktemp("archiving")
    settings = {
        "remote.log.storage.system.enable": "true",
        "archive.url": f"file://{root}/archive",
        "archive.delete.delay.ms": "0",
        "log.retention.check.interval.ms": "100",
        "log.flush.scheduler.interval.ms": "50",
        "metrics.listener": "HTTP://127.0.0.1:0",
    }
    with BrokerProcess(root / "data", settings, standalone=True) as broker:
        yield broker


@pytest.fixture
def ask(archiving: BrokerProcess) -> Iterator[Requests]:
    with Requests(archiving.bootstrap) as requests:
        yield requests


def offsets(ask: Requests, topic: str, *timestamps: int) -> list[int]:
    return [ask.list_offset(topic, timestamp).offset for timestamp in timestamps]


def fill(ask: Requests, topic: str, count: int = 10, first: int = 0) -> None:
    """Records a millisecond apart."""
    for number in range(first, first + count):
        records = batch(b"%d " % number + bytes(200), timestamp=BEGIN + number)
        assert ask.produce({(topic, 0): records})[topic, 0].error_code is ErrorCode.none


def archived(ask: Requests, topic: str) -> None:
    """A topic of ten records, of which the first eight are in the archive only."""
    ask.create(topic, 1, **ARCHIVED)
    fill(ask, topic)
    eventually(lambda: offsets(ask, topic, EARLIEST_LOCAL) == [8])


def values(ask: Requests, topic: str) -> list[int]:
    """The numbers of the records, from the log start."""
    found: list[int] = []
    offset, end = offsets(ask, topic, EARLIEST, LATEST)

    def has_all() -> bool:
        nonlocal offset
        read = [int(value.split()[0]) for value in ask.values(topic, offset) if value is not None]
        found.extend(read)
        offset += len(read)
        return offset >= end

    eventually(has_all)
    return found


def delete_records(ask: Requests, topic: str, before: int, timeout_ms: int = 20_000) -> Any:
    asked = [{"name": topic, "partitions": [{"partition_index": 0, "offset": before}]}]
    answer = ask.ask(ApiKey.DELETE_RECORDS, {"topics": asked, "timeout": timeout_ms})
    return answer.topics[0].partitions[0]


def test_reads_of_the_archive_are_in_the_metrics(archiving: BrokerProcess, ask: Requests, topic: str) -> None:
    def total(name: str, **labels: str) -> float:
        return Scrape(archiving.metrics_url).total(f"kafka_server_{name}", **labels)

    def fetched(what: str) -> float:
        return total(f"brokertopicmetrics_remotefetch{what}_total", topic=topic)

    archived(ask, topic)
    size = total("brokertopicmetrics_remotelogsizebytes", topic=topic)
    assert (fetched("requests"), fetched("bytes")) == (0, 0)
    before = total("archivecache_size_bytes")
    assert values(ask, topic) == list(range(10))
    eventually(lambda: fetched("bytes") == size > 0)
    assert (fetched("requests"), fetched("errors")) == (2, 0), "one for each segment, of which each is one chunk"
    assert total("archivecache_size_bytes") - before == size
    assert total("archivecache_waiting") == 0
    assert values(ask, topic) == list(range(10))
    assert fetched("requests") == 2, "the cache has them"


def test_a_damaged_object_is_an_error_of_its_partition(archiving: BrokerProcess, ask: Requests, topic: str) -> None:
    archive = archiving.data_dir.parent / "archive"
    before = set(archive.rglob("*.log"))
    archived(ask, topic)
    for path in set(archive.rglob("*.log")) - before:
        path.write_bytes(b"")

    def code() -> ErrorCode:
        return ErrorCode(ask.fetch([ask_for(topic, 0)], version=12)[0].error_code)

    eventually(lambda: code() is ErrorCode.kafka_storage_error)
    errors = Scrape(archiving.metrics_url).total("kafka_server_brokertopicmetrics_remotefetcherrors_total", topic=topic)
    assert errors > 0
    assert ask.values(topic, 8), "what is on the disk is read all the same"


def test_every_end_of_an_archived_topic(ask: Requests, topic: str) -> None:
    archived(ask, topic)
    assert offsets(ask, topic, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING, LATEST) == [0, 8, 7, 8, 10]
    tiered = ask.list_offset(topic, LATEST_TIERED)
    assert (tiered.error_code, tiered.leader_epoch) == (ErrorCode.none, 0)
    assert ask.ask(
        ApiKey.LIST_OFFSETS,
        {
            "replica_id": -1,
            "topics": [
                {
                    "name": topic,
                    "partitions": [
                        {"partition_index": 0, "timestamp": EARLIEST, "max_num_offsets": 9, "current_leader_epoch": -1}
                    ],
                }
            ],
        },
        version=0,
    ).topics[0].partitions[0].old_style_offsets == (0,)
    assert values(ask, topic) == list(range(10))


def test_the_ends_after_all_that_was_archived_is_deleted(ask: Requests, topic: str) -> None:
    """As Kafka answers (KIP-1005, KIP-1023): what was archived last is still told, and what waits begins behind it."""

    def told(timestamp: int) -> tuple[int, int]:
        answer = ask.list_offset(topic, timestamp)
        return answer.offset, answer.leader_epoch

    ask.create(topic, 1, **ARCHIVED)
    assert (told(LATEST_TIERED), told(EARLIEST_PENDING)) == ((-1, -1), (-1, -1)), "an empty topic has nothing to tell"
    fill(ask, topic)
    eventually(lambda: offsets(ask, topic, EARLIEST_LOCAL) == [8])
    assert (told(LATEST_TIERED), told(EARLIEST_PENDING)) == ((7, 0), (8, 0))
    delete_records(ask, topic, 9)
    assert (told(LATEST_TIERED), told(EARLIEST_PENDING)) == ((7, -1), (9, 0))
    delete_records(ask, topic, 10)
    assert (told(LATEST_TIERED), told(EARLIEST_PENDING)) == ((7, -1), (-1, -1)), "no record waits"


def test_times_lie_in_both_parts(ask: Requests, topic: str) -> None:
    archived(ask, topic)
    assert offsets(ask, topic, BEGIN + 3, BEGIN + 9, BEGIN + 10, MAX_TIMESTAMP) == [3, 9, -1, 9]


def test_records_of_both_parts_can_be_deleted(ask: Requests, topic: str) -> None:
    archived(ask, topic)
    answer = delete_records(ask, topic, 5)
    assert (answer.error_code, answer.low_watermark) == (ErrorCode.none, 5)
    assert offsets(ask, topic, EARLIEST, EARLIEST_LOCAL) == [5, 8]
    assert values(ask, topic) == list(range(5, 10))
    answer = delete_records(ask, topic, 9)
    assert (answer.error_code, answer.low_watermark) == (ErrorCode.none, 9)
    assert offsets(ask, topic, EARLIEST, EARLIEST_LOCAL) == [9, 9]
    answer = delete_records(ask, topic, -1)
    assert (answer.error_code, answer.low_watermark) == (ErrorCode.none, 10)
    fill(ask, topic, 10, first=10)
    eventually(lambda: offsets(ask, topic, EARLIEST_LOCAL) == [16])
    assert values(ask, topic) == list(range(10, 20)), "and the archive goes on"


def test_a_restart_changes_nothing(archiving: BrokerProcess, topic: str) -> None:
    with Requests(archiving.bootstrap) as ask:
        archived(ask, topic)
        delete_records(ask, topic, 2)
    for stop in (archiving.stop, archiving.kill):
        stop()
        archiving.start()
        with Requests(archiving.bootstrap) as ask:
            assert offsets(ask, topic, EARLIEST, EARLIEST_LOCAL, LATEST) == [2, 8, 10]
            assert values(ask, topic) == list(range(2, 10))


def test_an_archive_that_is_turned_off_and_on_again(archiving: BrokerProcess, ask: Requests, topic: str) -> None:
    """What only the archive had is gone, and the rest stays."""
    archived(ask, topic)
    with Cluster(archiving.bootstrap) as cluster:
        admin = Admin(cluster)

        def alter(**settings: str) -> None:
            named = {name.replace("_", "."): value for name, value in settings.items()}
            admin.alter_configs(ResourceType.TOPIC, topic, named)

        with pytest.raises(BrokerError, match=r"remote\.log\.delete\.on\.disable=true") as error:
            alter(remote_storage_enable="false")
        assert error.value.code is ErrorCode.invalid_config
        alter(remote_log_copy_disable="true", local_retention_bytes="-2")
        fill(ask, topic, 10, first=10)
        assert offsets(ask, topic, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED) == [0, 8, 7], "no copies, still readable"
        assert values(ask, topic) == list(range(20))
        alter(remote_storage_enable="false", remote_log_delete_on_disable="true")
        eventually(lambda: offsets(ask, topic, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED) == [8, 8, -1])
        assert values(ask, topic) == list(range(8, 20))
        alter(remote_storage_enable="true", remote_log_copy_disable="false", local_retention_bytes="0")
        eventually(lambda: offsets(ask, topic, EARLIEST_LOCAL) == [16])
        assert values(ask, topic) == list(range(8, 20))
        alter(retention_bytes="1500")
        eventually(lambda: offsets(ask, topic, EARLIEST) == [12])
        assert values(ask, topic) == list(range(12, 20))


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"remote_storage_enable": "true"}, {"cleanup_policy": "compact"}),
        ({"cleanup_policy": "compact"}, {"remote_storage_enable": "true"}),
        ({"remote_storage_enable": "true", "retention_ms": "1000"}, {"local_retention_ms": "1001"}),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    archiving: BrokerProcess, ask: Requests, topic: str, first: dict[str, str], then: dict[str, str]
) -> None:
    ask.create(topic, 1, **first)
    with Cluster(archiving.bootstrap) as cluster, pytest.raises(BrokerError) as error:
        Admin(cluster).alter_configs(
            ResourceType.TOPIC, topic, {name.replace("_", "."): value for name, value in then.items()}
        )
    assert error.value.code is ErrorCode.invalid_config
