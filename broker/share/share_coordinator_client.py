"""The persister of a broker: it asks the share coordinator of a key, on this broker or on another one (83–87).

A coordinator that is moving, loading or away is asked again for a while, so that members notice nothing of a failover.
Every change may be asked for twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from broker.cluster.metadata_cache import MetadataCache
from broker.cluster.topic_changes import TopicChanges
from broker.coordinator.peer_requests import Connect, PeerRequests
from broker.errors import BrokerError, ErrorCode
from broker.net.peer_connection import PeerConnection
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_names import SHARE_STATE_TOPIC
from broker.protocol.topic_partition import TopicPartition
from broker.share.persister import (
    RETRIABLE,
    SharePartitionKey,
    ShareState,
    ShareSummary,
    ShareWrite,
    StateBatch,
)
from broker.share.share_coordinator import ShareCoordinator

T = TypeVar("T")

TRY_S: Final = 5.0
"""How long a coordinator is asked again."""
ANSWER_S: Final = 10.0
"""How long another broker may take to answer: longer than its own time-out, and shorter than those of clients."""
_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.5
_VERSIONS: Final = {
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: 0,
    ApiKey.READ_SHARE_GROUP_STATE: 0,
    ApiKey.WRITE_SHARE_GROUP_STATE: 1,
    ApiKey.DELETE_SHARE_GROUP_STATE: 0,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: 1,
}


@dataclass(eq=False)
class _Question:
    api: ApiKey
    key: SharePartitionKey
    fields: Mapping[str, Any]
    answer: Any = None


class ClusterPersister:
    """A `Persister` of all share partitions of the cluster. Lives on the event loop."""

    def __init__(
        self,
        topics: MetadataCache,
        topic_changes: TopicChanges,
        broker_id: int,
        local: ShareCoordinator,
        connect: Connect,
    ) -> None:
        self._topics = topics
        self._topic_changes = topic_changes
        self._broker_id = broker_id
        self._local = local
        self._peers = PeerRequests(connect, _send)
        topics.add_change_listener(self._leaders_changed)

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        fields = {"state_epoch": state_epoch, "start_offset": start_offset}
        asked = _Question(ApiKey.INITIALIZE_SHARE_GROUP_STATE, key, fields)
        await self._ask(asked, lambda: self._local.initialize(key, state_epoch, start_offset), _nothing)

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        asked = _Question(ApiKey.READ_SHARE_GROUP_STATE, key, {"leader_epoch": leader_epoch})

        def state(row: Any) -> ShareState:
            batches = [
                StateBatch(one.first_offset, one.last_offset, one.delivery_state, one.delivery_count)
                for one in row.state_batches
            ]
            return ShareState(row.start_offset, row.state_epoch, leader_epoch, batches)

        return await self._ask(asked, lambda: self._local.read(key, leader_epoch), state)

    async def write(self, key: SharePartitionKey, write: ShareWrite) -> None:
        fields = {**write._asdict(), "state_batches": [batch._asdict() for batch in write.state_batches]}
        asked = _Question(ApiKey.WRITE_SHARE_GROUP_STATE, key, fields)
        await self._ask(asked, lambda: self._local.write(key, write), _nothing)

    async def delete(self, key: SharePartitionKey) -> None:
        asked = _Question(ApiKey.DELETE_SHARE_GROUP_STATE, key, {})
        await self._ask(asked, lambda: self._local.delete(key), _nothing)

    async def summary(self, key: SharePartitionKey) -> ShareSummary:
        asked = _Question(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, key, {"leader_epoch": -1})
        return await self._ask(
            asked,
            lambda: self._local.summary(key),
            lambda row: ShareSummary(row.start_offset, row.delivery_complete_count, row.leader_epoch, row.state_epoch),
        )

    async def close(self) -> None:
        """End all requests."""
        await self._peers.close()

    async def _ask(self, asked: _Question, ask_local: Callable[[], Awaitable[T]], result: Callable[[Any], T]) -> T:
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + TRY_S, _FIRST_PAUSE_S
        while True:
            try:
                coordinator = await self._coordinator(asked.key)
                if coordinator == self._broker_id:
                    return await ask_local()
                code = await self._answer(coordinator, asked)
                if code is not ErrorCode.none:
                    message = getattr(asked.answer, "error_message", None)
                    raise BrokerError(code, message or f"broker {coordinator} has not stored or read the share state")
                return result(asked.answer)
            except BrokerError as error:
                if error.code not in RETRIABLE or loop.time() + pause > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _answer(self, coordinator: int, asked: _Question) -> ErrorCode:
        """Raises BrokerError if the broker is silent. It may act all the same, perhaps later (see `combined`)."""
        try:
            return await asyncio.wait_for(self._peers.ask(coordinator, asked), ANSWER_S)
        except TimeoutError:
            text = f"broker {coordinator} has not answered about {asked.key.coordinator_key} in {ANSWER_S:g} s"
            raise BrokerError(ErrorCode.coordinator_not_available, text) from None

    async def _coordinator(self, key: SharePartitionKey) -> int:
        """The broker that coordinates the key. The topic is created when it is first needed."""
        if SHARE_STATE_TOPIC not in self._topics.metadata.topics:
            try:
                await self._topic_changes.create_default(SHARE_STATE_TOPIC)
            except BrokerError as error:
                if error.code is not ErrorCode.topic_already_exists:
                    raise BrokerError(ErrorCode.coordinator_not_available, error.message) from error
        leader = self._leader(key)
        if leader < 0:
            raise BrokerError(ErrorCode.coordinator_not_available, f"no broker coordinates {key.coordinator_key}")
        return leader

    def _leader(self, key: SharePartitionKey) -> int:
        partition = self._local.partition_for(key.coordinator_key)
        info = self._topics.metadata.partition(TopicPartition(SHARE_STATE_TOPIC, partition))
        return -1 if info is None else info.leader

    def _leaders_changed(self, names: Collection[str]) -> None:
        if SHARE_STATE_TOPIC in names:
            self._peers.give_up(
                lambda broker_id, asked: self._leader(asked.key) != broker_id, ErrorCode.not_coordinator
            )


def _nothing(row: Any) -> None:
    pass


async def _send(peer: PeerConnection, questions: Sequence[_Question]) -> Mapping[_Question, ErrorCode]:
    grouped: dict[tuple[ApiKey, str], list[_Question]] = {}
    for asked in questions:
        grouped.setdefault((asked.api, asked.key.group_id), []).append(asked)
    codes = {}
    for (api, group_id), all_asked in grouped.items():
        topics: dict[Any, list[Mapping[str, Any]]] = {}
        for asked in all_asked:
            topics.setdefault(asked.key.topic_id, []).append({"partition": asked.key.partition, **asked.fields})
        fields = [{"topic_id": topic_id, "partitions": rows} for topic_id, rows in topics.items()]
        answer = await peer.request(api, _VERSIONS[api], {"group_id": group_id, "topics": fields})
        found = {(topic.topic_id, row.partition): row for topic in answer.results for row in topic.partitions}
        for asked in all_asked:
            asked.answer = found.get((asked.key.topic_id, asked.key.partition))
            if asked.answer is not None:
                codes[asked] = asked.answer.error_code
    return codes
