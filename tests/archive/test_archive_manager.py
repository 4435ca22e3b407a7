"""The archives of a broker's partitions, on real logs and a real directory: copies, deletions, leaders that come late.

The store can be taken away. Time is the test's.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.archive.archive_manager import _producers, _sweep
from broker.archive.archive_state import Sweep
from broker.archive.copier import CopyFailed
from broker.archive.layout import new_object_name
from broker.archive.log_beginning import state_from
from broker.archive.manifest import Add, Manifest, Truncate
from broker.archive.manifest_store import ManifestStore
from broker.archive.verify import verify_partition
from broker.errors import BrokerError
from broker.log.log_config import LogConfig
from broker.log.producer_snapshot import encode_snapshot
from broker.protocol.topic_partition import TopicPartition
from tests.support.archiving_log import ARCHIVED, DELAY_MS, PLACE, TOPIC_ID, TP, Broker
from tests.support.away_store import AwayStore
from tests.support.batches import append, batch, fill


@pytest.fixture
def store(tmp_path: Path) -> AwayStore:
    return AwayStore(str(tmp_path / "archive"))


def manifest(store: AwayStore) -> Manifest:
    return ManifestStore(store.storage, "cluster", TOPIC_ID, 0).load()


def objects(store: AwayStore) -> int:
    return sum(name.endswith((".log", ".aux")) for name in store.storage.names(PLACE.directory))


def is_clean(store: AwayStore, *, orphans: int = 0) -> bool:
    report = verify_partition(store.storage, PLACE, deep=True, orphan_ms=10**15, now_ms=10**14)
    return not report.problems and report.unnamed <= orphans


def test_closed_segments_are_archived_and_may_leave_the_disk_then(tmp_path: Path, store: AwayStore) -> None:
    async def scenario() -> None:
        broker = Broker(tmp_path, store)
        broker.lead(0)
        fill(broker.log, 60)
        await broker.until_archived()
        assert broker.log.apply_retention() > 0
        assert broker.log.local_start_offset > 0 == broker.log.log_start_offset
        assert broker.metrics.remote_copy_requests == len(manifest(store).segments) > 3
        assert broker.metrics.remote_copy_bytes == manifest(store).size
        assert is_clean(store)
        await broker.manager.close()

    asyncio.run(scenario())


def test_while_the_store_is_away_nothing_leaves_the_disk(tmp_path: Path, store: AwayStore) -> None:
    """Promise A1."""

    async def scenario() -> None:
        broker = Broker(tmp_path, store)
        store.is_away = True
        broker.lead(0)
        for _ in range(10):  # times local.retention.bytes
            fill(broker.log, 10)
            broker.log.flush()
            assert broker.log.apply_retention() == 0
        await broker.until(lambda: bool(broker.manager.problem))
        closed = broker.log.segments[:-1]
        assert (broker.status.lag_segments, broker.status.lag_bytes) == (len(closed), sum(one.size for one in closed))
        assert "hunter2" not in broker.manager.problem
        assert "cannot reach" in broker.status.problem
        assert broker.metrics.remote_copy_errors > 0
        assert broker.log.local_start_offset == 0
        store.is_away = False
        await broker.until_archived()
        assert broker.manager.problem == ""
        assert broker.log.apply_retention() > 0
        assert manifest(store).end == broker.log.active_base_offset
        assert is_clean(store)
        await broker.manager.close()

    asyncio.run(scenario())


def test_deleted_records_leave_the_archive_after_a_while(tmp_path: Path, store: AwayStore) -> None:
    async def scenario() -> None:
        broker = Broker(tmp_path, store)
        broker.lead(0)
        fill(broker.log, 60)
        await broker.until_archived()
        before, start = objects(store), broker.log.segments[3].base_offset + 1
        broker.log.delete_records(start)
        await broker.until(lambda: broker.log.log_start_offset == start)
        assert manifest(store).start == start
        assert objects(store) == before  # a reader may have a plan that names them
        broker.clock.advance(DELAY_MS)
        await broker.until(lambda: objects(store) == before - 2 * 3)
        await broker.until(lambda: broker.metrics.remote_delete_requests == 2 * 3)
        assert is_clean(store)
        await broker.manager.close()

    asyncio.run(scenario())


def test_the_next_leader_goes_on_and_an_old_one_commits_nothing(tmp_path: Path, store: AwayStore) -> None:
    """Its segments end elsewhere. Promises A3 and A4."""

    async def scenario() -> None:
        old, new = Broker(tmp_path, store, 1), Broker(tmp_path, store, 2)
        new.log.update_config(LogConfig(remote_storage_enable=True, segment_bytes=1_700, retention_ms=-1))
        for number in range(60):
            data = batch(b"%d" % number + b"x" * 100)
            append(old.log, data, leader_epoch=0)
            append(new.log, data, leader_epoch=0)
        old.lead(0)
        await old.until_archived()
        fill(old.log, 20)
        new.lead(1)
        fill(new.log, 20)
        await new.until_archived()
        assert manifest(store).epoch == 1
        old.log.flush()
        old.manager.tick()
        await asyncio.sleep(0.2)
        await old.until(lambda: old.manifest is not None and old.manifest.epoch == 1)
        assert manifest(store).end == new.log.active_base_offset
        assert is_clean(store, orphans=2)  # of the copy that came too late
        for broker in (old, new):
            await broker.manager.close()

    asyncio.run(scenario())


def test_a_log_that_lost_its_disk_begins_where_its_archive_ends(tmp_path: Path, store: AwayStore) -> None:
    async def scenario() -> None:
        old = Broker(tmp_path, store, 1)
        old.lead(0)
        append(old.log, batch(b"one", b"two", producer_id=9, producer_epoch=0, sequence=0))
        fill(old.log, 40)
        await old.until_archived()
        await old.manager.close()
        end = manifest(store).end

        new = Broker(tmp_path, store, 2)
        ready: list[TopicPartition] = []
        new.manager.on_ready = ready.append
        store.is_away = True
        new.lead(4)
        assert not new.manager.may_serve(TP)
        await new.until(lambda: bool(new.manager.problem))
        assert not new.manager.may_serve(TP)
        store.is_away = False
        await new.until(lambda: new.manager.may_serve(TP))
        assert ready == [TP]
        assert (new.log.log_start_offset, new.log.local_start_offset, new.log.log_end_offset) == (0, end, end)
        assert new.log.epochs.entries == old.log.epochs.entries
        assert new.log.producers.get(9) is not None
        assert {one.end for one in changes(store) if isinstance(one, Truncate)} <= {0, end}  # only epochs, no records
        fill(new.log, 40)
        await new.until_archived()
        assert manifest(store).start == 0
        assert is_clean(store)
        await new.manager.close()

    asyncio.run(scenario())


def changes(store: AwayStore) -> list[Any]:
    entries = ManifestStore(store.storage, "cluster", TOPIC_ID, 0)
    return [entry.change for entry in entries._entries(range(manifest(store).next_number))]


def test_after_an_unclean_election_the_archive_follows_the_new_leader(tmp_path: Path, store: AwayStore) -> None:
    async def scenario() -> None:
        old, new = Broker(tmp_path, store, 1), Broker(tmp_path, store, 2)
        for number in range(60):
            data = batch(b"%d" % number + b"x" * 100)
            append(old.log, data, leader_epoch=0)
            if number < 25:
                append(new.log, data, leader_epoch=0)
        old.lead(0)
        await old.until_archived()
        await old.manager.close()
        for number in range(30):
            append(new.log, batch(b"new %d" % number + b"x" * 100), leader_epoch=1)
        new.lead(1)
        await new.until_archived()
        assert Truncate(25) in changes(store)
        assert [(one.epoch, one.start) for one in manifest(store).epochs] == [(0, 0), (1, 25)]
        assert is_clean(store, orphans=100)  # what was truncated
        await new.manager.close()

    asyncio.run(scenario())


def test_a_new_leader_deletes_nothing_for_what_an_older_one_has_archived(tmp_path: Path, store: AwayStore) -> None:
    """After an unclean election the archive holds other records there, until the new leader has truncated it."""

    async def scenario() -> None:
        old, new = Broker(tmp_path, store, 1), Broker(tmp_path, store, 2)
        fill(old.log, 60)
        fill(new.log, 25)
        old.lead(0)
        await old.until_archived()
        await old.manager.close()
        new.manager.follow(TP, new.log, TOPIC_ID, {}, 0, new.metrics)
        await new.until(lambda: new.log.archived is not None)
        store.is_away = True
        new.lead(1)
        for number in range(30):
            append(new.log, batch(b"new %d" % number + b"x" * 100), leader_epoch=1)
        new.log.apply_retention()
        assert new.log.local_start_offset == 0
        store.is_away = False
        await new.until_archived()
        assert [(one.epoch, one.start) for one in manifest(store).epochs] == [(0, 0), (1, 25)]
        await new.manager.close()

    asyncio.run(scenario())


def test_without_copies_nothing_more_is_archived(tmp_path: Path, store: AwayStore) -> None:
    async def scenario() -> None:
        broker = Broker(tmp_path, store)
        broker.lead(0)
        fill(broker.log, 30)
        await broker.until_archived()
        end = manifest(store).end
        broker.log.update_config(
            LogConfig(remote_storage_enable=True, segment_bytes=1_000, retention_ms=-1, remote_log_copy_disable=True)
        )
        fill(broker.log, 30)
        for _ in range(20):
            await broker.until(lambda: True)
            broker.manager.tick()
            await asyncio.sleep(0)
        assert manifest(store).end == end
        assert broker.status.lag_segments == 0
        await broker.manager.close()

    asyncio.run(scenario())


def test_of_an_archive_that_is_turned_off_what_the_disk_lacks_is_deleted(tmp_path: Path, store: AwayStore) -> None:
    async def scenario() -> None:
        broker = Broker(tmp_path, store)
        broker.lead(0)
        fill(broker.log, 30)
        await broker.until_archived()
        broker.log.apply_retention()
        broker.log.update_config(
            LogConfig(remote_storage_enable=False, segment_bytes=1_000, remote_log_delete_on_disable=True)
        )
        start = broker.log.log_start_offset
        assert start == broker.log.local_start_offset > 0
        await broker.until(lambda: manifest(store).start == start)
        broker.clock.advance(DELAY_MS)
        await broker.until(lambda: objects(store) == 2 * len(manifest(store).segments))
        await broker.manager.close()

    asyncio.run(scenario())


def test_a_follower_reads_the_manifest_as_its_leader_goes_on(tmp_path: Path, store: AwayStore) -> None:
    async def scenario() -> None:
        leader, follower = Broker(tmp_path, store, 1), Broker(tmp_path, store, 2)
        leader.lead(0)
        fill(leader.log, 30)
        await leader.until_archived()
        follower.manager.follow(TP, follower.log, TOPIC_ID, {}, 0, follower.metrics)
        await follower.until(lambda: follower.log.archived is not None)
        fill(leader.log, 30)
        await leader.until_archived()
        end = follower.log.told_archived_end = manifest(store).end
        assert follower.log.archived_state is not None
        assert follower.log.archived_state(end).offset == end  # where its log may begin anew
        await follower.until(lambda: follower.log.archived is not None and follower.log.archived.end == end)
        follower.manager.forget(TP)
        for broker in (leader, follower):
            await broker.manager.close()

    asyncio.run(scenario())


def test_an_archive_that_the_leader_may_truncate_lets_nothing_leave_the_disk(tmp_path: Path, store: AwayStore) -> None:
    async def scenario() -> None:
        away = AwayStore(str(tmp_path / "archive"))
        old, new, follower = Broker(tmp_path, store, 1), Broker(tmp_path, away, 2), Broker(tmp_path, store, 3)
        old.lead(0)
        fill(old.log, 60)
        await old.until_archived()
        await old.manager.close()
        fill(new.log, 20)
        fill(follower.log, 20)
        away.is_away = True
        new.lead(1)
        follower.manager.follow(TP, follower.log, TOPIC_ID, {}, 1, follower.metrics)
        await asyncio.sleep(0.2)
        for broker in (new, follower):
            assert broker.log.archived_end == 0
            broker.log.flush()
            assert broker.log.apply_retention() == 0
        away.is_away = False
        fill(new.log, 20)
        await new.until_archived()
        await follower.until(lambda: follower.log.archived is not None)
        assert follower.log.archived_end == manifest(store).end <= new.log.log_end_offset
        for broker in (new, follower):
            await broker.manager.close()

    asyncio.run(scenario())


def test_what_an_earlier_leader_had_archived_lets_nothing_leave_the_disk(tmp_path: Path, store: AwayStore) -> None:
    """After an unclean election it is truncated, as soon as the store answers; until then it only seems to be there."""

    async def scenario() -> None:
        away = AwayStore(str(tmp_path / "archive"))
        old, lagging = Broker(tmp_path, store, 1), Broker(tmp_path, away, 2)
        old.lead(0)
        fill(old.log, 60)
        await old.until_archived()
        fill(lagging.log, 20)
        lagging.manager.follow(TP, lagging.log, TOPIC_ID, {}, 0, lagging.metrics)
        await lagging.until(lambda: lagging.log.archived_end == manifest(store).end)
        away.is_away = store.is_away = True
        lagging.lead(1)
        fill(lagging.log, 60)
        old.manager.follow(TP, old.log, TOPIC_ID, {}, 1, old.metrics)
        old.log.truncate_to(20)
        fill(old.log, 60)
        for broker in (lagging, old):
            broker.log.flush()
            assert broker.log.apply_retention() == 0
            assert broker.log.archived_end == 0
        away.is_away = store.is_away = False
        await lagging.until_archived()
        assert lagging.log.apply_retention() > 0
        for broker in (old, lagging):
            await broker.manager.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("epoch", [1, 3])
def test_another_leaders_records_do_not_stand_for_those_that_are_lost(
    tmp_path: Path, store: AwayStore, epoch: int
) -> None:
    """They have left the disk for the archive, where an unclean leader has truncated them and put its own, of `epoch`,
    at their offsets. Then comes the first leader again."""

    async def scenario() -> None:
        first, other = Broker(tmp_path, store, 1), Broker(tmp_path, store, 2)
        for broker, its_epoch in (first, 2), (other, epoch):
            fill(broker.log, 20)
            for number in range(40):
                append(broker.log, batch(b"%d of %d" % (number, its_epoch) + b"x" * 100), leader_epoch=its_epoch)
        first.lead(2)
        await first.until_archived()
        assert first.log.apply_retention() > 0
        other.lead(3)
        await other.until_archived()
        first.lead(4)
        await first.until(lambda: bool(first.status.problem))
        local_start = first.log.local_start_offset
        assert first.status.problem == (
            f"offsets 20 to {local_start - 1} are neither in the archive nor in the leader's log; "
            f"delete the records before {local_start} to go on without them"
        )
        with pytest.raises(BrokerError):
            first.log.read(20, 1_000)
        first.log.delete_records(local_start)
        await first.until_archived()
        assert [(one.epoch, one.start) for one in manifest(store).epochs] == [(2, local_start)]
        assert is_clean(store, orphans=100)
        for broker in (first, other):
            await broker.manager.close()

    asyncio.run(scenario())


def test_a_leader_that_stood_still_deletes_nothing_of_a_later_one(tmp_path: Path, store: AwayStore) -> None:
    """The first segment that the later one archives may begin before the start that the older one knows."""
    place = ManifestStore(store.storage, "cluster", TOPIC_ID, 0)
    older, later = new_object_name(10, 3), new_object_name(10, 4)
    for name in (older, later):
        store.storage.create(PLACE.segment(name), b"records")
    assert _sweep(place, Sweep(15, 3, frozenset())) == 1
    assert [name for name in store.storage.names(PLACE.directory) if name.endswith(".log")] == [f"{later}.log"]


def test_a_producers_state_that_cannot_be_told_is_no_empty_one(tmp_path: Path) -> None:
    """A segment with an empty one would let a rebuilt replica forget its producers."""

    def missing() -> bytes:
        raise FileNotFoundError

    for saved in (missing, lambda: b"torn"):
        assert _producers(saved, list) == encode_snapshot([])
        with pytest.raises(CopyFailed, match="idempotent producers"):
            _producers(saved, lambda: None)


def test_a_follower_begins_where_no_truncation_has_cut_a_segment(tmp_path: Path, store: AwayStore) -> None:
    async def scenario() -> None:
        old, new = Broker(tmp_path, store, 1), Broker(tmp_path, store, 2)
        fill(old.log, 60)
        fill(new.log, 23)
        old.lead(0)
        await old.until_archived()
        await old.manager.close()
        append(new.log, batch(b"new"), leader_epoch=1)
        new.lead(1)
        await new.until(lambda: Truncate(23) in changes(store))
        place = ManifestStore(store.storage, "cluster", TOPIC_ID, 0)
        with pytest.raises(BrokerError, match="was cut there"):
            state_from(place, 23)
        for _ in range(30):
            append(new.log, batch(b"x" * 100), leader_epoch=1)
        await new.until_archived()
        begin = state_from(place, 23)
        assert begin.offset in {segment.end for segment in manifest(store).segments if segment.base >= 23}
        assert begin.epochs == ((0, 0), (1, 23))
        await new.manager.close()

    asyncio.run(scenario())


def test_an_archive_that_is_turned_on_again_is_known_at_once(tmp_path: Path, store: AwayStore) -> None:
    async def scenario() -> None:
        leader, follower = Broker(tmp_path, store, 1), Broker(tmp_path, store, 2)
        leader.lead(0)
        fill(leader.log, 30)
        await leader.until_archived()
        follower.manager.follow(TP, follower.log, TOPIC_ID, {}, 0, follower.metrics)
        await follower.until(lambda: follower.log.archived is not None)
        for broker in (leader, follower):
            broker.log.update_config(LogConfig(remote_log_delete_on_disable=True))
            assert broker.log.archived is None
            broker.log.update_config(ARCHIVED)
        await leader.until(lambda: leader.log.archived is not None)
        await follower.until(lambda: follower.log.archived is not None)
        for broker in (leader, follower):
            await broker.manager.close()

    asyncio.run(scenario())


def test_a_disk_that_fills_up_while_the_archive_lags_is_told_once(
    tmp_path: Path, store: AwayStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = {tmp_path / "broker-1": 0.79, tmp_path / "broker-2": 0.9}
    monkeypatch.setattr("broker.archive.filling_disks.used_share", used.get)

    async def scenario() -> None:
        leader, follower = Broker(tmp_path, store, 1), Broker(tmp_path, store, 2)
        leader.lead(0)
        follower.manager.follow(TP, follower.log, TOPIC_ID, {}, 0, follower.metrics)
        fill(leader.log, 30)
        await leader.until_archived()
        used[tmp_path / "broker-1"] = 0.9
        begun = leader.clock.monotonic()
        await leader.until(lambda: leader.clock.monotonic() > begun + 25)
        assert leader.manager.filling_disks == 0, "a disk may be full if the archive does not lag"
        store.is_away = True
        for broker in (leader, follower):
            fill(broker.log, 60)
            await broker.until(lambda manager=broker.manager: manager.filling_disks == 1)  # type: ignore[misc]
        assert leader.status.problem.endswith("; its leader's disk is 90% full, and keeps what is not archived")
        assert leader.status.problem in leader.manager.problem
        used[tmp_path / "broker-1"] = 0.95
        begun = leader.clock.monotonic()
        await leader.until(lambda: leader.clock.monotonic() > begun + 25)
        assert [one.message for one in caplog.records if "fills up" in one.message] == [
            f"{tmp_path / name} fills up: its disk is 90% full, and keeps what is not archived"
            for name in ("broker-1", "broker-2")
        ]
        store.is_away = False
        await leader.until_archived()
        await leader.until(lambda: leader.manager.filling_disks == 0)
        assert not leader.status.problem
        for broker in (leader, follower):
            await broker.manager.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())


def test_small_segments_on_hdfs_are_told_once(
    tmp_path: Path, store: AwayStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        broker = Broker(tmp_path, store)
        broker.lead(0)
        broker.manager.tick()
        assert "segment.bytes" not in caplog.text, "other stores take small objects"
        monkeypatch.setattr("broker.storage.storage.Storage.is_hdfs", True)
        for size in (1_000, 1_000, 64 << 20, 2_000):
            broker.log.config = replace(ARCHIVED, segment_bytes=size)
            broker.manager.tick()
        told = [one.message for one in caplog.records if "segment.bytes" in one.message]
        assert [message.split("; ")[0] for message in told] == ["t has segment.bytes=1000", "t has segment.bytes=2000"]
        await broker.manager.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())


def test_a_topic_made_from_an_archive_goes_on_with_that_archive(tmp_path: Path, store: AwayStore) -> None:
    async def scenario() -> None:
        old = Broker(tmp_path, store, 1)
        old.lead(0)
        fill(old.log, 30)
        await old.until_archived()
        await old.manager.close()
        new, before = Broker(tmp_path, store, 2), manifest(store)
        config = {"archive.topic.id": "AAAAAAAAAAAAAAAAAAAABw"}
        log = new.log
        new.manager.lead(TP, log, uuid.UUID(int=8), config, 1, lambda: log.log_end_offset, new.metrics)
        await new.until(lambda: new.manager.may_serve(TP))
        fill(log, 30)
        await new.until_archived()
        assert manifest(store).end > before.end
        assert sum(isinstance(change, Add) for change in changes(store)) > len(before.segments)
        await new.manager.close()

    asyncio.run(scenario())
