"""Prepare batches for an append: check them, recompress them if the topic asks for it, patch offsets and times.

The Produce handler runs a `BatchCheck` for each client's batch, which looks at every record, in steps. log.py checks
only the headers of a coordinator's batches. A batch that fails was damaged on the way, is not allowed, or comes from a
broken client; in the log, every reader would fail on it. Rules and error codes are those of Kafka's `LogValidator` and
`UnifiedLog.analyzeAndValidateRecords`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

from broker.config.topic_settings import UNLIMITED
from broker.errors import BrokerError, CorruptBatch, ErrorCode, RecordsRefused
from broker.log.log_config import LogConfig
from broker.records.batch import (
    HEADER_SIZE,
    BatchHeader,
    Buffer,
    parse_header,
    patch_base_offset,
    patch_log_append_time,
    patch_max_timestamp,
    recompressed_batch,
    verify_batch,
    verify_bytes,
)
from broker.records.compression import (
    DECOMPRESSION_LIMIT,
    Codec,
    GrowsTooLarge,
    compressed_parts,
    in_steps,
    plain_pieces,
    starts_slowly,
    takes_long,
)
from broker.records.record_check import MOST_FAULTS, Fault, RecordCheck, RecordRules, is_slow

Batches = list[tuple[int, BatchHeader]]
"""(position, header) of each batch of a buffer."""

PlacedBatches = list[tuple[int, BatchHeader]]
"""(last offset, header) of each batch of a buffer. The header may lack the offset if it was read before."""

_RECOMPRESSION_COST: Final = 8
"""Compressing a byte takes about as long as checking so many."""
_SLOW_PIECE_BYTES: Final = 8 << 10
"""Bytes checked between two looks at the cost, without the kernel."""
_SHOWN_FAULTS: Final = 3


@dataclasses.dataclass(slots=True)
class Allowance:
    """How many plain bytes the compressed batches of one request, taken together, may still decompress to."""

    left: int


class BatchCheck:
    """The check of one client's batch. Call `run` until it is done; `batch` is then ready to be appended.

    A compressed batch is decompressed piece by piece, so it needs little memory, and to at most `DECOMPRESSION_LIMIT`
    bytes, which is what readers accept. One thread at a time.
    """

    def __init__(
        self, batch: bytearray | memoryview, config: LogConfig, now_ms: int, allowance: Allowance | None = None
    ) -> None:
        """Check header and CRC. `batch` is exactly one batch, and may be patched.

        Raises BrokerError: `corrupt_message`, `message_too_large`, `invalid_record`, `unknown_server_error`.
        """
        header = parse_header(batch)
        if header.base_offset:
            raise _invalid(f"the base offset of a produced batch is 0, not {header.base_offset}")
        _check_size(header, config)
        verify_bytes(batch, 0, header)
        _check_header(header)
        self.batch = batch
        self.header = header
        self.size_as_sent = header.size
        self.done = False
        self._config = config
        if config.stamps_append_time:
            bounds = UNLIMITED, UNLIMITED
        else:
            bounds = config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms
        self._rules = RecordRules(config.is_compacted, now_ms, *bounds)
        self._records = RecordCheck(header, self._rules)
        self._allowance = allowance or Allowance(DECOMPRESSION_LIMIT)
        self._codec = header.codec if config.codec is None else config.codec
        self.cost = 0
        """The cost of `run` so far, in about the time it takes to check one byte."""
        self._is_quick = header.codec == self._codec == Codec.NONE and not is_slow()
        self._cost_of_byte = 1 if self._codec == header.codec else _RECOMPRESSION_COST
        self._work: Iterator[object] = self._checked() if self._codec == header.codec else self._recompressed()

    def run(self, cost: int | None = None) -> bool:
        """Continue until the check is done or `cost` is spent; returns whether it is done.

        Raises BrokerError: `invalid_record`, `invalid_timestamp`, `message_too_large`, and, as Kafka does,
        `unknown_server_error` for data that cannot be decompressed.
        """
        if self.done:
            return True
        if cost is not None and not self._is_quick and (cost <= 0 or self._starts_slowly()):
            return False
        enough = None if cost is None else self.cost + cost
        try:
            for _ in self._work:
                if enough is not None and self.cost >= enough:
                    return False
        except GrowsTooLarge as error:
            raise BrokerError(ErrorCode.message_too_large, error.message) from None
        except CorruptBatch as error:
            raise BrokerError(ErrorCode.unknown_server_error, error.message) from None
        self.done = True
        return True

    def _starts_slowly(self) -> bool:
        """Whether even the first step of a small batch would block an event loop for too long."""
        if self._codec != self.header.codec and takes_long(self._codec, self._config.compression_level):
            return True
        section = memoryview(self.batch)[HEADER_SIZE:]
        return starts_slowly(self.header.codec, section) or starts_slowly(self._codec)

    def _checked(self) -> Iterator[Buffer]:
        """Yield the plain records piece by piece, each already checked. After the last one the batch is good."""
        header, records = self.header, self._records
        section = memoryview(self.batch)[HEADER_SIZE:]
        if self._is_quick:
            records.feed(section)
        else:
            for piece in plain_pieces(header.codec, section, DECOMPRESSION_LIMIT):
                if header.codec != Codec.NONE:
                    self._allowance.left -= len(piece)
                    if self._allowance.left < 0:
                        raise GrowsTooLarge("the batches of this request grow too large when decompressed: send fewer")
                for part in plain_pieces(Codec.NONE, piece, at_once=_SLOW_PIECE_BYTES) if is_slow() else (piece,):
                    self.cost += records.feed(part) + len(part) * self._cost_of_byte
                    yield part
        records.finish()
        self._check_rules()
        if not self._config.stamps_append_time and (
            header.is_log_append_time or header.max_timestamp != records.newest_timestamp
        ):
            patch_max_timestamp(self.batch, 0, header, records.newest_timestamp)
            self.header = parse_header(self.batch)

    def _recompressed(self) -> Iterator[None]:
        """Check and recompress piece by piece. Never holds more than max.message.bytes."""
        parts: list[Buffer] = []
        room = self._config.max_message_bytes - HEADER_SIZE
        for part in compressed_parts(self._codec, in_steps(self._checked()), self._config.compression_level):
            parts.append(part)
            room -= len(part)
            if room < 0:
                raise GrowsTooLarge(
                    f"compressed with {Codec(self._codec).name.lower()}, as compression.type asks, the batch is larger "
                    f"than max.message.bytes={self._config.max_message_bytes}"
                )
            yield
        self.batch = bytearray(recompressed_batch(self.header, b"".join(parts), self._codec))
        self.header = parse_header(self.batch)

    def _check_rules(self) -> None:
        if self._config.stamps_append_time and self.header.is_log_append_time:
            text = "producers may not set the timestamp type LogAppendTime"
            places = range(min(self.header.record_count, MOST_FAULTS))
            raise RecordsRefused(ErrorCode.invalid_timestamp, text, tuple((place, text) for place in places))
        count = self._records.fault_count
        if not count:
            return
        faults = self._records.faults
        errors = tuple((fault.place, self._text(fault)) for fault in faults)
        code = (
            ErrorCode.invalid_record
            if all(fault.timestamp is None for fault in faults)
            else ErrorCode.invalid_timestamp
        )
        shown = "; ".join(f"record {place}: {text}" for place, text in errors[:_SHOWN_FAULTS])
        more = f" and {count - _SHOWN_FAULTS} more" if count > _SHOWN_FAULTS else ""
        raise RecordsRefused(code, f"{count} of {self.header.record_count} records are refused: {shown}{more}", errors)

    def _text(self, fault: Fault) -> str:
        if fault.timestamp is None:
            return "it has no key, and cleanup.policy has compact"
        ahead, rules = fault.timestamp - self._rules.now_ms, self._rules
        way, bound, most = (
            ("ahead of", "after", rules.after_max_ms) if ahead > 0 else ("behind", "before", rules.before_max_ms)
        )
        return (
            f"timestamp {fault.timestamp} lies {abs(ahead)} ms {way} the broker's clock; "
            f"message.timestamp.{bound}.max.ms is {most}"
        )


def coordinator_batches(buffer: bytearray | memoryview, config: LogConfig) -> Batches:
    """(position, header) of every batch of a coordinator. They may have producer ids without sequences.

    Raises BrokerError, and CorruptBatch also for a cut batch at the end.
    """
    batches: Batches = []
    position = 0
    while position < len(buffer):
        if len(buffer) - position < HEADER_SIZE:
            raise CorruptBatch(f"{len(buffer) - position} bytes after the last whole batch")
        header = parse_header(buffer, position)
        verify_bytes(buffer, position, header, check_crc=False)
        _check_size(header, config)
        verify_batch(buffer, position, header)
        batches.append((position, header))
        position += header.size
    if not batches:
        raise _invalid("no record batch to append")
    check_fits_segment(buffer, config)
    return batches


def check_fits_segment(buffer: Buffer, config: LogConfig) -> None:
    """Raise BrokerError `record_list_too_large` for more bytes than a segment may have."""
    if len(buffer) > config.segment_bytes:
        raise BrokerError(
            ErrorCode.record_list_too_large,
            f"{len(buffer)} bytes of records; segment.bytes is {config.segment_bytes}",
        )


def _check_size(header: BatchHeader, config: LogConfig) -> None:
    if header.size > config.max_message_bytes:
        raise BrokerError(
            ErrorCode.message_too_large,
            f"a batch of {header.size} bytes; max.message.bytes is {config.max_message_bytes}",
        )


def _check_header(header: BatchHeader) -> None:
    """Check what a client's batch may have in its header."""
    if header.codec > max(Codec):
        raise BrokerError(ErrorCode.unknown_server_error, f"compression codec {header.codec} is not known")
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise _invalid(f"{header.record_count} records with a last offset delta of {header.last_offset_delta}")
    if header.is_control:
        raise _invalid("clients may not write control batches")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise _invalid(f"producer id {header.producer_id} with sequence {header.base_sequence}")
    if header.producer_id < 0 and header.is_transactional:
        raise _invalid("a transactional batch without a producer id")


def _invalid(message: str) -> BrokerError:
    return BrokerError(ErrorCode.invalid_record, message)


def writable(records: Buffer) -> bytearray | memoryview:
    """The buffer itself if it can be patched in place, else a copy."""
    if isinstance(records, bytearray) or (isinstance(records, memoryview) and not records.readonly):
        return records
    return bytearray(records)


def assign_offsets(buffer: bytearray | memoryview, batches: Batches, offset: int, leader_epoch: int) -> PlacedBatches:
    """Patch offsets, from `offset` on, and the leader epoch into the batches; returns them with their last offsets."""
    placed = []
    for position, header in batches:
        patch_base_offset(buffer, position, offset, leader_epoch)
        offset += header.last_offset_delta
        placed.append((offset, header))
        offset += 1
    return placed


def stamp_append_time(buffer: bytearray | memoryview, batches: Batches, now_ms: int) -> Batches:
    """Patch the broker's time into every batch; returns the new headers."""
    for position, header in batches:
        patch_log_append_time(buffer, position, header, now_ms)
    return [(position, parse_header(buffer, position)) for position, _ in batches]
