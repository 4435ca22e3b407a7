"""What the jobs of the kill matrix have left for readers, as rows for record_audit.py; read without Spark.

Parquet through `broker.storage.storage` (local disk or HDFS) and pyarrow; topics by confluent-kafka with
`isolation.level=read_committed`. Used by kill_round.py.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet
from confluent_kafka import Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from broker.storage.storage import Storage
from tests.support.record_audit import Copy, Row
from tests.support.waiting import eventually

_COLUMNS = ["topic", "partition", "offset", "key", "value"]
_TIMEOUT = 30.0  # seconds; for one answer of the broker
_STABLE_TIMEOUT = 90.0


def rows_of_read(output: Storage) -> list[Row]:
    """A directory that Spark has finished writing (it says so by `_SUCCESS`)."""
    names = output.names("")
    assert "_SUCCESS" in names, f"{output.url} is not finished: {names}"
    return [row for name in names if name.endswith(".parquet") for row in _rows(output, name)]


def rows_of_load(output: Storage) -> list[Row]:
    """The published directories of all loads."""
    return [
        row
        for directory in output.names("")
        if directory.startswith("load=")
        for name in output.names(directory)
        if name.endswith(".parquet")
        for row in _rows(output, f"{directory}/{name}")
    ]


def rows_of_stream(output: Storage) -> list[Row]:
    """The files that the log of Spark's file sink names; others lie there after a crash and count for nobody.

    A log entry is a file named by its batch; `N.compact` repeats all up to N.
    """
    entries = [match for name in output.names("_spark_metadata") if (match := re.fullmatch(r"(\d+)(\.compact)?", name))]
    compacted = max((int(entry[1]) for entry in entries if entry[2]), default=-1)
    counting = [entry for entry in entries if int(entry[1]) > compacted or (int(entry[1]) == compacted and entry[2])]
    names = []
    for entry in counting:
        version, *lines = output.read(f"_spark_metadata/{entry[0]}").decode().splitlines()
        assert version == "v1", version
        for line in lines:
            status = json.loads(line)
            assert status["action"] == "add", status
            names.append(status["path"].rpartition("/")[2])
    return [row for name in names for row in _rows(output, name)]


def _rows(output: Storage, path: str) -> Iterator[Row]:
    table = pyarrow.parquet.read_table(pa.BufferReader(output.read(path)), columns=_COLUMNS, partitioning=None)
    return map(Row, *(column.to_pylist() for column in table.columns))


def committed_copies(bootstrap: str, topic: str, partitions: int) -> list[Copy]:
    """Every record that a read_committed consumer is given, by partition and offset, up to the last stable offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"audit-{topic}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    copies: list[Copy] = []
    try:
        for partition in range(partitions):
            consumer.assign([TopicPartition(topic, partition, 0)])
            copies += _up_to_the_end(consumer, partition)
    finally:
        consumer.close()
    return copies


def _up_to_the_end(consumer: Consumer, partition: int) -> Iterator[Copy]:
    deadline = time.monotonic() + _TIMEOUT
    while time.monotonic() < deadline:
        for message in consumer.consume(1000, timeout=0.1):  # it waits for so many, or so long
            error, offset = message.error(), message.offset()
            if error is None:
                assert offset is not None
                yield Copy(partition, offset, message.key(), message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            else:  # a broker that has just come back is no reason to stop
                assert error.retriable() or error.code() in _OUTAGE, str(error)
    raise AssertionError(f"partition {partition} was not read to its end in {_TIMEOUT:g} s")


_OUTAGE = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE}


def wait_until_stable(bootstrap: str, topic: str, partitions: int) -> str | None:
    """Wait until no transaction is open in the topic; else say where one still is after a minute and a half."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    places = [TopicPartition(topic, partition) for partition in range(partitions)]

    def ends(level: IsolationLevel) -> dict[int, int]:
        answers = admin.list_offsets(
            dict.fromkeys(places, OffsetSpec.latest()), isolation_level=level, request_timeout=_TIMEOUT
        )
        return {place.partition: answer.result(_TIMEOUT).offset for place, answer in answers.items()}

    try:
        eventually(
            lambda: ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED),
            timeout=_STABLE_TIMEOUT,
            interval=0.2,
        )
    except AssertionError:
        stable, all_of_it = ends(IsolationLevel.READ_COMMITTED), ends(IsolationLevel.READ_UNCOMMITTED)
        return f"a transaction is left open in {topic}: stable up to {stable}, ends {all_of_it}"
    return None
