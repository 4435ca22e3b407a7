"""What a load is, as a value: which offsets it covers, where its data lies, and its name.

Written as JSON three times in a load's life: the intent (before Spark runs), the manifest (data complete, with files),
and the commit (in the commit log, without files). Made by loads/plan.py, read by everything of `load`. Pure.

A load id is `<group>-<sequence>-<token>`: loads of one group are numbered, and the token tells apart two attempts at
the same number, of which only one can be committed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.reached_epochs import ReachedEpochs

__all__ = [
    "LoadError",
    "LoadFile",
    "LoadId",
    "LoadInterrupted",
    "LoadRange",
    "LoadRecord",
    "LoadTooLarge",
    "Origin",
    "Rewind",
    "Undone",
    "published_directory",
]

_VERSION = 1
_LOAD_ID = re.compile(r"(?P<group>.+)-(?P<sequence>\d{6,})-(?P<token>[0-9a-f]{8})")


class LoadError(PykafkaError):
    """A load cannot go on; what is committed and what is staged stays as it was."""


class LoadInterrupted(LoadError):
    """A load was stopped by what lies outside it, a file system or a task of Spark; the same load may work later."""

    retriable = True


class LoadTooLarge(LoadError):
    """The commit log cannot take a load of so many partitions; nothing of it is kept."""


def published_directory(load_id: str) -> str:
    """Name of a published load below the output directory; Spark reads `load` as a partition column."""
    return f"load={load_id}"


@dataclass(frozen=True)
class LoadId:
    """The parts of a load's name."""

    group: str
    sequence: int
    token: str

    def __str__(self) -> str:
        return f"{self.group}-{self.sequence:06d}-{self.token}"

    @classmethod
    def parse(cls, text: str) -> LoadId | None:
        """None when the text is no load id."""
        match = _LOAD_ID.fullmatch(text)
        return cls(match["group"], int(match["sequence"]), match["token"]) if match else None


@dataclass(frozen=True)
class LoadRange:
    """Offsets `start` up to, not including, `end` of one partition.

    `stored` is what the offset store must still hold for the commit to go through (None: nothing). `rows` is how many
    rows were written; fewer than offsets where compaction or transaction markers left gaps; None before Spark has run.
    """

    topic: str
    partition: int
    start: int
    end: int
    stored: int | None
    rows: int | None = None

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Origin:
    """A cluster by its id, None where brokers do not give it, and by the servers it was asked at."""

    cluster_id: str | None
    bootstrap_servers: str

    def differs_from(self, cluster_id: str | None) -> bool:
        """Whether it is certain that it is not the cluster of this id."""
        return None not in (self.cluster_id, cluster_id) and self.cluster_id != cluster_id

    def __str__(self) -> str:
        return f"cluster {self.cluster_id} ({self.bootstrap_servers})"


@dataclass(frozen=True)
class LoadFile:
    """A data file of a load, by name below the load's directory; size in bytes."""

    name: str
    size: int


@dataclass(frozen=True)
class Undone:
    """A load that a rewind takes back, and the URL of the directory that it went to."""

    load_id: str
    output: str


@dataclass(frozen=True)
class Rewind:
    """What makes an entry of the commit log a rewind: the load the group stands at again, and those after it.

    Their directories are moved to `_rewound/<load id of the rewind>/` of their output, or, with `delete`, deleted.
    """

    to_load: str
    undone: tuple[Undone, ...]
    delete: bool


