"""A follower and its fetcher against a scripted leader on a real socket: copies, truncations, errors, broken links."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broker.background_tasks import BackgroundTasks
from broker.config.setting_groups import ReplicaSettings
from broker.errors import BrokerError, ErrorCode
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.log.producer_state import ProducerStates
from broker.net.peer_connection import PeerConnection
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import patch_base_offset
from broker.records.control import ControlType
from broker.replica.follower import Follower
from broker.replica.replica_fetcher import STALE_AFTER, ReplicaFetcher
from tests.support.batches import append, append_marker, batch, fill, open_log
from tests.support.follower_log import state_of, stored
from tests.support.scripted_leader import LedLog, Script, ScriptedLeader

TOPIC = uuid.UUID(int=7)
PRODUCER: dict[str, Any] = {"producer_id": 5, "producer_epoch": 0, "transactional": True}
SETTINGS = ReplicaSettings(replica_fetch_backoff_ms=50)


class Cluster:
    """A scripted leader with partitions 0, 1, … of one topic, and this broker's fetcher."""

    def __init__(self, directory: Path, leader: ScriptedLeader, settings: ReplicaSettings) -> None:
        self.leader = leader
        self.stale: list[str] = []
        self.followers: dict[int, Follower] = {}
        self._directory = directory
        peer = PeerConnection("127.0.0.1", leader.port, client_id="broker-2", timeout_s=20)
        self.tasks = BackgroundTasks()
        self.fetcher = ReplicaFetcher(2, peer, settings, self.tasks, self.stale.append)

    def led(self, partition: int = 0) -> LedLog:
        return self.leader.logs[TOPIC, partition]

    def follow(self, partition: int = 0, log: Log | None = None, high_watermark: int = 0) -> Follower:
        """Follow in the leader's epoch, with a new log or with `log`."""
        tp = TopicPartition("t", partition)
        log = open_log(self._directory / "follower" / str(tp)) if log is None else log
        follower = self.followers[partition] = Follower(tp, log, 1, self.led(partition).epoch, high_watermark)
        self.fetcher.add(follower, TOPIC)
        return follower

    async def caught_up(self, partition: int = 0) -> None:
        """Wait until the follower has all bytes of the leader."""
        led, log = self.led(partition).log, self.followers[partition].log
        async with asyncio.timeout(60):
            while log.log_end_offset != led.log_end_offset or log.epochs.latest != led.epochs.latest:
                await asyncio.sleep(0.001)
        assert stored(log) == stored(led, log.log_start_offset)
        assert state_of(log)[1:] == state_of(led)[1:]
        assert log.epochs.entries == led.epochs.entries

    async def until(self, holds: Any) -> None:
        async with asyncio.timeout(60):
            while not holds():
                await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def cluster(
    directory: Path,
    *scripts: Script,
    partitions: int = 1,
    settings: ReplicaSettings = SETTINGS,
    sessions: bool = False,
    config: LogConfig | None = None,
) -> AsyncIterator[Cluster]:
    logs = {(TOPIC, n): LedLog(open_log(directory / "leader" / f"t-{n}", config)) for n in range(partitions)}
    async with ScriptedLeader(logs, *scripts, sessions=sessions) as leader:
        made = Cluster(directory, leader, settings)
        try:
            yield made
        finally:
            made.fetcher.stop()
            await made.tasks.close()


