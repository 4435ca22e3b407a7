"""The offsets of the records in Kafka's log, read as a load reads them, and how much of the log is left.

Reads only the column `offset` (read/fetch.py). As in a load, transaction markers, aborted and compacted records are no
rows. A topic that no longer exists is an empty log. Raises ConfigError and the client's PykafkaErrors.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa

from broker.client.admin import Admin, ResourceType
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import UnknownTopic
from broker.client.partition_offsets import EARLIEST, LATEST, Position, Truncation, find_truncations, list_offsets
from broker.errors import BrokerError, ConfigError, UnsupportedVersion
from broker.protocol.topic_partition import TopicPartition
from spark_connector.formats.record_decoder import loaded
from spark_connector.loads.destination import Offsets
from spark_connector.loads.reading import BESIDE, as_loads_read
from spark_connector.loads.record import LoadRecord
from spark_connector.options.option_table import OPTIONS
from spark_connector.options.read_options import Mode, SourceOptions, parse_options
from spark_connector.options.registry_options import ACCESS, URL
from spark_connector.read.fetch import read_at_once, read_range
from spark_connector.read.planning import OffsetRange, keep_offsets
from spark_connector.worker_clients import worker_clients

_SMALL = 1_000  # offsets of a range that is fetched together with others
_TOGETHER = 500  # ranges of one fetch
_POLICY = "cleanup.policy"
_FETCH = ("kafka.", "fetchoffset.", "kafkaconsumer.", "failondataloss")
_ROWS = tuple(option.name.lower() for option in OPTIONS if option.kept == "rows")
_VALUES = tuple(option.name.lower() for option in OPTIONS if option.kept == "values")
_CORRUPT = "columnnameofcorruptrecord"


@dataclass(frozen=True)
class Extent:
    """The offsets that a partition still has: from `earliest` up to `latest`."""

    earliest: int
    latest: int

    def overlap(self, start: int, end: int) -> tuple[int, int]:
        """The part of a range that is still in the log; empty (start = end) when nothing is left."""
        low, high = max(start, self.earliest), min(end, self.latest)
        return (low, high) if low < high else (end, end)


class KafkaLog:
    """The log of one cluster. A context manager; not thread-safe."""

    def __init__(self, bootstrap_servers: str, options: Mapping[str, str]) -> None:
        """`options` are the reader's and win over those in a load's record: `kafka.*`, `filter…`, and the formats of a
        read that drops malformed records. Other options do not decide which offsets have a row, and are ignored."""
        self._given = {name.lower(): value for name, value in options.items()}
        self._bootstrap = bootstrap_servers
        self._options: dict[tuple[str, frozenset[tuple[str, str]]], SourceOptions] = {}
        self._cluster = Cluster(self._parse({}).client, create_topics=False)
        self._extents: dict[TopicPartition, Extent] = {}
        self._compacted: dict[str, bool] = {}
        self._untold: dict[str, str] = {}
        self._ids: dict[str, str | None] = {}
        self._load_ahead: LoadRecord | None = None
        self._ahead: dict[OffsetRange, list[pa.RecordBatch]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._cluster.close()
        worker_clients().close()

    @functools.cached_property
    def cluster_id(self) -> str | None:
        return self._cluster.cluster_id()

    def extent(self, tp: TopicPartition, load: LoadRecord) -> Extent:
        """The extent of the partition that was loaded, asked once. Empty when the load is from another cluster, or when
        the topic was deleted and created again since."""
        topic_id = load.topic_ids.get(tp.topic)
        elsewhere = load.origin is not None and load.origin.differs_from(self.cluster_id)
        if elsewhere or (topic_id is not None and self._id(tp.topic) not in (None, topic_id)):
            return Extent(0, 0)
        if tp not in self._extents:
            of_load = {tp, *(range.tp for range in load.ranges)}
            self._look_up([one for one in of_load if one not in self._extents])
        return self._extents[tp]

    def offsets(self, tp: TopicPartition, start: int, end: int, load: LoadRecord) -> Iterator[Offsets]:
        """The offsets of the rows that the load should have in a range within the extent: ascending arrays."""
        if start < end:
            options = self._options_for(tp.topic, load.reading or {})
            for part in keep_offsets([OffsetRange(tp, start, end)], options.filters):
                ahead = self._ahead_of(load, part, options)
                for batch in read_range(options, part) if ahead is None else ahead:
                    if batch.num_rows:
                        yield batch.column(0).to_numpy()

    def records(self, tp: TopicPartition, start: int, end: int, load: LoadRecord) -> Iterator[pa.RecordBatch]:
        """The records that the load has read in a range within the extent, decoded as then."""
        if start < end:
            kept = self._read_with(load.reading or {})
            wanted = _chosen(kept, *_VALUES, *ACCESS)
            if BESIDE.items() <= kept.items():  # bad records are dead letters, whatever the mode was
                wanted["mode"] = "dropmalformed"
            wanted |= {"kafka.bootstrap.servers": self._bootstrap, "subscribe": "any"}
            options = parse_options(wanted, Mode.BATCH)
            options = replace(options, formats=loaded(options.formats, (tp.topic,)))
            for part in keep_offsets([OffsetRange(tp, start, end)], options.filters):
                yield from read_range(options, part)

    def truncations(self, load: LoadRecord) -> Collection[Truncation]:
        """The truncations of the log below the ends of the load's ranges, as far as its record has leader epochs."""
        reached = {
            range.tp: Position(range.end, load.positions[range.tp].leader_epoch)
            for range in load.ranges
            if range.size and range.tp in load.positions and self.extent(range.tp, load).latest
        }
        return find_truncations(self._cluster, reached).values() if reached else ()

    def is_compacted(self, topic: str) -> bool:
        """Whether records may disappear from the middle of the log. True when the broker does not tell."""
        if topic not in self._compacted:
            self._compacted[topic] = True
            try:
                entry = Admin(self._cluster).describe_configs(ResourceType.TOPIC, topic, [_POLICY]).get(_POLICY)
            except (BrokerError, UnsupportedVersion) as error:
                self._untold[topic] = f"whether topic {topic} is compacted ({_POLICY}) could not be read: {error}"
            else:
                self._compacted[topic] = entry is None or "compact" in (entry.value or "")
        return self._compacted[topic]

    def untold(self, topic: str) -> list[str]:
        """Why the broker does not tell whether the topic is compacted; nothing when it does."""
        return [self._untold[topic]] if self.is_compacted(topic) and topic in self._untold else []

    def _parse(self, reading: Mapping[str, str]) -> SourceOptions:
        return parse_options(_relevant(self._read_with(reading), self._bootstrap), Mode.BATCH)

    def _read_with(self, reading: Mapping[str, str]) -> dict[str, str]:
        """The options of a load, names in lower case. Raises ConfigError for a login to a registry that only the record
        names: it was not given for that one."""
        kept = _lower(reading)
        login = next((name for name in ACCESS if name in self._given), None)
        if login is not None and URL in kept and URL not in self._given:
            raise ConfigError(f"option '{login}' needs '{URL}' beside it: the load's own is {kept[URL]}")
        return as_loads_read(kept | self._given)

    def _options_for(self, topic: str, reading: Mapping[str, str]) -> SourceOptions:
        """With the schemas loaded, because values are decoded to find the records that are dropped."""
        key = topic, frozenset(reading.items())
        if key not in self._options:
            options = self._parse(reading)
            self._options[key] = replace(options, formats=loaded(options.formats, (topic,)))
        return self._options[key]

    def _ahead_of(self, load: LoadRecord, part: OffsetRange, options: SourceOptions) -> list[pa.RecordBatch] | None:
        """The records of a small range, fetched together with those of the next partitions of the load: alone each
        takes a connection. None: it is to be read alone."""
        if load is not self._load_ahead:
            self._load_ahead, self._ahead = load, {}
        if part not in self._ahead and part.size <= _SMALL:
            of_topic = itertools.dropwhile(lambda range: range.tp != part.tp, load.ranges)
            next_ones = [range for range in itertools.islice(of_topic, _TOGETHER) if range.topic == part.tp.topic]
            within = ((one.tp, *self.extent(one.tp, load).overlap(one.start, one.end)) for one in next_ones)
            parts = keep_offsets([OffsetRange(*one) for one in within], options.filters)
            small = [one for one in parts if 0 < one.size <= _SMALL]
            self._ahead = read_at_once(options, small) if part in small else {}
        return self._ahead.pop(part, None)

    def _look_up(self, partitions: Collection[TopicPartition]) -> None:
        """Ask for the extents of all of them at once, in two requests to each leader."""
        try:
            first, last = (list_offsets(self._cluster, dict.fromkeys(partitions, end)) for end in (EARLIEST, LATEST))
        except UnknownTopic:  # one of them
            if len(partitions) == 1:
                self._extents |= dict.fromkeys(partitions, Extent(0, 0))
            else:
                for tp in partitions:
                    self._look_up([tp])
        else:
            self._extents |= {tp: Extent(first[tp].offset, last[tp].offset) for tp in partitions}

    def _id(self, topic: str) -> str | None:
        if topic not in self._ids:
            self._ids[topic] = None
            with contextlib.suppress(UnknownTopic):
                id_ = self._cluster.topic(topic).topic_id
                self._ids[topic] = None if id_ is None else str(id_)
        return self._ids[topic]


def _lower(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def _relevant(given: Mapping[str, str], bootstrap_servers: str) -> dict[str, str]:
    """Those of the options `given` (names in lower case) that decide which offsets have a row."""
    drops = given.get("mode", "").strip().upper() == "DROPMALFORMED"
    decoded = [name for name in ("key", "value") if drops and f"{name}format" in given]
    kept = _chosen(given, *(name for name in (*_VALUES, *ACCESS) if drops and name != _CORRUPT))
    columns = ",".join(["offset", *decoded])
    return {**kept, "kafka.bootstrap.servers": bootstrap_servers, "subscribe": "any", "columns": columns}


def _chosen(given: Mapping[str, str], *others: str) -> dict[str, str]:
    """Those of the options that say how records are fetched and which are read, and `others`."""
    names = {*_ROWS, *others}
    return {name: value for name, value in given.items() if name in names or name.startswith(_FETCH)}
