"""The persister of a broker: it asks the share coordinator of a key, on this broker or on another one (83–87).

A coordinator that is moving, loading or away is asked again for a while, so that members notice nothing of a failover.
Every change may be asked for twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.cluster.metadata_cache import MetadataCache
from broker.cluster.topic_changes import TopicChanges
from broker.coordinator.peer_requests import Connect, PeerRequests
from broker.errors import BrokerError, ErrorCode
from broker.net.peer_connection import PeerConnection
from broker.protocol.messages import field
from broker.protocol.topic_names import SHARE_STATE_TOPIC
from broker.protocol.topic_partition import TopicPartition
from broker.share.persister import (
    RETRIABLE,
    STATE_APIS,
    Asked,
    Persister,
    SharePartitionKey,
    ShareState,
    from_fields,
    to_fields,
)
from broker.share.share_coordinator import ShareCoordinator

TRY_S: Final = 5.0
"""How long a coordinator is asked again."""
ANSWER_S: Final = 10.0
"""How long another broker may take to answer: longer than its own time-out, and shorter than those of clients."""
_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.5
_APIS: Final = {kind: (api, version) for api, (kind, version) in STATE_APIS.items()}


@dataclass(eq=False)
class _Question:
    key: SharePartitionKey
    asked: Asked
    answer: Any = None


class ClusterPersister(Persister):
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
        self._peers.follow(topics, lambda question: self._leader(question.key), ErrorCode.not_coordinator)

    async def ask(self, key: SharePartitionKey, asked: Asked) -> ShareState:
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + TRY_S, _FIRST_PAUSE_S
        while True:
            try:
                coordinator = await self._coordinator(key)
                if coordinator == self._broker_id:
                    return await self._local.ask(key, asked)
                return await self._answer(coordinator, _Question(key, asked))
            except BrokerError as error:
                if error.code not in RETRIABLE or loop.time() + pause > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def close(self) -> None:
        """End all requests."""
        await self._peers.close()

    async def _answer(self, coordinator: int, question: _Question) -> ShareState:
        """Raises BrokerError also if the broker is silent. It may act all the same, perhaps later (see `combined`)."""
        about = f"about {question.key}"
        try:
            code = await asyncio.wait_for(self._peers.ask(coordinator, question), ANSWER_S)
        except TimeoutError:
            text = f"broker {coordinator} has not answered {about} in {ANSWER_S:g} s"
            raise BrokerError(ErrorCode.coordinator_not_available, text) from None
        if code is not ErrorCode.none:
            text = field(question.answer, "error_message") or f"broker {coordinator} has not answered {about}"
            raise BrokerError(code, text)
        return from_fields(ShareState, question.answer)

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
            raise BrokerError(ErrorCode.coordinator_not_available, f"no broker coordinates {key}")
        broker = self._topics.metadata.brokers.get(leader)
        if broker is not None and not broker.features:
            text = f"broker {leader} coordinates {key}, and its release has no share groups: upgrade it"
            raise BrokerError(ErrorCode.coordinator_not_available, text)
        return leader

    def _leader(self, key: SharePartitionKey) -> int:
        partition = self._local.partition_for(key.coordinator_key)
        info = self._topics.metadata.partition(TopicPartition(SHARE_STATE_TOPIC, partition))
        return -1 if info is None else info.leader


async def _send(peer: PeerConnection, questions: Sequence[_Question]) -> Mapping[_Question, ErrorCode]:
    grouped: dict[tuple[type[Asked], str], list[_Question]] = {}
    for one in questions:
        grouped.setdefault((type(one.asked), one.key.group_id), []).append(one)
    codes = {}
    for (kind, group_id), all_asked in grouped.items():
        topics: dict[Any, list[Mapping[str, Any]]] = {}
        for one in all_asked:
            topics.setdefault(one.key.topic_id, []).append({"partition": one.key.partition, **to_fields(one.asked)})
        fields = [{"topic_id": topic_id, "partitions": rows} for topic_id, rows in topics.items()]
        answer = await peer.request(*_APIS[kind], {"group_id": group_id, "topics": fields})
        found = {(topic.topic_id, row.partition): row for topic in answer.results for row in topic.partitions}
        for one in all_asked:
            one.answer = found.get((one.key.topic_id, one.key.partition))
            if one.answer is not None:
                codes[one] = one.answer.error_code
    return codes
