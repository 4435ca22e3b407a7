"""A load as a value: its id, the offsets it covers, and where its data is. Pure.

A record is written as JSON three times: as the intent (before Spark runs), as the manifest (the data is complete; with
files) and as the commit (in the commit log; without files). plan.py makes it.

A load id is `<group>-<number>-<token>`. Loads of one group are numbered from 1. The token distinguishes two attempts at
the same number, of which only one can be committed, so an id names one attempt of one group for ever.

Whoever may write beside a table may write a record, so a record is read as if a stranger had typed it: `from_json`
checks every id, name, number and URL. Ids and names become paths; a URL is only ever shown and compared, never opened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from broker.client.partition_offsets import Position
from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.storage.url_secrets import text_without_secrets
from spark_connector.loads.bad_record_options import DeadLetterPlace
from spark_connector.loads.reading import check_kept
from spark_connector.loads.upsert import Upsert
from spark_connector.loads.way_out import way_out
from spark_connector.offset_store.base import Offsets
from spark_connector.outages import heals_by_waiting, one_line
from spark_connector.stored_json import flag, mapping, parsed, partition, sequence, text, texts, topic, whole, words

_VERSION, _OF_LATER = 2, ("columns", "dead_letters", "about", "upsert", "fields")
"""A record has version 2 if one of these, or a count of bad records, is set: a reader of version 1 may ignore them."""
_LEFT_OUT = ("about", "upsert", "fields", "partitions", "pattern")  # while they are unset: readers may not know them
_LOAD_ID = re.compile(  # ~: of the groups of dead letters
    r"(?P<group>[A-Za-z0-9._~-]{1,240})-(?P<sequence>[0-9]{6,18})-(?P<token>[0-9a-f]{8})"
)
_KIND = re.compile(r"[a-z]{0,20}")


class LoadError(PykafkaError):
    """A load cannot go on. What is committed and what is staged is unchanged."""


class LoadInterrupted(LoadError):
    """A file system, a server or a task of Spark failed; the same load may succeed later."""

    retriable = True


class UnfitRow(LoadError):
    """The table cannot hold the row of this number, of those that were to be written together."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(f"a value does not fit into the table: {why}")
        self.row = row
        self.why = why


class TableGone(LoadError):
    """The table of the loads is no longer there."""

    def __init__(self, shown: str) -> None:
        super().__init__(f"the table {shown} no longer exists")


class LoadTooLarge(LoadError):
    """The commit log cannot store a load of so many partitions. Nothing of the load is kept."""


def failed_load(text: str, failure: BaseException | str) -> LoadError:
    """LoadInterrupted if the failure heals by waiting (spark_connector/outages.py), else LoadError. `text` may quote a
    library, which may quote URLs with their secrets: these are hidden. What a person can do is put behind it."""
    told = text_without_secrets(one_line(text))
    return LoadInterrupted(told) if heals_by_waiting(failure) else LoadError(f"{told}{way_out(told)}")


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

    @classmethod
    def of(cls, text: str) -> LoadId:
        """Raises LoadError when the text is no load id."""
        parsed = cls.parse(text)
        if parsed is None:
            raise LoadError(f"'{text:.300}' is no load id")
        return parsed


@dataclass(frozen=True)
class LoadRange:
    """Offsets `start` up to, not including, `end` of one partition.

    The commit fails unless the stored offset of the partition is still `stored` (None: no offset). `rows` is the number
    of rows written, None before Spark has run; it is lower than the number of offsets where compaction or transaction
    markers left gaps. `bad` is the number of records that are in the table of dead letters instead, None in a load
    without one.
    """

    topic: str
    partition: int
    start: int
    end: int
    stored: int | None
    rows: int | None = None
    bad: int | None = None

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        return self.end - self.start

    @classmethod
    def from_json(cls, document: object) -> Self:
        """Raises ValueError, KeyError."""
        found = mapping(document, "a range")
        start, stored = whole(found["start"], "start"), found["stored"]
        return cls(
            topic(found["topic"]),
            partition(found["partition"]),
            start,
            whole(found["end"], "end", start),
            None if stored is None else whole(stored, "stored"),
            *(None if found.get(name) is None else whole(found[name], name) for name in ("rows", "bad")),
        )


