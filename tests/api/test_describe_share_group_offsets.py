"""DescribeShareGroupOffsets: what a hostile list of partitions costs."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

from broker.api.describe_share_group_offsets import handle
from broker.coordinator.modern_group_messages import TopicIdPartition
from broker.errors import BrokerError, ErrorCode
from broker.replica.cluster_metadata import PartitionInfo, Topic
from broker.share.persister import ShareState

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
    (group,) = (await handle(context, request, SimpleNamespace()))["groups"]  # type: ignore[arg-type]
    assert asked == [(TOPIC.topic_id, 0)]
    rows = group["topics"][0]["partitions"]
    assert {row["partition_index"]: row["start_offset"] for row in rows} == {0: 7, 5: -1, -1: -1}
    assert len(rows) == 3
