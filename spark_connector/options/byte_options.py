"""Options `maxBytesPerTrigger`, `maxBytesPerPartition` and `minBytesPerPartition`: limits by what records take in the
log, compressed.

Parsed by read_options.py, kept by read/planning.py with the estimates of read/record_bytes.py. Raises ConfigError.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_connector.options.values import OptionValues

__all__ = ["ByteLimits", "parse_byte_limits"]


@dataclass(frozen=True)
class ByteLimits:
    """In bytes, None where there is no limit: of a micro-batch, and of the range one task reads.

    `shared`: ranges of fewer bytes are read together by one task, up to that many; 0 for a task per range.
    """

    per_trigger: int | None
    per_partition: int | None
    shared: int


def parse_byte_limits(values: OptionValues) -> ByteLimits:
    """Sizes like Spark writes them: `64m`, `1g`; a bare number is bytes."""
    most = values.optional_bytes("maxBytesPerPartition")
    least = values.bytes("minBytesPerPartition")
    return ByteLimits(values.optional_bytes("maxBytesPerTrigger"), most, least if most is None else min(least, most))
