"""The dead letters of share groups (KIP-1191): what no member gets any more is written to a topic that the group names.

A dead letter says in its headers where the record is and why it was given up. If the group asks for it, it also has the
record's key, value and headers, and is compressed as the record was. It goes to the leader of its partition as acks=all
does; Kafka chooses the same partition.

What cannot be written is tried again, ever more seldom; the archive of a share partition waits for it, and nothing
else. In the end the record is archived without a dead letter, as in Kafka, and the log says so. Lives on the event
loop; records are read, decoded and checked in threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import partial
from itertools import islice
from typing import Final

from broker.clock import Clock
from broker.cluster.group_configs import GroupConfigs
from broker.cluster.metadata_cache import MetadataCache
from broker.cluster.topic_changes import NewTopic, TopicChanges
from broker.config.broker_config import BrokerConfig
from broker.coordinator.peer_requests import Connect, PeerRequests
from broker.errors import BrokerError, CorruptBatch, ErrorCode, raise_for
from broker.log.append_checks import BatchCheck, writable
from broker.net.peer_connection import PeerConnection
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import verify_batch, walk_batches
from broker.records.builder import BatchBuilder
from broker.records.compression import Codec
from broker.records.record import Record, decode_batch
from broker.replica.cold_reads import read_warm
from broker.replica.partition import Partition
from broker.share.persister import SharePartitionKey
from broker.share.share_partition_state import DeadLetters

logger = logging.getLogger(__name__)

WriteDeadLetters = Callable[[SharePartitionKey, Partition, Sequence[DeadLetters]], Awaitable[int]]
"""Writes the first ones, of a partition that this broker leads; gives the last offset that is dealt with."""

ENABLE_KEY: Final = "errors.deadletterqueue.group.enable"
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
_ATTEMPTS: Final = 10
"""Two minutes, so that a broker may come back."""
_UNFIT_ATTEMPTS: Final = 5
"""15 s, as Kafka, for a topic that is not there or not for dead letters: that lasts until somebody mends it."""
_READ_BYTES: Final = 1 << 20
_MOST: Final = 2000
"""Dead letters of one batch."""
_SAFE_S: Final = 30.0
_PRODUCE_VERSION: Final = 9
_PRODUCE_TIMEOUT_MS: Final = 4000
"""Less than brokers wait for the answer of another one."""
_TOO_LARGE: Final = (ErrorCode.message_too_large, ErrorCode.record_list_too_large)

_Letters = Sequence[tuple[int, DeadLetters]]
"""An offset, and the range that it is of."""


@dataclass(eq=False)
class _Question:
    """A batch that another broker appends."""

    tp: TopicPartition
    batch: bytes


@dataclass(eq=False)
class DeadLetterWriter:
    """Writes them for all share partitions of this broker. The counters are by group."""

    broker_id: int
    settings: Callable[[], BrokerConfig]
    """In force."""
    topics: MetadataCache
    topic_changes: TopicChanges
    groups: GroupConfigs
    clock: Clock
    connect: InitVar[Connect]
    written: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    """Attempts."""

    def __post_init__(self, connect: Connect) -> None:
        self._peers = PeerRequests(connect, _send)
        self._peers.follow(self.topics, lambda asked: self._leader(asked.tp), ErrorCode.not_leader_or_follower)

    async def write(self, key: SharePartitionKey, source: Partition, due: Sequence[DeadLetters]) -> int:
        """As `WriteDeadLetters` says. Raises nothing."""
        group, pause, is_bare = key.group_id, FIRST_PAUSE_S, False
        every = ((offset, one) for one in due for offset in range(one.first_offset, one.last_offset + 1))
        letters: _Letters = list(islice(every, _MOST))
        for attempt in range(1, _ATTEMPTS + 1):
            config = self.groups.of(group)
            try:
                target, limit = await self._target(config.errors_deadletterqueue_topic_name, source.tp.partition)
                records, codec = dict[int, Record](), int(Codec.NONE)
                if config.errors_deadletterqueue_copy_record_enable and not is_bare:
                    records, letters, codec = await _found(source, letters)
                now_ms = self.clock.now_ms()
                builder = BatchBuilder(codec=codec, max_bytes=limit)
                batch = await asyncio.to_thread(_fill, builder, letters, records, group, source.tp, now_ms)
                letters = letters[: builder.record_count]
                await self._produce(target, batch)
                self.written[group] += len(letters)
                break
            except Exception as error:  # whatever it is, the share partition shall go on
                self.failed[group] += 1
                first, last = letters[0][0], letters[-1][0]
                told = f"the dead letters of share group {group} for offsets {first} to {last} of {source.tp}"
                is_unfit = isinstance(error, BrokerError) and error.code is ErrorCode.invalid_config
                most = _UNFIT_ATTEMPTS if is_unfit else _ATTEMPTS
                if attempt >= most or not config.errors_deadletterqueue_topic_name:
                    logger.error("%s cannot be written; the records are archived without: %r", told, error)
                    break
                is_too_large = isinstance(error, BrokerError) and error.code in _TOO_LARGE and not is_bare
                then = "go without the records" if is_too_large else "are tried again"
                logger.warning("%s are not written yet, and %s: %r", told, then, error)
                # The last attempt goes without the records, too, in case it is they that cannot be read.
                is_bare |= is_too_large or attempt + 1 == _ATTEMPTS
                if not is_too_large:
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE_S)
        return letters[-1][0]

    async def _target(self, name: str, partition: int) -> tuple[TopicPartition, int]:
        """Where they go, and the bytes of a batch there. Raises BrokerError: `invalid_config` for a topic that is not
        there, or not for dead letters."""
        config = self.settings()
        prefix = config.errors_deadletterqueue_topic_name_prefix
        if not name or not name.startswith(prefix):
            key = "errors.deadletterqueue.topic.name"
            raise _unfit(f"{key}={name} of the group does not begin with {key}.prefix={prefix} of the broker")
        if name not in self.topics.metadata.topics:
            if not config.errors_deadletterqueue_auto_create_topics_enable:
                raise _unfit(f"there is no topic {name}: create it with {ENABLE_KEY}=true")
            new = NewTopic(name, config={ENABLE_KEY: "true", "message.timestamp.type": "CreateTime"})
            await self.topic_changes.create(new)
        topic = self.topics.metadata.topics.get(name)
        if topic is None:
            raise BrokerError(ErrorCode.leader_not_available, f"topic {name} is being created")
        log_config = self.topics.replicas.log_config(topic)
        if not log_config.errors_deadletterqueue_group_enable:
            raise _unfit(f"topic {name} is not for dead letters: set {ENABLE_KEY}=true")
        return TopicPartition(name, partition % len(topic.partitions)), log_config.max_message_bytes

    async def _produce(self, tp: TopicPartition, batch: bytes) -> None:
        """Returns when all in-sync replicas have the batch. Raises BrokerError, TimeoutError."""
        leading = self._leader(tp)
        if leading < 0:
            raise BrokerError(ErrorCode.leader_not_available, f"{tp} has no leader")
        if leading != self.broker_id:
            raise_for(
                await self._peers.ask(leading, _Question(tp, batch)), f"broker {leading} has not appended to {tp}"
            )
            return
        leader = self.topics.partition(tp)
        leader.check_min_isr()
        check = BatchCheck(writable(batch), leader.log.config, self.clock.now_ms())
        await asyncio.to_thread(check.run)
        if self.topics.partition(tp) is not leader:
            raise BrokerError(ErrorCode.not_leader_or_follower, f"{tp} has another leader epoch")
        unsafe = leader.until_safe(leader.append_checked(check))
        if unsafe is not None:
            await asyncio.wait_for(asyncio.shield(unsafe), _SAFE_S)  # others may wait for the same flush

    def _leader(self, tp: TopicPartition) -> int:
        info = self.topics.metadata.partition(tp)
        return -1 if info is None else info.leader

    async def close(self) -> None:
        """End all requests."""
        await self._peers.close()


async def _found(source: Partition, letters: _Letters) -> tuple[dict[int, Record], _Letters, int]:
    """The records of the first ones, and their codec. What the log does not have any more has none. Raises
    BrokerError."""
    records, codec = dict[int, Record](), int(Codec.NONE)
    end, bytes_left = -1, _READ_BYTES
    for index, (offset, _) in enumerate(letters):
        if offset < end:
            continue
        if bytes_left <= 0:
            return records, letters[:index], codec
        end = offset + 1
        try:
            found = await read_warm(partial(source.read, offset, _READ_BYTES))
        except BrokerError as error:
            if error.code is not ErrorCode.offset_out_of_range:
                raise
            continue
        if found is not None:
            bytes_left -= found.length
            data = await asyncio.to_thread(found.read)
            after, codec = await asyncio.to_thread(_decode, data, records)
            end = max(end, after)
    return records, letters, codec


def _decode(data: bytes, records: dict[int, Record]) -> tuple[int, int]:
    """Add the records, but for those of damaged batches. Returns the offset after them, and the codec of the last."""
    end, codec = 0, int(Codec.NONE)
    for position, header in walk_batches(data):
        end = header.next_offset
        if header.is_control:
            continue
        try:
            verify_batch(data, position, header)
            records.update((one.offset, one) for one in decode_batch(data, position, header))
            codec = header.codec
        except CorruptBatch as error:
            logger.warning("dead letters go without the records from offset %d on: %s", header.base_offset, error)
    return end, codec


def _fill(
    builder: BatchBuilder,
    letters: _Letters,
    records: Mapping[int, Record],
    group: str,
    source: TopicPartition,
    now_ms: int,
) -> bytes:
    """A batch of those that find room."""
    for offset, of in letters:
        context = {
            "topic": source.topic,
            "partition": source.partition,
            "offset": offset,
            "group": group,
            "delivery.count": of.delivery_count,
            "message": "a member rejected the record" if of.is_rejected else "the record was delivered too often",
        }
        headers = [(f"__dlq.errors.{name}", str(value).encode()) for name, value in context.items()]
        record = records.get(offset)
        key, value, own = (None, None, ()) if record is None else (record.key, record.value, record.headers)
        if not builder.append(now_ms, key, value, [*own, *headers]):
            break
    return builder.build()


def _unfit(reason: str) -> BrokerError:
    return BrokerError(ErrorCode.invalid_config, reason)


async def _send(peer: PeerConnection, questions: Sequence[_Question]) -> Mapping[_Question, ErrorCode]:
    codes = {}
    for asked in questions:
        data = {"name": asked.tp.topic, "partition_data": [{"index": asked.tp.partition, "records": asked.batch}]}
        body = {"transactional_id": None, "acks": -1, "timeout": _PRODUCE_TIMEOUT_MS, "topic_data": [data]}
        answer = await peer.request(ApiKey.PRODUCE, _PRODUCE_VERSION, body)
        codes[asked] = ErrorCode(answer.responses[0].partition_responses[0].error_code)
    return codes