@dataclass(frozen=True)
class Origin:
    """The cluster of a load: its id (None from brokers that have none) and the bootstrap servers that were used."""

    cluster_id: str | None
    bootstrap_servers: str

    def differs_from(self, cluster_id: str | None) -> bool:
        """Whether both ids are known and differ."""
        return None not in (self.cluster_id, cluster_id) and self.cluster_id != cluster_id

    def __str__(self) -> str:
        return f"cluster {self.cluster_id} ({self.bootstrap_servers})"

    @classmethod
    def from_json(cls, document: object) -> Self:
        """Raises ValueError, KeyError."""
        found = mapping(document, "origin")
        cluster_id = found["cluster_id"]
        return cls(
            None if cluster_id is None else text(cluster_id, "cluster_id"),
            words(found["bootstrap_servers"], "bootstrap_servers"),
        )


@dataclass(frozen=True)
class LoadFile:
    """A data file of a load, by name below the load's directory; size in bytes."""

    name: str
    size: int

    @classmethod
    def from_json(cls, document: object) -> Self:
        """Raises ValueError, KeyError."""
        found = mapping(document, "a file")
        return cls(_below(found["name"], "the name of a file"), whole(found["size"], "size"))


@dataclass(frozen=True)
class UndoneLoad:
    """A load that a rewind takes back, and the URL of the directory that it went to."""

    load_id: str
    output: str

    @classmethod
    def from_json(cls, document: object) -> Self:
        """Raises ValueError, KeyError."""
        found = mapping(document, "an undone load")
        return cls(_id(found["load_id"], "load_id"), words(found["output"], "output"))


BEGINNING = "the beginning"
"""What a rewind goes back to when no load stands before it."""


@dataclass(frozen=True)
class Rewind:
    """Makes an entry of the commit log a rewind: the load that the group goes back to, and the loads that are undone.

    Directories of undone loads are moved to `_rewound/<load id of the rewind>/` of their output or, with `delete`,
    deleted.
    """

    to_load: str
    undone: tuple[UndoneLoad, ...]
    delete: bool

    @classmethod
    def from_json(cls, document: object, group: str) -> Self:
        """That of an entry in the log of `group`, which takes back loads of this group only; an entry of dead letters
        those of the group whose they are. Raises ValueError, KeyError."""
        found = mapping(document, "rewind")
        to_load, delete = found["to_load"], flag(found["delete"], "delete")
        undone = tuple(map(UndoneLoad.from_json, sequence(found["undone"], "undone")))
        of = group.partition("~")[0]
        if strangers := [one.load_id for one in undone if LoadId.of(one.load_id).group != of]:
            raise ValueError(f"{strangers[0]} is no load of group {of}")
        return cls(to_load if to_load == BEGINNING else _id(to_load, "to_load"), undone, delete)


