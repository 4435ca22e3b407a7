"""What others than we find in topics and tables: run on a host, by `Host.call`.

Topics are read by confluent-kafka, Delta tables by deltalake, Iceberg tables by pyiceberg. All give the numbers that
records and rows hold as values, as `Numbers` in JSON.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError
from confluent_kafka import TopicPartition as Assigned

from broker.client.cluster import Cluster
from broker.client.partition_offsets import EARLIEST, EARLIEST_LOCAL, list_offsets
from broker.protocol.topic_partition import TopicPartition

_TIMEOUT_S = 60

Json = dict[str, list[list[int]]]


@dataclass(frozen=True)
class Numbers:
    """Which numbers were found, and how many of them once too often."""

    found: frozenset[int]
    doubled: tuple[int, ...] = ()

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Numbers:
        counts = Counter(numbers)
        return cls(frozenset(counts), tuple(sorted(number for number, times in counts.items() if times > 1)))

    def to_json(self) -> Json:
        """Runs of numbers, [first, last]: there are many, with few gaps."""
        return {"found": _runs(self.found), "doubled": _runs(self.doubled)}

    @classmethod
    def of_json(cls, told: Json) -> Numbers:
        found, doubled = ([n for first, last in told[name] for n in range(first, last + 1)] for name in told)
        return cls(frozenset(found), tuple(doubled))

    def missing(self, acknowledged: Iterable[int]) -> list[int]:
        return sorted(set(acknowledged) - self.found)


def _runs(numbers: Iterable[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return runs


def in_topic(bootstrap: str, topic: str) -> tuple[Json, Json, int]:
    """Of committed records, up to the end of each partition; of those that are archived and on no disk any more; and
    how many these should be."""
    with Cluster(bootstrap) as cluster:
        partitions = [TopicPartition(topic, number) for number in cluster.topic(topic).partitions]
        starts, local = (
            list_offsets(cluster, dict.fromkeys(partitions, which)) for which in (EARLIEST, EARLIEST_LOCAL)
        )
    records = [*_read(bootstrap, topic)]
    archive = [number for at, offset, number in records if offset < local[TopicPartition(topic, at)].offset]
    archived = sum(local[tp].offset - starts[tp].offset for tp in partitions)
    return Numbers.of(number for *_, number in records).to_json(), Numbers.of(archive).to_json(), archived


def written(
    bootstrap: str, copy: str, delta: dict[str, str], storage: dict[str, str], iceberg: str, catalog: dict[str, str]
) -> dict[str, Json]:
    """All at once, for a new Python takes seconds: `exactly_once` (committed records of the topic `copy`), each of the
    Delta tables by its job, and `iceberg`."""
    from deltalake import DeltaTable
    from pyiceberg.catalog import load_catalog

    found = {"exactly_once": Numbers.of(number for *_, number in _read(bootstrap, copy)).to_json()}
    for job, url in delta.items():
        found[job] = _values(DeltaTable(url, storage_options=storage).to_pyarrow_table(columns=["value"]))
    table = load_catalog("lake", **catalog).load_table(iceberg)
    return found | {"iceberg": _values(table.scan(selected_fields=("value",)).to_arrow())}


def make_namespace(catalog: dict[str, str]) -> None:
    from pyiceberg.catalog import load_catalog

    load_catalog("lake", **catalog).create_namespace("lake")


def _values(table: Any) -> Json:
    return Numbers.of(int(value) for value in table.column("value").to_pylist()).to_json()


def _read(bootstrap: str, topic: str) -> Iterator[tuple[int, int, int]]:
    """Partition, offset and number of each committed record."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "counts", "log_level": 0}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": True})
    partitions = consumer.list_topics(topic, _TIMEOUT_S).topics[topic].partitions
    consumer.assign([Assigned(topic, number, OFFSET_BEGINNING) for number in partitions])
    at_end: set[int] = set()
    deadline = time.monotonic() + _TIMEOUT_S
    while len(at_end) < len(partitions):
        assert time.monotonic() < deadline, f"{topic}: only {at_end} of {set(partitions)} have been read to their ends"
        for message in consumer.consume(1_000, 1.0):
            error, value, at, offset = message.error(), message.value(), message.partition(), message.offset()
            if error is not None and error.code() == KafkaError._PARTITION_EOF and at is not None:
                at_end.add(at)
            elif error is None and value is not None and at is not None and offset is not None:
                yield at, offset, int(value)
    consumer.close()
