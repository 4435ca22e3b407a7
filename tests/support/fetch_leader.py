"""A leader without a socket: real partitions, and Fetch requests that its handler answers from bytes to bytes."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from broker.api import fetch
from broker.api.context import ApiContext, Client
from broker.api.fetch_sessions import FetchSessionCache
from broker.clock import ManualClock
from broker.config.broker_config import BrokerConfig
from broker.errors import BrokerError, ErrorCode
from broker.log.append_checks import BatchCheck, writable
from broker.metrics import Metrics
from broker.net.throttling import FetchedAnswer
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import decode_request, decode_response, encode_request
from broker.protocol.topic_partition import TopicPartition
from broker.quotas.client_quotas import ClientQuotas
from broker.records.control import ControlType, EndMarker
from broker.records.record import decode_records
from broker.replica.cluster_metadata import ClusterMetadata, PartitionInfo, Topic
from broker.replica.partition import Partition
from broker.replica.replica import check_leader_epoch
from broker.replica.replication_quota import ReplicationQuota
from broker.security.authorizer import Authorizer
from tests.support.batches import batch, open_log
from tests.support.raw_requests import fetch_body


class FetchLeader:
    """Leads partitions, and has one fetch session cache for each client that asks."""

    def __init__(self, directory: Path, slots: int = 1000) -> None:
        self.clock = ManualClock()
        self.partitions: dict[TopicPartition, Partition] = {}
        self.topic_ids: dict[uuid.UUID, str] = {}
        self.reads: list[TopicPartition] = []
        """Every look at a partition."""
        self.config = BrokerConfig(fetch_max_bytes=1 << 20)
        self.metrics = Metrics()
        self.quotas = ClientQuotas()
        self.throttled = False
        """Whether the router would find the consumer throttled. It asks if any client has a quota."""
        self.cache = self.new_cache(slots)
        self._directory = directory

    def new_cache(self, slots: int = 1000) -> FetchSessionCache:
        return FetchSessionCache(slots, self.clock, self.metrics.fetch_sessions)

    # --- partitions

    def lead(self, *numbers: int, topic: str = "t", info: PartitionInfo | None = None) -> uuid.UUID:
        """Lead partitions of a topic, with the logs they had; gives the topic's id. `info` names the replicas."""
        for number in numbers:
            tp = TopicPartition(topic, number)
            log = open_log(self._directory / str(tp), clock=self.clock)
            epoch = info.leader_epoch if info else 0
            self.partitions[tp] = Partition(tp, log, epoch, info=info, clock=self.clock)
        known = {name: topic_id for topic_id, name in self.topic_ids.items()}
        topic_id = known.get(topic) or uuid.uuid4()
        self.topic_ids[topic_id] = topic
        return topic_id

    def resign(self, partition: int, topic: str = "t") -> None:
        led = self.partitions.pop(TopicPartition(topic, partition))
        led.close()
        led.log.close()

    def put(self, partition: int, *values: bytes, topic: str = "t", producer_id: int = -1, sequence: int = -1) -> None:
        """Append one batch; with a producer id, in its transaction."""
        led = self.partitions[TopicPartition(topic, partition)]
        records = batch(
            *values,
            producer_id=producer_id,
            producer_epoch=min(producer_id, 0),
            sequence=sequence,
            transactional=producer_id >= 0,
        )
        check = BatchCheck(writable(records), led.log.config, self.clock.now_ms())
        check.run()
        led.append_checked(check)

    def end_transaction(self, partition: int, producer_id: int, *, commit: bool = True) -> None:
        control = ControlType.COMMIT if commit else ControlType.ABORT
        self.partitions[TopicPartition("t", partition)].append_marker(EndMarker(producer_id, 0, control, 0))

    # --- requests

    def send(
        self,
        wanted: Sequence[Mapping[str, Any]] = (),
        *,
        forgotten: Mapping[str | uuid.UUID, Sequence[int]] | None = None,
        version: int = 12,
        cache: FetchSessionCache | None = None,
        replica: int = -1,
        **body: Any,
    ) -> Any:
        """The answer, or an awaitable of it if the fetch waits. Other arguments are those of `fetch_body`."""
        gone = [
            {"topic_id" if isinstance(topic, uuid.UUID) else "topic": topic, "partitions": partitions}
            for topic, partitions in (forgotten or {}).items()
        ]
        fields = {**fetch_body(wanted, **body), "forgotten_topics_data": gone, "replica_id": replica}
        request = decode_request(encode_request(ApiKey.FETCH, version, 1, "tests", fields)[4:])
        answer = fetch.handle(self._context(cache or self.cache), request, Client("127.0.0.1", 1))
        return self._awaited(answer, version) if isinstance(answer, Awaitable) else self._decoded(answer, version)

    async def _awaited(self, answer: Awaitable[Any], version: int) -> Any:
        return self._decoded(await answer, version)

    def _decoded(self, answer: Any, version: int) -> Any:
        if isinstance(answer, FetchedAnswer):
            answer = answer.withhold() if self.throttled else answer.send()
        return _decoded(answer, version)

    def _context(self, cache: FetchSessionCache) -> ApiContext:
        metadata = ClusterMetadata(
            "c", topics={name: Topic(name, topic_id, partitions={}) for topic_id, name in self.topic_ids.items()}
        )
        replicas = SimpleNamespace(leader_quota=ReplicationQuota(1))
        topics = SimpleNamespace(
            partition=self._partition, replica=self._partition, metadata=metadata, replicas=replicas
        )
        authorizer = Authorizer(open_listener="PLAINTEXT")
        context = SimpleNamespace(
            topics=topics,
            config=self.config,
            metrics=self.metrics,
            fetch_sessions=cache,
            authorizer=authorizer,
            allows=authorizer.allows,
            check=lambda client, need, name: None,
            current_leader=lambda client, tp: None,
            quotas=self.quotas,
        )
        return cast(ApiContext, context)

    def _partition(self, tp: TopicPartition, epoch: int = -1) -> Partition:
        self.reads.append(tp)
        if tp not in self.partitions:
            known = tp.topic in self.topic_ids.values()
            raise BrokerError(ErrorCode.not_leader_or_follower if known else ErrorCode.unknown_topic_or_partition)
        check_leader_epoch(tp, self.partitions[tp].leader_epoch, epoch)
        return self.partitions[tp]


def _decoded(parts: Sequence[Any], version: int) -> Any:
    frame = b"".join(part if isinstance(part, bytes) else part.read() for part in parts)
    return decode_response(ApiKey.FETCH, version, frame[4:])[1]


def seen(answer: Any) -> list[tuple[int, list[bytes | None]]]:
    """(partition, values) in the order of the answer."""
    return [
        (partition.partition_index, [record.value for record in decode_records(partition.records or b"")])
        for topic in answer.responses
        for partition in topic.partitions
    ]
