"""A member of a share group, request by request."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.described_config import ResourceType
from broker.share.persister import SharePartitionKey
from tests.support.raw_requests import Requests, records_of
from tests.support.waiting import eventually

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
FINAL = -1


def configure(ask: Requests, group: str, **settings: str) -> None:
    """Settings of a group; names with `_` for `.`."""
    configs = [{"name": name.replace("_", "."), "config_operation": 0, "value": v} for name, v in settings.items()]
    resources = [{"resource_type": ResourceType.GROUP, "resource_name": group, "configs": configs}]
    (answer,) = ask.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": resources, "validate_only": False}).responses
    assert answer.error_code is ErrorCode.none, answer


class ShareMember:
    """It joins with its first heartbeat, and its session's epochs count themselves."""

    def __init__(self, ask: Requests, group: str, topic: str, member_id: str | None = None) -> None:
        self.ask = ask
        self.group = group
        self.topic = topic
        self.topic_id: uuid.UUID = ask.named(topic)["topic_id"]
        self.member_id = member_id or str(uuid.uuid4())
        self.epoch = 0
        self.session_epoch = 0

    def heartbeat(self, epoch: int | None = None, topics: Sequence[str] | None = None) -> Any:
        epoch = self.epoch if epoch is None else epoch
        names = [self.topic] if epoch == 0 and topics is None else topics
        answer = self.ask.ask(
            ApiKey.SHARE_GROUP_HEARTBEAT,
            {
                "group_id": self.group,
                "member_id": self.member_id,
                "member_epoch": epoch,
                "rack_id": None,
                "subscribed_topic_names": names,
            },
        )
        if answer.error_code is ErrorCode.none:
            self.epoch = answer.member_epoch
        return answer

    def join(self) -> ShareMember:
        """Join, perhaps as the first member of the first group of the broker."""
        self.ask.ask(ApiKey.FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": [self.group]})
        eventually(self._has_share_coordinator)
        loading = (ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress)
        eventually(lambda: self.heartbeat().error_code not in loading)
        assert self.epoch > 0, self.heartbeat()
        return self

    def _has_share_coordinator(self) -> bool:
        """Whether the first heartbeat can have the state of the first partition made, so that fetches may acquire."""
        keys = [SharePartitionKey(self.group, self.topic_id, 0).coordinator_key]
        (found,) = self.ask.ask(ApiKey.FIND_COORDINATOR, {"key_type": 2, "coordinator_keys": keys}).coordinators
        return bool(found.error_code is not ErrorCode.coordinator_not_available)  # not everybody may know it

    def fetch(
        self,
        acks: Mapping[int, Iterable[tuple[int, int, Sequence[int]]]] | None = None,
        *,
        partitions: Sequence[int] = (0,),
        version: int | None = None,
        epoch: int | None = None,
        **fields: Any,
    ) -> Any:
        """The whole answer. The partitions are named in each request; `acks` by partition."""
        body = {
            **self._session(epoch, acks or {}, partitions),
            "max_wait": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            "forgotten_topics_data": (),
            **fields,
        }
        return self.ask.ask(ApiKey.SHARE_FETCH, body, version)

    def acknowledge(
        self, acks: Mapping[int, Iterable[tuple[int, int, Sequence[int]]]], *, epoch: int | None = None, **fields: Any
    ) -> Any:
        return self.ask.ask(ApiKey.SHARE_ACKNOWLEDGE, {**self._session(epoch, acks, tuple(acks)), **fields})

    def take(self, **fields: Any) -> list[tuple[int, int, int]]:
        """What one fetch of the first partition acquires: (first, last, delivery count) of each range."""
        return acquired(self.fetch(**fields))

    def accept(self, first: int, last: int, kind: int = ACCEPT) -> ErrorCode:
        """How the acknowledgement of a range of the first partition is answered."""
        (topic,) = self.acknowledge({0: [(first, last, [kind])]}).responses
        return ErrorCode(topic.partitions[0].error_code)

    def _session(self, epoch: int | None, acks: Mapping[int, Any], partitions: Sequence[int]) -> dict[str, Any]:
        if epoch is None:
            epoch = self.session_epoch
            self.session_epoch += 1
        rows = [
            {
                "partition_index": number,
                "acknowledgement_batches": [
                    {"first_offset": first, "last_offset": last, "acknowledge_types": types}
                    for first, last, types in acks.get(number, ())
                ],
            }
            for number in partitions
        ]
        return {
            "group_id": self.group,
            "member_id": self.member_id,
            "share_session_epoch": epoch,
            "topics": [{"topic_id": self.topic_id, "partitions": rows}],
        }


def acquired(answer: Any) -> list[tuple[int, int, int]]:
    assert answer.error_code is ErrorCode.none, answer
    return [
        (one.first_offset, one.last_offset, one.delivery_count)
        for topic in answer.responses
        for partition in topic.partitions
        for one in partition.acquired_records
    ]


def offsets_sent(answer: Any) -> list[int]:
    """The offsets of the records of the answer, acquired or not."""
    return [
        record.offset
        for topic in answer.responses
        for partition in topic.partitions
        for record in records_of(partition)
    ]
