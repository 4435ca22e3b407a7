"""Versions that old clients ask and Kafka 4 dropped: ListOffsets 0, OffsetCommit 0 and 1, OffsetFetch 0.

The values are those of Kafka 2.8 (`KafkaApis`, `Log.legacyFetchOffsetsBefore`).
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.api.test_group_offsets import await_coordinator, commit, committed
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import EARLIEST, LATEST, Requests, batch

HOUR_MS = 3_600_000


def old_offsets(ask: Requests, topic: str, timestamp: int, most: int, partition: int = 0) -> Any:
    asked = {"partition_index": partition, "timestamp": timestamp, "max_num_offsets": most}
    body = {"replica_id": -1, "topics": [{"name": topic, "partitions": [asked]}]}
    (answer,) = ask.ask(ApiKey.LIST_OFFSETS, body, 0).topics[0].partitions
    return answer


class TestListOffsets:
    """Version 0: the offsets at which segments begin, and the end, the latest first."""

    @pytest.fixture
    def segments(self, ask: Requests, topic: str) -> str:
        """Segments from the offsets 0, 2 and 4; the end is 5."""
        ask.create(topic, segment_bytes="400")
        for number in range(5):
            stored = ask.produce({(topic, 0): batch(b"%d" % number * 100)})[topic, 0]
            assert stored.error_code is ErrorCode.none
        return topic

    @pytest.mark.parametrize(
        ("timestamp", "most", "offsets"),
        [
            (LATEST, 1, (5,)),
            (LATEST, 2, (5, 4)),
            (LATEST, 100, (5, 4, 2, 0)),
            (LATEST, 2**31 - 1, (5, 4, 2, 0)),
            (LATEST, 0, ()),
            (LATEST, -1, ()),
            (EARLIEST, 1, (0,)),
            (EARLIEST, 100, (0,)),
            (1, 100, ()),
            (-3, 100, ()),
            (2**62, 100, (5, 4, 2, 0)),
        ],
    )
    def test_offsets_come_the_latest_first(
        self, ask: Requests, segments: str, timestamp: int, most: int, offsets: tuple[int, ...]
    ) -> None:
        answer = old_offsets(ask, segments, timestamp, most)
        assert (answer.error_code, answer.old_style_offsets) == (ErrorCode.none, offsets)

    def test_a_segment_counts_for_times_after_its_last_write(self, ask: Requests, segments: str) -> None:
        now_ms = time.time_ns() // 1_000_000
        assert old_offsets(ask, segments, now_ms - HOUR_MS, 9).old_style_offsets == ()
        assert old_offsets(ask, segments, now_ms + HOUR_MS, 9).old_style_offsets == (5, 4, 2, 0)
        # Between the last write and now: all segments, and not the end.
        assert old_offsets(ask, segments, now_ms, 9).old_style_offsets in ((4, 2, 0), (5, 4, 2, 0))

    def test_what_was_deleted_does_not_count(self, ask: Requests, segments: str) -> None:
        topics = [{"name": segments, "partitions": [{"partition_index": 0, "offset": 3}]}]
        ask.ask(ApiKey.DELETE_RECORDS, {"topics": topics, "timeout": 10_000})
        assert old_offsets(ask, segments, EARLIEST, 1).old_style_offsets == (3,)
        assert old_offsets(ask, segments, LATEST, 9).old_style_offsets == (5, 4, 3)

    def test_an_empty_partition_has_one_offset(self, ask: Requests, topic: str) -> None:
        ask.create(topic)
        for timestamp in (EARLIEST, LATEST):
            assert old_offsets(ask, topic, timestamp, 9).old_style_offsets == (0,)

    def test_an_unknown_partition_gets_its_own_error(self, ask: Requests, topic: str) -> None:
        ask.create(topic)
        answer = old_offsets(ask, topic, LATEST, 1, partition=7)
        assert (answer.error_code, answer.old_style_offsets) == (ErrorCode.unknown_topic_or_partition, ())


def commit_at(ask: Requests, group: str, topic: str, offset: int, **times: int) -> ErrorCode:
    """OffsetCommit 1, as Sarama and librdkafka 0.11 send it; `commit_timestamp` is in ms."""
    asked = {
        "partition_index": 0,
        "committed_offset": offset,
        "commit_timestamp": -1,
        "committed_metadata": "m",
        **times,
    }
    body = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
    answer = ask.ask(ApiKey.OFFSET_COMMIT, {**body, "topics": [{"name": topic, "partitions": [asked]}]}, 1)
    code: ErrorCode = answer.topics[0].partitions[0].error_code
    return code


class TestOffsetCommitWithATime:
    """Version 1 stores offsets in the group."""

    def test_it_is_kept_as_any_other(self, ask: Requests, topic: str, group: str) -> None:
        await_coordinator(ask, group)
        ask.create(topic)
        now_ms = time.time_ns() // 1_000_000
        for times in ({}, {"commit_timestamp": now_ms - HOUR_MS}, {"commit_timestamp": now_ms + HOUR_MS}):
            assert commit_at(ask, group, topic, 7, **times) is ErrorCode.none
            assert committed(ask, group, {topic: [0]}) == {(topic, 0): (7, "m")}

    def test_it_fails_alone(self, ask: Requests, group: str) -> None:
        await_coordinator(ask, group)
        assert commit_at(ask, group, "no-such-topic", 7) is ErrorCode.unknown_topic_or_partition


class TestOffsetsInZooKeeper:
    """Version 0 of OffsetCommit and OffsetFetch: the offsets are in ZooKeeper, and no group knows of them."""

    def fetched(self, ask: Requests, group: str, topic: str, *partitions: int) -> list[tuple[int, int, str, ErrorCode]]:
        body = {"group_id": group, "topics": [{"name": topic, "partition_indexes": partitions}]}
        (answer,) = ask.ask(ApiKey.OFFSET_FETCH, body, 0).topics
        return [(p.partition_index, p.committed_offset, p.metadata, p.error_code) for p in answer.partitions]

    def test_what_is_committed_is_fetched(self, ask: Requests, topic: str, group: str) -> None:
        await_coordinator(ask, group)
        ask.create(topic, 2)
        for offset in (3, 42):
            assert commit(ask, group, {(topic, 1): offset}, 0) == {(topic, 1): ErrorCode.none}
        assert self.fetched(ask, group, topic, 0, 1) == [
            (0, -1, "", ErrorCode.unknown_topic_or_partition),
            (1, 42, "", ErrorCode.none),
        ]
        assert committed(ask, group, {topic: [1]}) == {(topic, 1): (-1, "")}

    def test_an_unknown_partition_gets_its_own_error(self, ask: Requests, topic: str, group: str) -> None:
        ask.create(topic)
        assert commit(ask, group, {(topic, 0): 1, (topic, 7): 1}, 0) == {
            (topic, 0): ErrorCode.none,
            (topic, 7): ErrorCode.unknown_topic_or_partition,
        }
        assert self.fetched(ask, group, topic, 7) == [(7, -1, "", ErrorCode.unknown_topic_or_partition)]

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a/../../brokers", "a\nb", "a\0b"])
    def test_a_name_that_would_be_a_path_is_refused(self, ask: Requests, topic: str, name: str) -> None:
        ask.create(topic)
        assert commit(ask, name, {(topic, 0): 1}, 0) == {(topic, 0): ErrorCode.invalid_group_id}
        assert self.fetched(ask, name, topic, 0) == [(0, -1, "", ErrorCode.invalid_group_id)]


def send_unserved(bootstrap: str, client_id: bytes, version: int) -> None:
    """One Produce request of a version that is not served; the broker closes the connection."""
    host, _, port = bootstrap.rpartition(":")
    header = struct.pack(">hhih", ApiKey.PRODUCE, version, 1, len(client_id)) + client_id
    with socket.create_connection((host, int(port)), timeout=10) as peer:
        peer.sendall(struct.pack(">i", len(header) + 10) + header + bytes(10))
        assert peer.recv(1) == b""


def test_the_log_names_who_asks_for_a_version_that_is_not_served_and_does_so_once(broker: BrokerProcess) -> None:
    for client_id in (b"an-old-client", b"another"):
        for _ in range(20):
            send_unserved(broker.bootstrap, client_id, 2)
    send_unserved(broker.bootstrap, b"an-old-client", 1)
    lines = [line for line in broker.output.splitlines() if "PRODUCE version" in line and "asked by" in line]
    assert sum("version 2" in line and "'an-old-client'" in line for line in lines) == 1
    assert sum("version 2" in line and "'another'" in line for line in lines) == 1
    assert sum("version 1 " in line and "'an-old-client'" in line for line in lines) == 1
    assert all("WARNING" in line and "outside 3–" in line for line in lines)