def answer(one: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A Fetch response with one partition."""
    return {"responses": [{"topic_id": TOPIC, "partitions": [{"partition_index": 0} | one]}]} | fields


# --- copies


async def test_a_follower_becomes_the_leaders_copy_byte_for_byte(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=3000)
    async with cluster(tmp_path, config=config, settings=ReplicaSettings(replica_fetch_max_bytes=700)) as c:
        log = c.led().log
        fill(log, 20)
        for epoch, codec in enumerate((0, 4, 1)):
            append(log, batch(b"a" * 300, b"b", codec=codec, sequence=2 * epoch, **PRODUCER), leader_epoch=epoch)
            append(log, batch(b"c" * 500), leader_epoch=epoch)
            append_marker(log, 5, 0, ControlType.ABORT if epoch else ControlType.COMMIT, 0, leader_epoch=epoch)
        append(log, batch(b"open", sequence=6, **PRODUCER), leader_epoch=2)
        c.led().epoch = 2
        c.led().high_watermark = log.log_end_offset - 1
        follower = c.follow()
        await c.caught_up()
        await c.until(lambda: follower.high_watermark == log.log_end_offset - 1)
        assert follower.log.committed == follower.high_watermark
        assert log.first_unstable_offset is not None
        assert follower.last_stable_offset <= log.first_unstable_offset
        append(log, batch(b"more"), leader_epoch=2)
        c.led().high_watermark = None
        c.leader.changed()
        await c.caught_up()
        await c.until(lambda: follower.high_watermark == log.log_end_offset)
        assert follower.last_stable_offset == log.first_unstable_offset


async def test_the_high_watermark_and_the_logs_start_come_from_the_leader(tmp_path: Path) -> None:
    async with cluster(tmp_path, settings=ReplicaSettings(replica_fetch_max_bytes=1)) as c:
        fill(c.led().log, 6)
        c.led().high_watermark = 4
        follower = c.follow()
        await c.until(lambda: follower.high_watermark == 4)
        assert follower.read(3, 1000) is not None
        assert follower.read(4, 1000) is None
        await c.caught_up()
        c.led().log.delete_records(3)
        c.led().high_watermark = 2
        fill(c.led().log, 1)
        c.leader.changed()
        await c.caught_up()
        assert (follower.high_watermark, follower.log.log_start_offset) == (4, 3), "it never goes back"


async def test_a_session_names_only_what_changed(tmp_path: Path) -> None:
    async with cluster(tmp_path, partitions=3, sessions=True) as c:
        for number in range(3):
            c.follow(number)
        await c.leader.fetched(1)
        fill(c.led(1).log, 1)
        c.leader.changed()
        await c.caught_up(1)
        await c.leader.fetched(2)
        first, second = c.leader.fetches[:2]
        assert (first.session_id, first.session_epoch, named(first)) == (0, 0, {0, 1, 2})
        assert (second.session_id, second.session_epoch, named(second)) == (77, 1, {1})
        c.fetcher.remove(TopicPartition("t", 2), TOPIC)
        fill(c.led(0).log, 1)
        c.leader.changed()
        await c.caught_up(0)
        await c.leader.fetched(3)
        third = c.leader.fetches[2]
        assert (third.session_epoch, named(third)) == (2, {0})
        assert [list(topic.partitions) for topic in third.forgotten_topics_data] == [[2]]


def named(body: Any) -> set[int]:
    return {one.partition for topic in body.topics for one in topic.partitions}


async def test_a_lost_session_is_made_again(tmp_path: Path) -> None:
    async with cluster(tmp_path, sessions=True) as c:
        c.follow()
        await c.leader.fetched(1)
        c.leader.scripts.append(lambda body: {"error_code": ErrorCode.fetch_session_id_not_found})
        fill(c.led().log, 1)
        c.leader.changed()
        await c.leader.fetched(3)
        assert [body.session_epoch for body in c.leader.fetches[:3]] == [0, 1, 0]
        assert [body.session_id for body in c.leader.fetches[:3]] == [0, 77, 77], "the leader closes the old session"
        fill(c.led().log, 1)
        c.leader.changed()
        await c.caught_up()


async def test_a_new_partition_is_fetched_while_another_fetch_waits(tmp_path: Path) -> None:
    settings = ReplicaSettings(replica_fetch_wait_max_ms=15_000)
    async with cluster(tmp_path, partitions=2, settings=settings) as c:
        c.follow(0)
        await c.leader.fetched(1)
        fill(c.led(1).log, 1)
        c.follow(1)
        async with asyncio.timeout(60):
            await c.caught_up(1)
        assert named(c.leader.fetches[1]) == {0, 1}


# --- truncation


async def test_a_diverging_end_is_truncated_and_fetched_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with cluster(tmp_path) as c:
        own, led = open_log(tmp_path / "own" / "t-0"), c.led()
        for log in (own, led.log):
            fill(log, 4)
        for number in range(3):
            append(own, batch(b"lost %d" % number), leader_epoch=1)
        append(led.log, batch(b"kept"), leader_epoch=2)
        led.epoch = 2
        follower = c.follow(log=own, high_watermark=4)
        await c.caught_up()
        assert follower.high_watermark == 5
        assert follower.metrics.truncated_records == 3
    (said,) = [one for one in caplog.records if "truncating" in one.message]
    assert said.levelname == "WARNING"
    assert said.message.startswith(
        "t-0: truncating 3 records of leader epochs 1 to 1, offsets 4 to 6, which the leader, broker 1 of epoch 2, "
        "does not have: "
    )


async def test_a_truncated_marker_is_no_lost_record_and_what_cannot_be_read_counts_by_its_offsets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    marked, broken = open_log(tmp_path / "t-0"), open_log(tmp_path / "t-1")
    append_marker(marked, 5, 0, ControlType.COMMIT, 0)
    follower = Follower(TopicPartition("t", 0), marked, 1, 1, 0)
    assert await follower.truncate_to(0, "") == follower.metrics.truncated_records == 0
    assert [one.levelname for one in caplog.records if "t-0: truncating 0 records" in one.message] == ["INFO"]

    fill(broken, 4)
    broken.segments[0].path().write_bytes(bytes(broken.size))
    follower = Follower(TopicPartition("t", 1), broken, 1, 1, 2)
    with contextlib.suppress(BrokerError):  # it cannot be cut either
        await follower.truncate_to(2, "")
    assert follower.metrics.truncated_records == 2
    assert "t-1: truncating up to 2 records (not all can be read), offsets 2 to 3" in caplog.text


async def test_a_truncation_reads_in_a_thread_and_cuts_nothing_after_the_follower_has_another_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads up to a whole segment. If the broker becomes leader meanwhile, its log is the partition's (P1)."""
    log = open_log(tmp_path / "t-0")
    fill(log, 4)
    reading, may_end = asyncio.Event(), threading.Event()
    loop, read = asyncio.get_running_loop(), log.producers_before(2)

    def slowly() -> ProducerStates | None:
        loop.call_soon_threadsafe(reading.set)
        assert may_end.wait(20)
        return read()

    monkeypatch.setattr(log, "producers_before", lambda offset: slowly)
    follower = Follower(TopicPartition("t", 0), log, 1, 1, 4)
    truncation = asyncio.ensure_future(follower.truncate_to(2, "the leader's log ends there"))
    await asyncio.wait_for(reading.wait(), 20)
    follower.close()
    may_end.set()
    with pytest.raises(BrokerError):
        await truncation
    assert log.log_end_offset == 4
    again = Follower(TopicPartition("t", 0), log, 1, 2, 4, follower.queue)
    assert await again.truncate_to(2, "the leader's log ends there") == again.high_watermark == 2


async def test_epochs_that_only_the_follower_has_are_found_step_by_step(tmp_path: Path) -> None:
    """KIP-279: both logs have epochs that the other one lacks."""
    async with cluster(tmp_path) as c:
        own, led = open_log(tmp_path / "own" / "t-0"), c.led()
        for log, epochs in ((led.log, (0, 3, 3, 5, 6)), (own, (0, 1, 1, 4, 4, 4))):
            for epoch in epochs:
                append(log, batch(b"%d" % epoch), leader_epoch=epoch)
        led.epoch = 6
        c.follow(log=own, high_watermark=1)
        await c.caught_up()
        assert [one.last_fetched_epoch for body in c.leader.fetches[:3] for one in body.topics[0].partitions] == [
            4,
            1,
            0,
        ]


async def test_a_batch_that_the_leader_cuts_in_the_middle_goes_whole(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        own, led = open_log(tmp_path / "own" / "t-0"), c.led()
        append(own, batch(b"a", b"b", b"c"))
        append(led.log, batch(b"a", b"b"))
        append(led.log, batch(b"x"), leader_epoch=1)
        led.epoch = 1
        c.follow(log=own)
        await c.caught_up()


async def test_a_log_below_the_leaders_start_begins_again_there(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        own, led = open_log(tmp_path / "own" / "t-0"), c.led()
        for log in (own, led.log):
            fill(log, 3)
        fill(led.log, 7)
        led.log.delete_records(6)
        led.high_watermark = 8
        follower = c.follow(log=own, high_watermark=3)
        await c.caught_up()
        assert (own.log_start_offset, follower.high_watermark) == (6, 8)


async def test_a_log_beyond_the_leaders_end_is_cut_there(tmp_path: Path) -> None:
    """After an unclean election, where epochs cannot say it: the log is empty."""
    async with cluster(tmp_path) as c:
        own, led = open_log(tmp_path / "own" / "t-0"), c.led()
        own.truncate_fully_and_start_at(9)
        fill(led.log, 4)
        c.follow(log=own, high_watermark=9)
        await c.until(lambda: own.log_end_offset == 4)
        append(led.log, batch(b"next"))
        c.leader.changed()
        await c.until(lambda: own.log_end_offset == 5)
        assert stored(own) == stored(led.log, 4)


# --- errors and broken links


@pytest.mark.parametrize(
    "error",
    [ErrorCode.not_leader_or_follower, ErrorCode.unknown_topic_id, ErrorCode.kafka_storage_error],
)
async def test_an_error_of_one_partition_does_not_stop_the_others(tmp_path: Path, error: ErrorCode) -> None:
    async with cluster(tmp_path, partitions=2, sessions=True) as c:
        c.led(0).error = error
        c.follow(0)
        c.follow(1)
        fill(c.led(1).log, 3)
        c.leader.changed()
        await c.caught_up(1)
        if error is not ErrorCode.kafka_storage_error:
            await c.until(lambda: c.stale == ["t"])
            assert sum(0 in named(body) for body in c.leader.fetches) >= STALE_AFTER
        c.led(0).error = ErrorCode.none
        fill(c.led(0).log, 3)
        c.leader.changed()
        await c.caught_up(0)


async def test_what_is_usual_after_an_election_is_a_warning_only_if_it_lasts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path) as c:
        c.led().error = ErrorCode.unknown_leader_epoch
        c.follow()
        await c.until(lambda: "t-0: cannot follow, trying again: UNKNOWN_LEADER_EPOCH" in caplog.text)
        assert len(c.leader.fetches) > STALE_AFTER
        assert [one.levelname for one in caplog.records] == ["WARNING"]


async def test_another_leader_epoch_is_waited_for(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        fill(c.led().log, 2)
        c.led().epoch = 5
        stale = c.follow()
        stale.leader_epoch = 4
        await c.until(lambda: c.stale)
        assert stale.log.log_end_offset == 0
        stale.close()
        c.follow(log=stale.log)
        await c.until(lambda: c.followers[0].log.log_end_offset == 2)


async def test_links_that_break_anywhere_lose_and_double_nothing(tmp_path: Path) -> None:
    cuts = iter([0, 3, 4, 30, 200, 900, 5000])

    async with cluster(tmp_path) as c:
        log = c.led().log
        fill(log, 80)

        def broken(body: Any) -> bytes | None:
            """A prefix of the right answer, then the end of the connection."""
            cut = next(cuts, None)
            if cut is None:
                return None
            one = body.topics[0].partitions[0]
            records = log.read(one.fetch_offset, 1 << 20)
            assert records is not None
            return (b"\0\0\x20\0" + bytes(60) + records.read())[:cut]

        c.leader.scripts.extend([broken] * 7)
        c.follow()
        await c.caught_up()
        assert c.leader.connections >= 8


async def test_a_cut_batch_at_the_end_is_fetched_again(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        log = c.led().log
        fill(log, 10)
        piece = log.read(0, 1 << 20)
        assert piece is not None
        data = piece.read()
        c.leader.scripts.append(lambda body: answer({"records": data[:-20], "high_watermark": 10}))
        follower = c.follow()
        await c.caught_up()
        offsets = [one.fetch_offset for body in c.leader.fetches for one in body.topics[0].partitions]
        assert offsets[:2] == [0, 9]
        assert follower.high_watermark == 10


async def test_a_batch_without_an_end_is_not_asked_for_in_a_busy_loop(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        fill(c.led().log, 1)
        piece = c.led().log.read(0, 1 << 20)
        assert piece is not None
        data = piece.read()[:-1]
        c.leader.scripts.extend([lambda body: answer({"records": data})] * 2)
        follower = c.follow()
        await c.leader.fetched(1)
        began = asyncio.get_running_loop().time()
        await c.caught_up()
        assert asyncio.get_running_loop().time() - began > 0.02, "the first waits are 20 and 40 ms"
        assert follower.log.log_end_offset == 1


async def test_spoilt_bytes_are_not_appended(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        fill(c.led().log, 5)
        piece = c.led().log.read(0, 1 << 20)
        assert piece is not None
        data = bytearray(piece.read())
        data[-3] ^= 1
        c.leader.scripts.append(lambda body: answer({"records": bytes(data), "high_watermark": 5}))
        follower = c.follow()
        await c.caught_up()
        offsets = [one.fetch_offset for body in c.leader.fetches for one in body.topics[0].partitions]
        assert offsets[:2] == [0, 0]
        assert follower.high_watermark == 5


async def test_what_comes_for_a_role_that_has_ended_is_dropped(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        first = c.follow()
        await c.leader.fetched(1)
        c.led().epoch = 1
        first.close()
        second = c.follow(log=first.log)
        fill(c.led().log, 2)
        c.leader.changed()
        await c.until(lambda: second.log.log_end_offset == 2)
        assert first.metrics.replication_bytes_in == 0


async def test_records_of_a_later_leader_are_not_appended(tmp_path: Path) -> None:
    """A leader that was deposed while it answered sends the end of its log, which the next leader's has replaced."""
    async with cluster(tmp_path) as c:
        fill(c.led().log, 2)
        follower = c.follow()
        await c.caught_up()
        later = bytearray(batch(b"later"))
        patch_base_offset(later, 0, 2, 1)
        c.leader.scripts.append(lambda body: answer({"records": bytes(later), "high_watermark": 2}))
        c.leader.changed()
        await c.leader.fetched(len(c.leader.fetches) + 2)
        assert follower.log.log_end_offset == 2
        append(c.led().log, batch(b"of this leader"))
        c.leader.changed()
        await c.caught_up()