@dataclass(frozen=True)
class LoadRecord:
    """One load. `output` is the URL of the directory, or the database and table; `offsets` is the kind of commit log;
    `partition_by` are the columns and transforms that the output is partitioned by, and `columns` what its columns are
    made of, in the spelling of grammar.py; without columns it has those of the read.

    `topic_ids` has the id (KIP-516) of every topic that the group has loaded so far, where the brokers give ids: with
    them the next load notices that a topic was deleted and created again. `reading` are the reader's options that
    decide which records are loaded and what they become (request.py), `origin` is the cluster of the records; None
    where they are not known.

    `upsert` is None for a load that appends. `fields` are the decoded fields that the table got, and their types, when
    the load resolved its schemas (fields.py); None where nothing is decoded, and in older records. A registry's or a
    file's schema may be another one later.

    `partitions` says how many each topic had that the group has loaded so far, or looked for records in, and `pattern`
    is the `subscribePattern` that found them: so a later load knows a partition or topic that was not there yet. Both
    are None in older records.

    `positions` are the group's offsets after this load with the leader epochs of the records just before them; with
    them the next load notices a truncated log. A log that loses its end and grows again looks like one that only grew.
    But a new leader starts a new epoch at its log end. So when a broker is asked where the old epoch ended
    (OffsetForLeaderEpoch, KIP-320), it answers with an offset below the group's exactly when the log was truncated
    below it. Every record has the positions of all partitions of the group whose epoch is known (brokers from Kafka 2.1
    on), because a partition without new records may be truncated too.

    `dead_letters` are the tables that hold the bad records of this load or, of a rewind, those of the loads that it
    takes back (dead_letters.py). `about` makes it an entry in the commit log of such a table: the load whose bad
    records it adds, or the rewind for which it removes some.
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
    columns: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    reading: Mapping[str, str] | None = None
    origin: Origin | None = None
    positions: Mapping[TopicPartition, Position] = field(default_factory=dict)
    dead_letters: tuple[str, ...] = ()
    about: str | None = None
    upsert: Upsert | None = None
    fields: Mapping[str, str] | None = None
    partitions: Mapping[str, int] | None = None
    pattern: str | None = None

    @classmethod
    def unknown(cls, load_id: str, output: str, offsets: str) -> LoadRecord:
        """A load of which only the id is known."""
        return cls(load_id, output, "", offsets, -1, ())

    @property
    def id(self) -> LoadId:
        return LoadId.of(self.load_id)

    def refuse_unless(self, group: str, sequence: int, where: str) -> None:
        """Raise LoadError for a record that stands where the log of `group` has its entry of this number."""
        if (self.id.group, self.id.sequence) != (group, sequence):
            raise LoadError(f"{where} holds the record of {self.load_id}")

    @property
    def is_refusal(self) -> bool:
        """Whether it takes back a load that never was committed, by taking its number: it changes no row."""
        undone = self.rewind.undone if self.rewind else ()
        return bool(undone) and all(LoadId.of(one.load_id).sequence == self.id.sequence for one in undone)

    @property
    def rows(self) -> int:
        return sum(range.rows or 0 for range in self.ranges)

    @property
    def bad_rows(self) -> int | None:
        """The records in the table of dead letters; None in a load without one."""
        counts = [range.bad for range in self.ranges if range.bad is not None]
        return sum(counts) if counts else None

    @property
    def committed(self) -> dict[TopicPartition, int]:
        """The offsets that the commit stores: the ends of the ranges. A re-run leaves the group where it is."""
        return {
            range.tp: range.end if range.stored is None or self.rerun_of is None else range.stored
            for range in self.ranges
        }

    def lacked(self, tp: TopicPartition, topic_id: str | None, pattern: str | None) -> bool:
        """Whether a partition of this topic id was surely not there when this load looked, so that all its records are
        newer. `pattern`: what finds it now; the same one would have found its topic."""
        if self.partitions is None or self.topic_ids.get(tp.topic, topic_id) != topic_id:
            return False
        if tp.topic in self.partitions:
            return tp.partition >= self.partitions[tp.topic]
        return pattern is not None and pattern == self.pattern

    def positions_at(self, stored: Offsets) -> dict[TopicPartition, Position]:
        """The positions that are valid when the group's offsets are `stored`: another program may have changed some."""
        return {tp: position for tp, position in self.positions.items() if stored.get(tp) == position.offset}

    @property
    def expected(self) -> dict[TopicPartition, int]:
        """The stored offsets that the commit requires; partitions not named must have none."""
        return {range.tp: range.stored for range in self.ranges if range.stored is not None}

    def completed(self, rows: Mapping[TopicPartition, int], files: Mapping[str, int]) -> LoadRecord:
        """The manifest: this plan with the rows written per partition, and the files (name → bytes)."""
        return replace(
            self,
            ranges=tuple(replace(range, rows=rows.get(range.tp, 0)) for range in self.ranges),
            files=tuple(LoadFile(name, size) for name, size in sorted(files.items())),
        )

    def with_bad_rows(self, bad: Mapping[TopicPartition, int]) -> LoadRecord:
        """This load with the number of bad records of each range, 0 where `bad` does not name it."""
        return replace(self, ranges=tuple(replace(range, bad=bad.get(range.tp, 0)) for range in self.ranges))

    def without_files(self) -> LoadRecord:
        """The record for the commit log, where thousands of file names would not fit."""
        return replace(self, files=())

    def to_json(self) -> dict[str, Any]:
        positions: dict[str, dict[str, Position]] = {}
        for tp, position in sorted(self.positions.items()):
            positions.setdefault(tp.topic, {})[str(tp.partition)] = position
        plain = asdict(replace(self, positions={}))
        later = any(plain[name] for name in _OF_LATER) or self.bad_rows is not None
        for name in _LEFT_OUT:
            if plain[name] is None:
                del plain[name]
        for range in plain["ranges"]:
            if range["bad"] is None:
                del range["bad"]
        bad = {} if self.bad_rows is None else {"bad_rows": self.bad_rows}
        return {"version": _VERSION if later else 1, **plain, "rows": self.rows, **bad, "positions": positions}

    def to_bytes(self) -> bytes:
        return json.dumps(self.to_json(), indent=1).encode()

    @classmethod
    def from_json(cls, document: Mapping[str, Any], where: str) -> LoadRecord:
        """Raises LoadError, naming `where`, for a document that `to_json` cannot have written."""
        try:
            version = whole(mapping(document, "the record")["version"], "version", 1)
            if version > _VERSION:
                raise LoadError(
                    f"it was written by a newer pykafka (record version {version}, this one reads up to {_VERSION}): "
                    "upgrade"
                )
            return cls(**_fields(document))
        except LoadError as error:
            raise LoadError(f"{where}: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LoadError(f"{where} is not the record of a load: {error!r}") from error

    @classmethod
    def from_bytes(cls, data: bytes | str, where: str) -> LoadRecord:
        try:
            document = parsed(data)
        except ValueError as error:
            raise LoadError(f"{where} is not JSON: {error}") from error
        return cls.from_json(document, where)


def _fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record, each checked. Raises ValueError, KeyError, LoadError."""
    load_id = _id(document["load_id"], "load_id")
    given: dict[str, Any] = {
        "load_id": load_id,
        "output": words(document["output"], "output"),  # the name of a directory may have any character
        "format": _kind(document["format"], "format"),
        "offsets": _kind(document["offsets"], "offsets"),
        "created_ms": whole(document["created_ms"], "created_ms", -1),
        "ranges": tuple(map(LoadRange.from_json, sequence(document["ranges"], "ranges"))),
        "files": tuple(map(LoadFile.from_json, sequence(document["files"], "files"))),
        "topic_ids": {
            topic(name): text(id_, "a topic's id")
            for name, id_ in mapping(document.get("topic_ids", {}), "topic_ids").items()
        },
        "positions": _positions(document.get("positions", {})),
        **{name: texts(document.get(name, []), name) for name in ("columns", "partition_by", "dead_letters")},
    }
    for name in ("rerun_of", "about"):
        if document.get(name) is not None:
            given[name] = _id(document[name], name)
    parsers: dict[str, Any] = {
        "reading": check_kept,
        "origin": Origin.from_json,
        "upsert": Upsert.from_json,
        "rewind": lambda one: Rewind.from_json(one, LoadId.of(load_id).group),
    }
    for name, parse in parsers.items():
        if document.get(name) is not None:
            given[name] = parse(document[name])
    if document.get("fields") is not None:
        found = mapping(document["fields"], "fields")
        given["fields"] = {path: text(kind, "the type of a field") for path, kind in found.items()}
    if document.get("partitions") is not None:
        found = mapping(document["partitions"], "partitions")
        given["partitions"] = {topic(name): whole(count, "partitions") for name, count in found.items()}
    if document.get("pattern") is not None:
        given["pattern"] = text(document["pattern"], "pattern")
    for place in map(DeadLetterPlace.parse, given["dead_letters"]):
        if not place.is_table:
            raise ValueError(f"dead_letters: {place} is no table")
    return given


def _positions(document: object) -> dict[TopicPartition, Position]:
    return {
        TopicPartition(topic(name), partition(index)): Position(whole(offset, "offset"), whole(epoch, "epoch", -1))
        for name, found in mapping(document, "positions").items()
        for index, (offset, epoch) in mapping(found, "positions").items()
    }


def _id(value: object, name: str) -> str:
    return str(LoadId.of(text(value, name)))


def _kind(value: object, name: str) -> str:
    found = text(value, name)
    if not _KIND.fullmatch(found):
        raise ValueError(f"{name}: {found!r:.60} is no {name} of a load")
    return found


def _below(value: object, name: str) -> str:
    """A path below a directory."""
    found = text(value, name)
    if not {"", ".", ".."}.isdisjoint(found.split("/")):
        raise ValueError(f"{name}: {found!r:.60} leaves the directory of its load")
    return found


@dataclass(frozen=True)
class LoadResult:
    """The result of a load. `load_id` and `path` are None when there was nothing new.

    `ranges` have offsets and rows per partition. `recovered` are earlier loads that were killed and that this call has
    finished; their rows are not in `rows`. `bad_rows`: how many records are in the table `dead_letters` instead; None
    without one. `malformed`: how many of the `read` records could not be decoded, wherever they are now; None where
    nothing is decoded, or where it is not known. `absent_fields`: fields of the schema that no record had.
    """

    group: str
    output: str
    format: str
    load_id: str | None
    path: str | None
    rows: int
    ranges: tuple[LoadRange, ...]
    recovered: tuple[str, ...] = ()
    bad_rows: int | None = None
    dead_letters: str | None = None
    read: int | None = None
    malformed: int | None = None
    absent_fields: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
