"""Loads of more partitions than one request to ZooKeeper can hold, on a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import open_storage
from spark_connector.loads.files.directory import FilesDestination
from spark_connector.loads.files.zookeeper_log import ZooKeeperCommitLog
from spark_connector.loads.record import LoadId, LoadRange, LoadRecord, LoadTooLarge
from spark_connector.offset_store.base import OffsetConflict
from spark_connector.offset_store.zookeeper import ZooKeeperOffsetStore

Offsets = Mapping[TopicPartition, int]


class Crowded(ZooKeeperOffsetStore):
    """Takes some twenty partitions at a time."""

    max_request = 3_000


@pytest.fixture
def open_store(zookeeper: str) -> Iterator[Callable[..., ZooKeeperOffsetStore]]:
    stores: list[ZooKeeperOffsetStore] = []

    def open_one(kind: type[ZooKeeperOffsetStore] = Crowded) -> ZooKeeperOffsetStore:
        stores.append(kind(f"{zookeeper}/large-loads"))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


def record_of(group: str, number: int, stored: Offsets, ends: Offsets, output: str = "file:///x") -> LoadRecord:
    ranges = tuple(
        LoadRange(tp.topic, tp.partition, stored.get(tp, 0), end, stored.get(tp), end) for tp, end in ends.items()
    )
    return LoadRecord(str(LoadId(group, number, "0123abcd")), output, "parquet", "zookeeper", 0, ranges)


def offsets_of(partitions: int, offset: int) -> dict[TopicPartition, int]:
    return {TopicPartition(f"orders-{n // 100}", n % 100): offset + n for n in range(partitions)}


def test_ten_thousand_partitions_are_committed_and_gone_on_from(
    open_store: Callable[..., ZooKeeperOffsetStore], group: str
) -> None:
    log = ZooKeeperCommitLog(open_store(ZooKeeperOffsetStore), group)
    first, second = offsets_of(10_000, 1_000), offsets_of(10_000, 2_000_000)
    log.append(record_of(group, 1, {}, first))
    assert log.offsets() == first, "committed, though no offset has a node yet"
    log.mark_published(record_of(group, 1, {}, first))
    assert log.newest().published
    later = record_of(group, 2, first, second)
    log.append(later)
    log.mark_published(later)
    assert log.offsets() == second
    assert log.record(2) == later


def test_a_rival_and_a_stream_that_come_between_are_noticed(
    open_store: Callable[..., ZooKeeperOffsetStore], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    log = ZooKeeperCommitLog(store, group)
    ends = offsets_of(60, 5)
    tp = next(iter(ends))
    with monkeypatch.context() as patch:
        stored = store._stored
        other = open_store()

        def interfere(group: str, wanted: set[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
            found = stored(group, wanted)
            other.commit(group, {tp: 3})
            return found

        patch.setattr(store, "_stored", interfere)
        with pytest.raises(OffsetConflict):
            log.append(record_of(group, 1, {}, ends))
    assert log.sequences() == []
    with pytest.raises(OffsetConflict, match="stored offset is 3, expected none"):
        log.append(record_of(group, 1, {}, ends))
    assert log.offsets() == {tp: 3}


def test_offsets_half_stored_are_known_and_stored_by_whoever_repairs(
    open_store: Callable[..., ZooKeeperOffsetStore], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = offsets_of(60, 5)
    record = record_of(group, 1, {}, ends)
    store = open_store()
    log = ZooKeeperCommitLog(store, group)
    log.append(record)
    with monkeypatch.context() as patch:
        pieces = store._pieces

        def die(group: str, offsets: Offsets) -> Iterator[dict[TopicPartition, int]]:
            yield next(iter(pieces(group, offsets)))
            raise KeyboardInterrupt

        patch.setattr(store, "_pieces", die)
        with pytest.raises(KeyboardInterrupt):
            log.mark_published(record)
    assert 0 < len(store.read(group)) < 60
    assert not log.newest().published
    assert log.offsets() == ends
    ZooKeeperCommitLog(open_store(), group).mark_published(record)
    assert store.read(group) == ends


def test_one_that_has_slept_over_the_next_load_brings_no_offset_back(
    open_store: Callable[..., ZooKeeperOffsetStore], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = offsets_of(60, 5), offsets_of(60, 50)
    store, awake = open_store(), ZooKeeperCommitLog(open_store(), group)
    record = record_of(group, 1, {}, first)
    awake.append(record)
    awake.append(record)  # as a repair may
    pieces = store._pieces

    def sleep(group: str, offsets: Offsets) -> Iterator[dict[TopicPartition, int]]:
        for number, piece in enumerate(pieces(group, offsets)):
            if number == 1:
                awake.mark_published(record)
                awake.append(record_of(group, 2, first, second))
                awake.mark_published(record_of(group, 2, first, second))
            yield piece

    monkeypatch.setattr(store, "_pieces", sleep)
    ZooKeeperCommitLog(store, group).mark_published(record)
    assert awake.offsets() == store.read(group) == second


def test_what_no_commit_can_hold_is_refused_before_it_is_written_and_blocks_nothing(
    open_store: Callable[..., ZooKeeperOffsetStore], group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = open_storage(str(tmp_path))
    store = open_store(ZooKeeperOffsetStore)
    log = ZooKeeperCommitLog(store, group)
    site = FilesDestination(output, log, group)
    record = record_of(group, 1, {}, offsets_of(2_000, 5), output.url)
    monkeypatch.setattr(store, "max_request", 10**6)
    site.stage(record)
    site.seal(record)  # by a version that did not ask, or with a ZooKeeper that took more
    monkeypatch.setattr(store, "max_request", 2_000)
    with pytest.raises(LoadTooLarge, match=r"2,000 partitions make a record .* load fewer topics in one group"):
        site.stage(record)
    assert site.repair() == []
    assert output.names("_staging/zookeeper") == []
    small = record_of(group, 1, {}, offsets_of(3, 5), output.url)
    site.stage(small)
    site.seal(small)
    site.commit(small)
    assert log.newest().published
    assert log.offsets() == small.committed


def test_a_stream_tells_offsets_of_more_partitions_than_one_request_holds(
    open_store: Callable[..., ZooKeeperOffsetStore], group: str
) -> None:
    store, ends = open_store(), offsets_of(40, 7)
    store.commit(group, ends)
    assert store.read(group) == ends
