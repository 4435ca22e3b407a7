"""What the records of `__consumer_offsets` and `__transaction_state` say, as documents for `pykafka log dump`.

Called by log_dump.py. Kafka's tools call these decoders OffsetsMessageParser and TransactionLogMessageParser. A record
that cannot be read, or is of a later Kafka, gives None: it is shown as bytes then.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker.coordinator.group_records import GroupMetadata, OffsetKey, decode_group, decode_key, decode_offset
from broker.coordinator.record_reader import MalformedRecord
from broker.coordinator.transaction_records import decode_transaction, decode_transaction_key
from broker.errors import ProtocolError
from broker.protocol.consumer_protocol import decode_assignment
from broker.protocol.topic_names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC

__all__ = ["InternalDecoder", "internal_decoder"]

InternalDecoder = Callable[[bytes | None, bytes | None], tuple[Any, Any] | None]
"""Of a key and a value the documents; a value that is None says that what the key names is gone."""


def internal_decoder(partition: Path) -> InternalDecoder | None:
    """The decoder for the records of a partition's directory, if it is one of an internal topic."""
    topic = partition.name.rpartition("-")[0]
    return {GROUP_OFFSETS_TOPIC: _of_groups, TRANSACTION_STATE_TOPIC: _of_transactions}.get(topic)


def _of_groups(key: bytes | None, value: bytes | None) -> tuple[Any, Any] | None:
    try:
        named = decode_key(key or b"")
        if named is None:
            return None
        if isinstance(named, OffsetKey):
            committed = None if value is None else decode_offset(value)._asdict()
            return {"type": "offset", **named._asdict()}, committed
        stored = None if value is None else _group(decode_group(value))
        return {"type": "group", **named._asdict()}, stored
    except MalformedRecord:
        return None


def _group(group: GroupMetadata) -> dict[str, Any]:
    return {
        "protocol_type": group.protocol_type,
        "generation_id": group.generation_id,
        "protocol_name": group.protocol_name,
        "leader": group.leader,
        "state_timestamp_ms": group.state_timestamp_ms,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "session_timeout_ms": member.session_timeout_ms,
                "rebalance_timeout_ms": member.rebalance_timeout_ms,
                "assignment": _assignment(group.protocol_type, member.assignment),
            }
            for member in group.members
        ],
    }


def _assignment(protocol_type: str, data: bytes) -> list[str] | str:
    if protocol_type == "consumer":
        try:
            return [f"{tp.topic}-{tp.partition}" for tp in decode_assignment(data)]
        except ProtocolError:
            pass
    return data.hex()


def _of_transactions(key: bytes | None, value: bytes | None) -> tuple[Any, Any] | None:
    try:
        name = decode_transaction_key(key or b"")
        if name is None:
            return None
        if value is None:
            return {"transactional_id": name}, None
        found = decode_transaction(value)
    except MalformedRecord:
        return None
    return {"transactional_id": name}, {
        "state": found.state.title,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.timeout_ms,
        "start_ms": found.start_ms,
        "last_update_ms": found.last_update_ms,
        "partitions": [f"{tp.topic}-{tp.partition}" for tp in sorted(found.partitions)],
    }
