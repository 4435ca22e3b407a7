"""Options `maxBytesPerTrigger` and `maxBytesPerPartition`: limits by what records take in the log, compressed.

Parsed by read_options.py, kept by read/planning.py with the estimates of read/record_bytes.py. Raises ConfigError.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_connector.options.values import OptionValues

__all__ = ["ByteLimits", "parse_byte_limits"]


@dataclass(frozen=True)
class ByteLimits:
    """In bytes, None where there is no limit: of a micro-batch, and of the range one task reads."""

    per_trigger: int | None
    per_partition: int | None


def parse_byte_limits(values: OptionValues) -> ByteLimits:
    """Sizes like Spark writes them: `64m`, `1g`; a bare number is bytes."""
    return ByteLimits(values.optional_bytes("maxBytesPerTrigger"), values.optional_bytes("maxBytesPerPartition"))
