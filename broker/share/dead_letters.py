"""The dead letters of share groups (KIP-1191): what no member gets any more is written to a topic that the group names.

A dead letter says in its headers where the record is and why it was given up. If the group asks for it, it also has the
record's key, value and headers, and is compressed as the record was. It goes to the leader of its partition as acks=all
does; Kafka chooses the same partition.

What cannot be written is tried again, ever more seldom; the archive of a share partition waits for it, and nothing
else. In the end the record is archived without a dead letter, as in Kafka: the log and a counter say so. Lives on the
event loop; records are read, decoded and checked in threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broker.background_tasks import BackgroundTasks
from broker.clock import Clock
from broker.cluster.group_configs import GroupConfigs
from broker.cluster.metadata_cache import MetadataCache
from broker.cluster.topic_changes import NewTopic, TopicChanges
from broker.config.broker_config import BrokerConfig
from broker.coordinator.peer_requests import Connect, PeerRequests
from broker.errors import BrokerError, CorruptBatch, ErrorCode
from broker.log.append_checks import BatchCheck, writable
from broker.log.log_config import LogConfig
from broker.log.segment_file import ColdRead, FileSlice, unless_cold
from broker.net.peer_connection import PeerConnection
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import verify_batch, walk_batches
from broker.records.builder import BatchBuilder
from broker.records.compression import Codec
from broker.records.record import Record, decode_batch
from broker.replica.cold_reads import warmed
from broker.replica.partition import Partition
from broker.share.persister import SharePartitionKey
from broker.share.share_partition_state import DeadLetters

logger = logging.getLogger(__name__)

Offsets = tuple[int, int]
"""First and last."""
WriteDeadLetters = Callable[[SharePartitionKey, Partition, Sequence[DeadLetters]], Awaitable[Sequence[Offsets]]]
"""Writes the first ones, of a partition that this broker leads; gives the offsets that are dealt with, one at least."""

ENABLE_KEY: Final = "errors.deadletterqueue.group.enable"
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
_READ_BYTES: Final = 1 << 20
_MOST: Final = 2000
"""Dead letters of one batch."""
_SAFE_S: Final = 30.0
_PRODUCE_VERSION: Final = 9
_PRODUCE_TIMEOUT_MS: Final = 4000
"""Less than brokers wait for the answer of another one."""

_ATTEMPTS: Final = 5
"""As in Kafka."""
_PATIENT_ATTEMPTS: Final = 10
"""If an election will help, or a broker that comes back; Kafka gives up after 15 s."""
_PASSING: Final = (
    *(ErrorCode.not_leader_or_follower, ErrorCode.leader_not_available, ErrorCode.unknown_topic_or_partition),
    *(ErrorCode.network_exception, ErrorCode.broker_not_available, ErrorCode.request_timed_out),
    *(ErrorCode.not_enough_replicas, ErrorCode.not_enough_replicas_after_append),
)
_TOO_LARGE: Final = (ErrorCode.message_too_large, ErrorCode.record_list_too_large)


@dataclass(eq=False)
class _Question:
    """A batch that another broker appends."""

    tp: TopicPartition
    batch: bytes


class DeadLetterWriter:
    """Writes them for all share partitions of this broker. The counters are by group."""

    def __init__(
        self,
        broker_id: int,
        config: Callable[[], BrokerConfig],
        topics: MetadataCache,
        topic_changes: TopicChanges,
        groups: GroupConfigs,
        clock: Clock,
        connect: Connect,
    ) -> None:
        """`config`: the settings in force."""
        self.written: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        """Attempts."""
        self.given_up: Counter[str] = Counter()
        """Records that were archived without a dead letter."""
        self._broker_id = broker_id
        self._config = config
        self._topics = topics
        self._topic_changes = topic_changes
        self._groups = groups
        self._clock = clock
        self._peers = PeerRequests(connect, _send)
        self._tasks = BackgroundTasks()

    async def write(self, key: SharePartitionKey, source: Partition, due: Sequence[DeadLetters]) -> Sequence[Offsets]:
        """As `WriteDeadLetters` says. Raises nothing."""
        group, pause, attempt, is_bare = key.group_id, FIRST_PAUSE_S, 1, False
        while True:
            parts: Sequence[DeadLetters] = due
            config = self._groups.of(group)
            try:
                target = await self._target(config.errors_deadletterqueue_topic_name, source.tp.partition)
                copies = config.errors_deadletterqueue_copy_record_enable and not is_bare
                found, codec = await _found(source, due, copies=copies)
                limit = self._topics.replicas.log_config(self._topics.metadata.topics[target.topic]).max_message_bytes
                builder = BatchBuilder(codec=codec, max_bytes=limit)
                parts = await asyncio.to_thread(_fill, builder, found, group, source.tp, self._clock.now_ms())
                await self._produce(target, await asyncio.to_thread(builder.build))
                self.written[group] += builder.record_count
                return [part[:2] for part in parts]
            except BrokerError as error:
                code, reason = error.code, str(error)
            except Exception as error:  # whatever it is, the share partition shall go on
                code, reason = ErrorCode.unknown_server_error, repr(error)
            self.failed[group] += 1
            first, last = parts[0].first_offset, parts[-1].last_offset
            told = f"the dead letters of share group {group} for offsets {first} to {last} of {source.tp}"
            if code in _TOO_LARGE and not is_bare:
                logger.warning("%s are too large, and go without the records: %s", told, reason)
                is_bare, due = True, parts
                continue
            most = _PATIENT_ATTEMPTS if code in _PASSING else _ATTEMPTS
            if attempt >= most or not config.errors_deadletterqueue_topic_name:
                logger.error("%s cannot be written; the records are archived without: %s", told, reason)
                self.given_up[group] += sum(part.last_offset - part.first_offset + 1 for part in parts)
                return [part[:2] for part in parts]
            logger.warning("%s are not written yet: %s", told, reason)
            # The last attempt goes without the records, in case it is they that cannot be read.
            is_bare |= attempt + 1 >= most and code is not ErrorCode.invalid_config
            await asyncio.sleep(pause)
            attempt, pause = attempt + 1, min(2 * pause, LONGEST_PAUSE_S)

    async def _target(self, name: str, partition: int) -> TopicPartition:
        """Raises BrokerError: `invalid_config` for a topic that is not there, or not for dead letters."""
        prefix = self._config().errors_deadletterqueue_topic_name_prefix
        if not name or not name.startswith(prefix):
            key = "errors.deadletterqueue.topic.name"
            raise _unfit(f"{key}={name} of the group does not begin with {key}.prefix={prefix} of the broker")
        if name not in self._topics.metadata.topics:
            if not self._config().errors_deadletterqueue_auto_create_topics_enable:
                raise _unfit(f"there is no topic {name}: create it with {ENABLE_KEY}=true")
            try:
                new = NewTopic(name, config={ENABLE_KEY: "true", "message.timestamp.type": "CreateTime"})
                await self._topic_changes.create(new)
            except BrokerError as error:
                if error.code is not ErrorCode.topic_already_exists:
                    raise
        topic = self._topics.metadata.topics.get(name)
        if topic is None:
            raise BrokerError(ErrorCode.leader_not_available, f"topic {name} is being created")
        if not self._topics.replicas.log_config(topic).errors_deadletterqueue_group_enable:
            raise _unfit(f"topic {name} is not for dead letters: set {ENABLE_KEY}=true")
        return TopicPartition(name, partition % len(topic.partitions))

    async def _produce(self, tp: TopicPartition, batch: bytes) -> None:
        """Returns when all in-sync replicas have the batch. Raises BrokerError."""
        info = self._topics.metadata.partition(tp)
        if info is None or info.leader < 0:
            raise BrokerError(ErrorCode.leader_not_available, f"{tp} has no leader")
        if info.leader != self._broker_id:
            code = await self._peers.ask(info.leader, _Question(tp, batch))
            if code is not ErrorCode.none:
                raise BrokerError(code, f"broker {info.leader} has not appended to {tp}: {code.name}")
            return
        leader = self._topics.partition(tp)
        leader.check_min_isr()
        check = await asyncio.to_thread(_checked, batch, leader.log.config, self._clock.now_ms())
        if self._topics.partition(tp) is not leader:
            raise BrokerError(ErrorCode.not_leader_or_follower, f"{tp} has another leader epoch")
        unsafe = leader.until_safe(leader.append_checked(check))
        if unsafe is not None:
            waiting = self._tasks.begin("writing dead letters", unsafe)
            if not (await asyncio.wait([waiting], timeout=_SAFE_S))[0]:
                raise BrokerError(ErrorCode.request_timed_out, f"the in-sync replicas of {tp} are late")
            waiting.result()

    async def close(self) -> None:
        """End all requests."""
        await self._peers.close()
        await self._tasks.close()


async def _found(
    source: Partition, due: Sequence[DeadLetters], *, copies: bool
) -> tuple[list[tuple[DeadLetters, Mapping[int, Record]]], int]:
    """The first of what is due, with the records by offset (none without `copies`), and their codec.

    What the log does not have any more has no record. Raises BrokerError.
    """
    parts: list[tuple[DeadLetters, Mapping[int, Record]]] = []
    records: Mapping[int, Record] = {}
    codec: int = Codec.NONE
    begin = end = -1
    left, bytes_left = _MOST, _READ_BYTES
    for one in due:
        first = one.first_offset
        while first <= one.last_offset:
            if copies and not begin <= first < end:
                if bytes_left <= 0:
                    return parts, codec
                begin, end, records = first, one.last_offset + 1, {}
                found = await _read(source, first)
                if found is not None:
                    records, codec, end = await asyncio.to_thread(_decode, found, first)
                    bytes_left -= found.length
            last = min(one.last_offset, first + left - 1, end - 1 if copies else one.last_offset)
            parts.append((one._replace(first_offset=first, last_offset=last), records))
            left -= last - first + 1
            first = last + 1
            if left <= 0:
                return parts, codec
    return parts, codec


async def _read(source: Partition, offset: int) -> FileSlice | None:
    def read() -> FileSlice | None:
        return source.read(offset, _READ_BYTES)

    try:
        return unless_cold(read)
    except ColdRead as cold:
        return await warmed(read, cold)
    except BrokerError as error:
        if error.code is not ErrorCode.offset_out_of_range:
            raise
        return None


def _decode(found: FileSlice, first: int) -> tuple[Mapping[int, Record], int, int]:
    """The records from an offset on, the codec of the last batch, and the offset after it. Damaged batches are left
    out."""
    records: dict[int, Record] = {}
    data, codec, end = found.read(), int(Codec.NONE), first + 1
    for position, header in walk_batches(data):
        end = max(end, header.next_offset)
        if header.is_control:
            continue
        try:
            verify_batch(data, position, header)
            records.update((one.offset, one) for one in decode_batch(data, position, header) if one.offset >= first)
            codec = header.codec
        except CorruptBatch as error:
            logger.warning("dead letters go without the records from offset %d on: %s", header.base_offset, error)
    return records, codec, end


def _fill(
    builder: BatchBuilder,
    found: Sequence[tuple[DeadLetters, Mapping[int, Record]]],
    group: str,
    source: TopicPartition,
    now_ms: int,
) -> list[DeadLetters]:
    """Returns what has found room."""
    parts: list[DeadLetters] = []
    for part, records in found:
        reason = "a member rejected the record" if part.is_rejected else "the record was delivered too often"
        for offset in range(part.first_offset, part.last_offset + 1):
            record = records.get(offset)
            context = {
                "topic": source.topic,
                "partition": source.partition,
                "offset": offset,
                "group": group,
                "delivery.count": part.delivery_count,
                "message": reason,
            }
            headers = [(f"__dlq.errors.{name}", str(value).encode()) for name, value in context.items()]
            kept = (None, None, ()) if record is None else (record.key, record.value, record.headers)
            if not builder.append(now_ms, kept[0], kept[1], [*kept[2], *headers]):
                return [*parts, part._replace(last_offset=offset - 1)] if offset > part.first_offset else parts
        parts.append(part)
    return parts


def _checked(batch: bytes, config: LogConfig, now_ms: int) -> BatchCheck:
    """As a client's. Raises BrokerError."""
    check = BatchCheck(writable(batch), config, now_ms)
    check.run()
    return check


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
