"""The one batch that a client sends to a partition: what can be refused without knowing the partition.

Called by the Produce handler. Rules and codes are those of Kafka's `ProduceRequest.validateRecords` and
`ByteBufferLogInputStream`: what is cut off behind a whole batch is left out, as Kafka does.
"""

from __future__ import annotations

import struct
from typing import Final

from broker.errors import BrokerError, CorruptBatch, ErrorCode
from broker.log.append_checks import writable
from broker.records.batch import CODEC_MASK, HEADER_SIZE, LENGTH_END
from broker.records.compression import Codec

__all__ = ["produced_batch"]

_MAGIC: Final = 16
_ATTRIBUTES: Final = 22  # the low byte
_LENGTH: Final = struct.Struct(">i")
_SHORTEST: Final = 14
"""Of a record in the oldest format; what tells a smaller length is damaged."""
_FIRST_WITH_ZSTD: Final = 7


def produced_batch(records: bytes | bytearray | memoryview | None, version: int) -> bytearray | memoryview:
    """The batch in `records` that a Produce request of `version` brought, to be patched in place if that can be.

    Raises BrokerError: `invalid_record`, `corrupt_message`, `unsupported_compression_type`.
    """
    data = memoryview(writable(records or b""))
    size = _batch_size(data)
    if size is None:
        raise BrokerError(ErrorCode.invalid_record, f"no whole record batch in {len(data)} bytes for this partition")
    if data[_MAGIC] != 2:
        raise BrokerError(ErrorCode.invalid_record, f"magic {data[_MAGIC]} is not 2: Produce v3 takes nothing older")
    if size < HEADER_SIZE:
        raise CorruptBatch(f"a batch of {size} bytes is shorter than its header")
    if data[_ATTRIBUTES] & CODEC_MASK == Codec.ZSTD and version < _FIRST_WITH_ZSTD:
        raise BrokerError(
            ErrorCode.unsupported_compression_type, f"zstd needs Produce v{_FIRST_WITH_ZSTD}, this is v{version}"
        )
    if len(data) > size and _batch_size(data[size:]) is not None:
        raise BrokerError(ErrorCode.invalid_record, "Produce takes one record batch for each partition")
    return data[:size]


def _batch_size(data: memoryview) -> int | None:
    """Bytes of the first batch, None when it is cut off. Raises CorruptBatch for what cannot be a batch."""
    if len(data) < LENGTH_END:
        return None
    (length,) = _LENGTH.unpack_from(data, LENGTH_END - _LENGTH.size)
    if length < _SHORTEST:
        raise CorruptBatch(f"no record batch has a length of {length}")
    if len(data) <= _MAGIC:
        return None
    if data[_MAGIC] > 2:
        raise CorruptBatch(f"magic {data[_MAGIC]} is not known")
    return LENGTH_END + int(length) if LENGTH_END + length <= len(data) else None