@dataclass(frozen=True)
class LoadRecord:
    """One load. `output` is the URL of the directory, or the database and table, that all loads go to, `offsets` the
    kind of store it commits to; `partition_by` the columns that are directories of its output.

    `topic_ids` holds the id of every topic that the group has loaded so far, this load included (KIP-516), where the
    brokers give ids: by them the next load sees that a topic was created anew, however long its log is by then.
    `reading` are the reader's options that decide which records are loaded and what they become (loads/reading.py),
    `origin` is the cluster that they are from, `epochs` the leader epochs where the group stands after this load; None
    in records that were made before loads kept them.
    """

    load_id: str
    output: str
    format: str
    offsets: str
    created_ms: int
    ranges: tuple[LoadRange, ...]
    rerun_of: str | None = None
    files: tuple[LoadFile, ...] = ()
    rewind: Rewind | None = None
    partition_by: tuple[str, ...] = ()
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    reading: Mapping[str, str] | None = None
    origin: Origin | None = None
    epochs: ReachedEpochs | None = None

    @classmethod
    def unknown(cls, load_id: str, output: str, offsets: str) -> LoadRecord:
        """Of a load that nothing but the name is known of."""
        return cls(load_id, output, "", offsets, -1, ())

    @property
    def id(self) -> LoadId:
        parsed = LoadId.parse(self.load_id)
        if parsed is None:
            raise LoadError(f"'{self.load_id}' is no load id")
        return parsed

    @property
    def rows(self) -> int:
        return sum(range.rows or 0 for range in self.ranges)

    @property
    def committed(self) -> dict[TopicPartition, int]:
        """What the commit stores: the ends. A re-run leaves a group where it is."""
        return {
            range.tp: range.end if range.stored is None or self.rerun_of is None else range.stored
            for range in self.ranges
        }

    def epochs_at(self, stored: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The leader epochs under which logs reached up to `stored`, where this record, the group's newest, tells."""
        return {} if self.epochs is None else self.epochs.at(stored, self.committed)

    def epochs_kept(self, stored: Mapping[TopicPartition, int]) -> ReachedEpochs | None:
        """What a record that makes the group stand at `stored` keeps of them."""
        return ReachedEpochs.of(self.epochs_at(stored), stored)

    @property
    def expected(self) -> dict[TopicPartition, int]:
        """What must still be stored for the commit to go through; partitions not named must have nothing."""
        return {range.tp: range.stored for range in self.ranges if range.stored is not None}

    def completed(self, rows: Mapping[TopicPartition, int], files: Mapping[str, int]) -> LoadRecord:
        """The manifest: this plan with the rows written per partition and the files (name → bytes) they lie in."""
        return replace(
            self,
            ranges=tuple(replace(range, rows=rows.get(range.tp, 0)) for range in self.ranges),
            files=tuple(LoadFile(name, size) for name, size in sorted(files.items())),
        )

    def without_files(self) -> LoadRecord:
        """As it goes into the commit log, where thousands of file names would not fit."""
        return replace(self, files=())

    def to_json(self) -> dict[str, Any]:
        return {"version": _VERSION, **asdict(self), "rows": self.rows}

    def to_bytes(self) -> bytes:
        return json.dumps(self.to_json(), indent=1).encode()

    @classmethod
    def from_json(cls, document: Mapping[str, Any], where: str) -> LoadRecord:
        """Raises LoadError naming `where` for anything that `to_json` cannot have written."""
        try:
            if document["version"] != _VERSION:
                raise LoadError(f"{where} was written by another version of this program ({document['version']})")
            fields = {name: document[name] for name in ("load_id", "output", "format", "offsets", "created_ms")}
            ranges = tuple(LoadRange(**range) for range in document["ranges"])
            files = tuple(LoadFile(**file) for file in document["files"])
            fields["rewind"] = _rewind(document.get("rewind"))
            fields["partition_by"] = tuple(map(str, document.get("partition_by", ())))
            fields["topic_ids"] = _texts(document.get("topic_ids", {}))
            fields["reading"] = None if document.get("reading") is None else _texts(document["reading"])
            fields["origin"] = None if document.get("origin") is None else Origin(**document["origin"])
            fields["epochs"] = None if document.get("epochs") is None else ReachedEpochs.from_json(document["epochs"])
            record = cls(**fields, ranges=ranges, rerun_of=document["rerun_of"], files=files)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LoadError(f"{where} is not the record of a load: {error!r}") from error
        if LoadId.parse(record.load_id) is None:
            raise LoadError(f"{where}: '{record.load_id}' is no load id")
        return record

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> LoadRecord:
        try:
            return cls.from_json(json.loads(data), where)
        except ValueError as error:
            raise LoadError(f"{where} is not JSON: {error}") from error


def _texts(document: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in document.items()}


def _rewind(document: Mapping[str, Any] | None) -> Rewind | None:
    if document is None:
        return None
    return Rewind(document["to_load"], tuple(Undone(**undone) for undone in document["undone"]), document["delete"])
