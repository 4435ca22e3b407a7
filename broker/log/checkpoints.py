"""The small text files beside the logs, in Kafka's formats. A write replaces the whole file.

Used by log_directory.py (one file per data directory for all its partitions), leader_epochs.py and log.py:

    recovery-point-offset-checkpoint, log-start-offset-checkpoint, cleaner-offset-checkpoint,
    replication-offset-checkpoint (high watermarks)
        version (0), number of lines, then `topic partition offset`
    leader-epoch-checkpoint
        version (0), number of lines, then `epoch start-offset`
    partition.metadata
        `version: 0`, `topic_id: <UUID, 16 bytes in URL-safe base64>`

A file that cannot be parsed raises ConfigError with its name; a missing one counts as empty.
"""

from __future__ import annotations

import base64
import logging
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

from broker.durable_files import write_atomically
from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEAN_OFFSETS = "cleaner-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"

_VERSION = 0


def write_offsets(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    _write_lines(path, (f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(offsets.items())))


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """Raises ConfigError."""
    result = {}
    for line in _read_lines(path):
        topic, _, numbers = line.partition(" ")
        partition, offset = _two_integers(path, numbers)
        result[TopicPartition(topic, partition)] = offset
    return result


def write_epochs(path: Path, epochs: Iterable[tuple[int, int]]) -> None:
    """(epoch, start offset) pairs."""
    _write_lines(path, (f"{epoch} {start}" for epoch, start in epochs))


def read_epochs(path: Path) -> list[tuple[int, int]]:
    """Raises ConfigError."""
    return [_two_integers(path, line) for line in _read_lines(path)]


def write_topic_id(path: Path, topic_id: uuid.UUID) -> None:
    encoded = base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()
    write_atomically(path, f"version: {_VERSION}\ntopic_id: {encoded}\n".encode())


def read_topic_id(path: Path) -> uuid.UUID | None:
    """None without a file. Raises ConfigError."""
    lines = _text_lines(path)
    if lines is None:
        return None
    values = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    try:
        return uuid.UUID(bytes=base64.urlsafe_b64decode(values["topic_id"] + "=="))
    except (KeyError, ValueError):
        raise ConfigError(f"{path} names no topic_id") from None


def known_topic_id(path: Path) -> uuid.UUID | None:
    """As `read_topic_id`, and None for a damaged file as well, which `Log.assign_topic_id` writes again."""
    try:
        return read_topic_id(path)
    except ConfigError as error:
        logger.warning("%s; it is written again with the topic's id from ZooKeeper", error)
        return None


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    body = list(lines)
    write_atomically(path, "\n".join([str(_VERSION), str(len(body)), *body, ""]).encode())


def _read_lines(path: Path) -> list[str]:
    lines = _text_lines(path)
    if lines is None:
        return []
    if len(lines) < 2 or lines[0] != str(_VERSION) or lines[1] != str(len(lines) - 2):
        raise ConfigError(f"{path} is not a checkpoint of version {_VERSION}, or it is cut; delete it to start without")
    return lines[2:]


def _text_lines(path: Path) -> list[str] | None:
    try:
        return path.read_bytes().decode("utf-8").splitlines()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text file") from None


def _two_integers(path: Path, text: str) -> tuple[int, int]:
    try:
        first, second = text.split()
        return int(first), int(second)
    except ValueError:
        raise ConfigError(f"{path}: cannot read the line {text!r}") from None
