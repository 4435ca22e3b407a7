"""What must hold between the replicas of one partition, read from their files (promises P3 and P4).

Replicas hold the same batches, byte for byte. Their segments may begin at other offsets, and the log of one may begin
later than that of another. Each broker compacts its own logs, so replicas of a compacted log need only have the same
last committed record of each key.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from broker.embedded import EmbeddedBroker
from broker.log.checkpoints import LEADER_EPOCHS, read_epochs
from broker.log.inspection import inspect_segment, segment_files
from broker.protocol.topic_partition import TopicPartition
from broker.records.control import ControlType, read_control_type
from broker.records.record import decode_batch
from tests.support.history import Anomaly

Key = bytes | None


class StoredBatch(NamedTuple):
    """`end` is the offset after the last one. `digest` is of all bytes."""

    base: int
    end: int
    epoch: int
    digest: str

    def __str__(self) -> str:
        return f"{self.base}–{self.end - 1} of epoch {self.epoch} ({self.digest[:8]})"


class Replica(NamedTuple):
    """The batches of one broker's log by their base offsets, and its leader-epoch checkpoint."""

    batches: Mapping[int, StoredBatch]
    epochs: list[tuple[int, int]]

    @property
    def start(self) -> int:
        return min(self.batches, default=0)

    @property
    def end(self) -> int:
        return max((batch.end for batch in self.batches.values()), default=0)


def partition_directories(brokers: Mapping[int, EmbeddedBroker], tp: TopicPartition) -> dict[int, Path]:
    """The directory of a partition on each broker that has one."""
    directories = {id: one.data_dir / "broker" / f"{tp.topic}-{tp.partition}" for id, one in brokers.items()}
    return {id: directory for id, directory in directories.items() if directory.is_dir()}


def replica_anomalies(
    tp: TopicPartition, directories: Mapping[int, Path], watermark: int | None = None, *, in_sync: Collection[int] = ()
) -> list[Anomaly]:
    """What is wrong between the replicas, each on the broker it is given for.

    Below `watermark` their batches must be equal, as far as each log goes; those of `in_sync` must reach it. Without a
    watermark, as after healing, all logs must be equal to the end. The brokers may run, but what they append is looked
    at only below a watermark.
    """
    replicas = {id: _read(directory) for id, directory in directories.items()}
    whole = set(replicas) if watermark is None else set(in_sync)
    end = max((one.end for one in replicas.values()), default=0) if watermark is None else watermark
    return [
        *_short(tp, replicas, end, whole),
        *_diverged(tp, replicas, end),
        *_two_leaders(tp, replicas),
    ]


def compacted_anomalies(tp: TopicPartition, directories: Mapping[int, Path]) -> list[Anomaly]:
    """Where the last committed records differ, by key. All replicas must have all records of the others."""
    found = {id: _last_by_key(directory) for id, directory in directories.items()}
    return [
        Anomaly(
            "diverged replicas", f"{tp}: broker {one} has {left.get(key)} for {key!r}, broker {other} {right.get(key)}"
        )
        for (one, left), (other, right) in itertools.combinations(found.items(), 2)
        for key in left.keys() | right.keys()
        if left.get(key) != right.get(key)
    ]


def _last_by_key(directory: Path) -> dict[Key, tuple[int, bytes]]:
    """The last record of each key, (offset, value), but for tombstones, open transactions and aborted ones."""
    last: dict[Key, tuple[int, bytes | None]] = {}
    pending: dict[int, list[tuple[Key, int, bytes | None]]] = {}
    for path in segment_files(directory):
        for found in inspect_segment(path):
            if found.header is None or found.data is None:
                continue
            if found.header.is_control:
                ended = pending.pop(found.header.producer_id, [])
                if read_control_type(found.data, 0, found.header) == ControlType.COMMIT:
                    _note(last, ended)
                continue
            records = [(r.key, r.offset, r.value) for r in decode_batch(found.data, 0, found.header)]
            if found.header.is_transactional:
                pending.setdefault(found.header.producer_id, []).extend(records)
            else:
                _note(last, records)
    return {key: (offset, value) for key, (offset, value) in last.items() if value is not None}


def _note(last: dict[Key, tuple[int, bytes | None]], records: Iterable[tuple[Key, int, bytes | None]]) -> None:
    for key, offset, value in records:
        last[key] = max(last.get(key, (-1, None)), (offset, value), key=lambda found: found[0])


def _read(directory: Path) -> Replica:
    batches: dict[int, StoredBatch] = {}
    for path in segment_files(directory):
        for found in inspect_segment(path):
            if found.header is not None and found.data is not None:  # else a tail that is being written
                header, digest = found.header, hashlib.blake2b(found.data, digest_size=16).hexdigest()
                batches[header.base_offset] = StoredBatch(
                    header.base_offset, header.last_offset + 1, header.leader_epoch, digest
                )
    return Replica(batches, read_epochs(directory / LEADER_EPOCHS))


def _short(tp: TopicPartition, replicas: Mapping[int, Replica], end: int, whole: Collection[int]) -> Iterator[Anomaly]:
    for id in whole:
        found = replicas[id].end if id in replicas else 0
        if found < end:
            yield Anomaly("short replica", f"{tp}: broker {id} ends at {found}, not at {end}")


def _diverged(tp: TopicPartition, replicas: Mapping[int, Replica], end: int) -> Iterator[Anomaly]:
    """The first difference of each pair."""
    for (one, left), (other, right) in itertools.combinations(replicas.items(), 2):
        start, common_end = max(left.start, right.start), min(left.end, right.end, end)
        for base in sorted(left.batches.keys() | right.batches.keys()):
            ours, theirs = left.batches.get(base), right.batches.get(base)
            if start <= base < common_end and ours != theirs:
                yield Anomaly("diverged replicas", f"{tp}: broker {one} has {ours}, broker {other} has {theirs}")
                break


def _two_leaders(tp: TopicPartition, replicas: Mapping[int, Replica]) -> Iterator[Anomaly]:
    """An epoch begins at one offset, and its leader gives an offset to one batch: above the watermark, too."""
    for (one, left), (other, right) in itertools.combinations(replicas.items(), 2):
        for base in sorted(left.batches.keys() & right.batches.keys()):
            ours, theirs = left.batches[base], right.batches[base]
            if ours.epoch == theirs.epoch and ours != theirs:
                yield Anomaly("two leaders in one epoch", f"{tp}: {ours} on broker {one}, {theirs} on broker {other}")
                break
        begins = dict(_known_starts(right))
        for epoch, start in _known_starts(left):
            if begins.get(epoch, start) != start:
                yield Anomaly(
                    "two leaders in one epoch",
                    f"{tp}: epoch {epoch} begins at {start} on broker {one}, at {begins[epoch]} on broker {other}",
                )


def _known_starts(replica: Replica) -> list[tuple[int, int]]:
    """Epochs with their first offsets, without the first epoch of a log that has lost its start: it moves with that."""
    return [(epoch, start) for number, (epoch, start) in enumerate(replica.epochs) if number or not start]
