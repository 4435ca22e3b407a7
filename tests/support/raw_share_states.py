"""Requests of a partition's leader to the share coordinator (APIs 83 to 87)."""

from __future__ import annotations

import uuid
from typing import Any, Self

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.share.persister import SharePartitionKey
from tests.support.raw_requests import Requests
from tests.support.waiting import eventually

BATCH = {"first_offset": 12, "last_offset": 14, "delivery_state": 2, "delivery_count": 1}


class ShareStates:
    """Requests about partition 0 of a topic, for one group."""

    def __init__(self, ask: Requests, group: str, topic_id: uuid.UUID) -> None:
        self.ask = ask
        self.group = group
        self.topic_id = topic_id

    def ready(self) -> Self:
        """Create the topic of the states, and wait until it is loaded."""
        key = SharePartitionKey(self.group, self.topic_id, 0).coordinator_key
        eventually(lambda: find(self.ask, key).error_code is ErrorCode.none)
        return self

    def about(self, api: ApiKey, version: int = 0, partition: int = 0, **fields: Any) -> Any:
        topics = [{"topic_id": self.topic_id, "partitions": [{"partition": partition, **fields}]}]
        ((result,),) = [
            topic.partitions for topic in self.ask.ask(api, {"group_id": self.group, "topics": topics}, version).results
        ]
        assert result.partition == partition
        return result

    def initialize(self, state_epoch: int = 1, start_offset: int = -1, **more: Any) -> Any:
        api = ApiKey.INITIALIZE_SHARE_GROUP_STATE
        return self.about(api, state_epoch=state_epoch, start_offset=start_offset, **more)

    def read(self, leader_epoch: int = 0, **more: Any) -> Any:
        return self.about(ApiKey.READ_SHARE_GROUP_STATE, leader_epoch=leader_epoch, **more)

    def write(self, start_offset: int, version: int = 1, leader_epoch: int = 0, **more: Any) -> Any:
        fields = {"state_epoch": 1, "start_offset": start_offset, "state_batches": [BATCH], **more}
        return self.about(
            ApiKey.WRITE_SHARE_GROUP_STATE, version, leader_epoch=leader_epoch, delivery_complete_count=3, **fields
        )

    def summary(self, version: int = 1) -> Any:
        return self.about(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, version, leader_epoch=-1)


def find(ask: Requests, key: str, version: int = 6) -> Any:
    body = {"key_type": 2, "coordinator_keys": [key]}
    return ask.ask(ApiKey.FIND_COORDINATOR, body, version).coordinators[0]
