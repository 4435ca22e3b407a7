"""Records that were deleted do not come back with another leader. One of three brokers hangs, and is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from tests.support.raw_requests import EARLIEST, Requests
from tests.support.replicated_cluster import ReplicatedCluster

TP = TopicPartition("t", 0)


def delete(brokers: ReplicatedCluster, leader: int, before: int, timeout_ms: int) -> tuple[ErrorCode, int]:
    body = {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "offset": before}]}], "timeout": timeout_ms}
    with Requests(brokers.brokers[leader].bootstrap) as ask:
        answer = ask.ask(ApiKey.DELETE_RECORDS, body).topics[0].partitions[0]
    return ErrorCode(answer.error_code), answer.low_watermark


@pytest.mark.timeout(180)
def test_a_deletion_waits_for_a_follower_that_hangs_and_outlives_its_leader(tmp_path: Path) -> None:
    with ReplicatedCluster(tmp_path) as brokers:
        brokers.create("t")
        leader = brokers.leader(TP)
        hanging = min({1, 2, 3} - {leader})
        with Requests(brokers.brokers[leader].bootstrap) as ask:
            for _ in range(10):
                ask.put("t", b"x")
        brokers.brokers[hanging].pause()
        try:
            assert delete(brokers, leader, 4, 500) == (ErrorCode.request_timed_out, 0)
        finally:
            brokers.brokers[hanging].resume()
        assert delete(brokers, leader, 4, 60_000) == (ErrorCode.none, 4)
        brokers.brokers[hanging].kill()
        assert delete(brokers, leader, 6, 60_000) == (ErrorCode.none, 6), "its broker is not registered any more"
        brokers.brokers[hanging].start()
        brokers.wait_until_healed()
        brokers.brokers[leader].kill()
        brokers.wait_for_new_leader(TP, leader)
        with Requests(brokers.brokers[brokers.leader(TP)].bootstrap) as ask:
            assert ask.list_offset("t", EARLIEST).offset == 6
