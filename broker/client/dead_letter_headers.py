"""Names of the headers that a record gets in a dead-letter topic: where it was first read, and why it failed.

Shared by record_processor.py and by the connector's `badRecordsTopic`; imports nothing, so executors load it cheaply.
"""

from __future__ import annotations

from typing import Final

ORIGIN: Final = "pykafka.origin."
"""Prefix of `topic`, `partition`, `offset` and `timestamp`."""

ATTEMPTS: Final = "pykafka.attempts"
ERROR: Final = "pykafka.error"
LONGEST_ERROR: Final = 1000
"""Characters of an error text that are kept."""
