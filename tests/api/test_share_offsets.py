"""What leaders of partitions ask the share coordinator, field by field: APIs 83 to 87, and where to find it; and what a
hostile list of partitions costs."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.api.share_offsets import describe_share_group_offsets
from broker.coordinator.modern_group_messages import TopicIdPartition
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.replica.cluster_metadata import PartitionInfo, Topic
from broker.share.persister import ShareState
from tests.support.raw_requests import Requests, versions
from tests.support.raw_share_states import BATCH, ShareStates, find

OK = ErrorCode.none


@pytest.fixture
def shares(ask: Requests, group: str, topic: str) -> ShareStates:
    return ShareStates(ask, group, ask.create(topic)).ready()


@pytest.mark.parametrize("version", versions(ApiKey.WRITE_SHARE_GROUP_STATE))
def test_what_is_written_is_read(shares: ShareStates, version: int) -> None:
    assert shares.initialize().error_code is OK
    assert shares.read(leader_epoch=4).start_offset == -1
    assert shares.write(10, version, leader_epoch=4).error_code is OK
    read = shares.read(leader_epoch=5)
    assert (read.error_code, read.state_epoch, read.start_offset) == (OK, 1, 10)
    assert [(b.first_offset, b.last_offset, b.delivery_state, b.delivery_count) for b in read.state_batches] == [
        (12, 14, 2, 1)
    ]
    found = shares.summary()
    count = 3 if version >= 1 else -1
    assert (found.start_offset, found.leader_epoch, found.state_epoch) == (10, 5, 1)
    assert found.delivery_complete_count == count
    assert shares.summary(0).start_offset == 10


def test_retention_deletes_nothing_of_the_states(shares: ShareStates) -> None:
    """They are not compacted, because an update counts together with its snapshot."""
    asked = {"resource_type": 2, "resource_name": "__share_group_state", "configuration_keys": None}
    (found,) = shares.ask.ask(ApiKey.DESCRIBE_CONFIGS, {"resources": [asked]}).results
    configs = {config.name: config.value for config in found.configs}
    assert (configs["cleanup.policy"], configs["retention.ms"], configs["retention.bytes"]) == ("delete", "-1", "-1")


def test_a_deposed_leader_is_fenced(shares: ShareStates) -> None:
    shares.initialize()
    shares.read(leader_epoch=5)
    for result in (shares.write(10, leader_epoch=4), shares.read(leader_epoch=4)):
        assert result.error_code is ErrorCode.fenced_leader_epoch
        assert "epoch 4 is over" in result.error_message


def test_state_that_begins_anew_fences_its_writers(shares: ShareStates) -> None:
    shares.initialize(1)
    assert shares.initialize(2, 7).error_code is OK
    assert shares.write(10).error_code is ErrorCode.fenced_state_epoch
    assert shares.summary().start_offset == 7


def test_deleted_state_must_be_initialized_again(shares: ShareStates) -> None:
    shares.initialize()
    for _ in range(2):
        assert shares.about(ApiKey.DELETE_SHARE_GROUP_STATE).error_code is OK
    assert shares.read().error_code is ErrorCode.invalid_request
    assert shares.summary().start_offset == -1


def test_impossible_requests_are_refused(shares: ShareStates) -> None:
    shares.initialize()
    batch = {**BATCH, "last_offset": 11}
    assert shares.write(10, state_batches=[batch]).error_code is ErrorCode.invalid_request
    assert shares.initialize(partition=-1).error_code is ErrorCode.invalid_request
    assert shares.initialize(2, start_offset=-(2**63)).error_code is ErrorCode.invalid_request
    shares.topic_id = uuid.UUID(int=0)
    assert shares.initialize().error_code is ErrorCode.invalid_request


@pytest.mark.parametrize("key", ["g", "g:x:0", "g::0", "g:AAAAAAAAAAAAAAAAAAAAAQ:x", ":::"])
def test_a_key_that_names_no_share_partition_is_refused(ask: Requests, key: str) -> None:
    assert find(ask, key).error_code is ErrorCode.invalid_request


def test_share_partitions_are_not_found_before_version_6(ask: Requests) -> None:
    assert find(ask, "g:AAAAAAAAAAAAAAAAAAAAAQ:0", 5).error_code is ErrorCode.invalid_request


TOPIC = Topic("t", uuid.UUID(int=1), {0: PartitionInfo(0, 0, (0,), (0,))})


async def test_nobody_is_asked_twice_nor_about_partitions_that_do_not_exist() -> None:
    asked: list[TopicIdPartition] = []

    async def summaries(group_id: str, partitions: list[TopicIdPartition]) -> dict[TopicIdPartition, ShareState]:
        asked.extend(partitions)
        return dict.fromkeys(partitions, ShareState(7, 1, 1, (), 0))

    def led_elsewhere(tp: object) -> None:
        raise BrokerError(ErrorCode.not_leader_or_follower)

    context: Any = SimpleNamespace(
        check=lambda *asked: None,
        allows=lambda *asked: True,
        topics=SimpleNamespace(metadata=SimpleNamespace(topics={"t": TOPIC}), partition=led_elsewhere),
        share=SimpleNamespace(states=SimpleNamespace(summaries=summaries)),
    )
    topics = [SimpleNamespace(topic_name="t", partitions=[0, 0, 5, -1, 5])]
    request: Any = SimpleNamespace(body=SimpleNamespace(groups=[SimpleNamespace(group_id="g", topics=topics)]))
    (group,) = (await describe_share_group_offsets(context, request, cast(Any, None)))["groups"]
    assert asked == [(TOPIC.topic_id, 0)]
    rows = group["topics"][0]["partitions"]
    assert {row["partition_index"]: row["start_offset"] for row in rows} == {0: 7, 5: -1, -1: -1}
    assert len(rows) == 3
