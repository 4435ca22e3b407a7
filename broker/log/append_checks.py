"""Make the records of one produce ready to be written: checked, with offsets, perhaps stamped.

Called by log.py for every append: headers only, no record is touched, but for topics to be compacted, whose records
must have keys. A client's producer has checked the same; what fails here was damaged on the way, is too large, or
comes from a broken client.
Idea: Kafka's `LogValidator`.
"""

from __future__ import annotations

from broker.errors import BrokerError, CorruptBatch, ErrorCode
from broker.log.log_config import LogConfig
from broker.records.batch import (
    HEADER_SIZE,
    BatchHeader,
    parse_header,
    patch_base_offset,
    patch_log_append_time,
    recompressed_batch,
    verify_batch,
)
from broker.records.compression import Codec, compress, decompress
from broker.records.record import decode_batch

__all__ = ["Batches", "assign_offsets", "check_batches", "recompress", "stamp_append_time", "writable"]

Batches = list[tuple[int, BatchHeader]]
"""(position, header) of each batch of a buffer."""


def check_batches(
    buffer: bytes | bytearray | memoryview, config: LogConfig, now_ms: int, *, from_coordinator: bool = False
) -> Batches:
    """(position, header) of every batch. Raises BrokerError; CorruptBatch also for a cut batch at the end.

    A coordinator's batches may have a producer id without a sequence, and there may be many of them.
    """
    batches: Batches = []
    position, end = 0, len(buffer)
    if end > config.segment_bytes:
        raise BrokerError(
            ErrorCode.record_list_too_large, f"{end} bytes of records; segment.bytes is {config.segment_bytes}"
        )
    while position < end:
        if end - position < HEADER_SIZE:
            raise CorruptBatch(f"{end - position} bytes after the last whole batch")
        header = parse_header(buffer, position)
        if header.size > config.max_message_bytes:
            raise BrokerError(
                ErrorCode.message_too_large,
                f"a batch of {header.size} bytes; max.message.bytes is {config.max_message_bytes}",
            )
        verify_batch(buffer, position, header)
        _check_fields(header, from_coordinator)
        if not config.stamps_append_time:
            _check_timestamps(header, config, now_ms)
        if config.is_compacted and not from_coordinator:
            _check_keys(buffer, position, header)
        batches.append((position, header))
        position += header.size
    if not batches:
        raise BrokerError(ErrorCode.invalid_record, "no record batch to append")
    if len(batches) > 1 and not from_coordinator and any(header.producer_id >= 0 for _, header in batches):
        raise BrokerError(ErrorCode.invalid_record, "an idempotent producer sends one batch at a time")
    return batches


def _check_fields(header: BatchHeader, from_coordinator: bool) -> None:
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise BrokerError(
            ErrorCode.invalid_record,
            f"{header.record_count} records with a last offset delta of {header.last_offset_delta}",
        )
    if header.is_control:
        raise BrokerError(ErrorCode.invalid_record, "clients may not write control batches")
    if header.producer_id >= 0:
        if header.producer_epoch < 0 or (header.base_sequence < 0 and not from_coordinator):
            raise BrokerError(
                ErrorCode.invalid_record,
                f"producer id {header.producer_id} with epoch {header.producer_epoch}, sequence {header.base_sequence}",
            )
    elif header.is_transactional:
        raise BrokerError(ErrorCode.invalid_record, "a transactional batch without a producer id")


def _check_keys(buffer: bytes | bytearray | memoryview, position: int, header: BatchHeader) -> None:
    """What is to be compacted needs keys, and records that can be read: the one look at them that an append takes."""
    for record in decode_batch(buffer, position, header):
        if record.key is None:
            raise BrokerError(
                ErrorCode.invalid_record,
                f"record {record.offset - header.base_offset} of the batch has no key; cleanup.policy has compact",
            )


def _check_timestamps(header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    if header.is_log_append_time:
        raise BrokerError(ErrorCode.invalid_timestamp, "producers may not set the timestamp type LogAppendTime")
    if header.max_timestamp - now_ms > config.message_timestamp_after_max_ms:
        raise BrokerError(
            ErrorCode.invalid_timestamp,
            f"timestamp {header.max_timestamp} lies {header.max_timestamp - now_ms} ms ahead of the broker's clock; "
            f"message.timestamp.after.max.ms is {config.message_timestamp_after_max_ms}",
        )
    if header.base_timestamp >= 0 and now_ms - header.base_timestamp > config.message_timestamp_before_max_ms:
        raise BrokerError(
            ErrorCode.invalid_timestamp,
            f"timestamp {header.base_timestamp} lies {now_ms - header.base_timestamp} ms behind the broker's clock; "
            f"message.timestamp.before.max.ms is {config.message_timestamp_before_max_ms}",
        )


def writable(records: bytes | bytearray | memoryview) -> bytearray | memoryview:
    """The buffer itself if it can be patched in place, else a copy."""
    if isinstance(records, bytearray) or (isinstance(records, memoryview) and not records.readonly):
        return records
    return bytearray(records)


def recompress(
    buffer: bytearray | memoryview, batches: Batches, codec: Codec, level: int | None = None
) -> tuple[bytearray | memoryview, Batches]:
    """The batches, all compressed with `codec`, and where they are: in `buffer` itself if they were already.

    Raises CorruptBatch.
    """
    if all(header.codec == codec for _, header in batches):
        return buffer, batches
    stored = bytearray()
    places: Batches = []
    for position, header in batches:
        start = len(stored)
        batch = memoryview(buffer)[position : position + header.size]
        if header.codec == codec:
            stored += batch
        else:
            plain = decompress(header.codec, batch[HEADER_SIZE:])
            stored += recompressed_batch(header, compress(codec, plain, level), codec)
        places.append((start, parse_header(stored, start)))
    return stored, places


def assign_offsets(buffer: bytearray | memoryview, batches: Batches, offset: int, leader_epoch: int) -> int:
    """Patch offsets from `offset` on into the batches; returns the offset after the last record."""
    for position, header in batches:
        patch_base_offset(buffer, position, offset, leader_epoch)
        offset += header.last_offset_delta + 1
    return offset


def stamp_append_time(buffer: bytearray | memoryview, batches: Batches, now_ms: int) -> Batches:
    """Set the broker's time on every batch; returns the new headers."""
    for position, header in batches:
        patch_log_append_time(buffer, position, header, now_ms)
    return [(position, parse_header(buffer, position)) for position, _ in batches]
