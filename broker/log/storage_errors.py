"""Disk errors as the Kafka error that callers know: KAFKA_STORAGE_ERROR, with what could not be done to what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker.errors import BrokerError, ErrorCode

__all__ = ["storage_error", "storage_errors"]


def storage_error(act: str, directory: Path, error: OSError) -> BrokerError:
    return BrokerError(ErrorCode.kafka_storage_error, f"cannot {act} {directory}: {error.strerror or error}")


@contextmanager
def storage_errors(act: str, directory: Path) -> Iterator[None]:
    """Raise BrokerError for an OSError of the block. Hot paths spell it out: this costs a microsecond."""
    try:
        yield
    except OSError as error:
        raise storage_error(act, directory, error) from error
