"""`badRecordsTopic`: the topic to which a task writes the records that it cannot decode, before it drops or nulls them.

Used by record_decoder.py on executors. Key, value and timestamp are kept; headers hold the origin and the reason. The
records are acknowledged before the rows go to Spark, so none is lost. A task that Spark repeats, and a DataFrame that
is read twice, write them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from broker.client.batch_producer import produce_batches
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import UnknownTopic
from broker.client.dead_letter_headers import ERROR, LONGEST_ERROR, ORIGIN
from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from broker.records.columns import HEADERS_TYPE, encode_columns
from spark_connector.formats.record_decoder import BadRecords
from spark_connector.formats.value_decoder import ValueDecoder


class BadRecordsTopic:
    """The topic of one read. Records of one partition go to one partition of it, in order."""

    needs = ("key", "value", "offset", "timestamp")
    is_quiet = False

    def __init__(self, cluster: Cluster, topic: str) -> None:
        """Raises ConfigError when there is no such topic."""
        self._cluster = cluster
        self._topic = topic
        try:
            self._partitions = sorted(cluster.partitions(topic))
        except UnknownTopic as error:
            raise ConfigError(f"Option 'badRecordsTopic': create the topic before the read: {error.message}") from None

    def beside(self, counted: BadRecords | None) -> BadRecords:
        """This topic, and what counts its records, if anything does."""
        return self if counted is None else _Both(counted, self)

    def look(self, name: str, raw: pa.Array, column: pa.Array, decoder: ValueDecoder) -> None:
        """Not asked for."""

    def write(self, tp: TopicPartition, records: pa.RecordBatch, reasons: Sequence[str]) -> None:
        """Append records of `tp` (columns key, value, offset, timestamp) and wait. Raises the client's errors."""
        headers = [
            _headers(tp, offset, timestamp, why)
            for offset, timestamp, why in zip(
                records["offset"].to_pylist(), _millis(records).to_pylist(), reasons, strict=True
            )
        ]
        batches = encode_columns(
            records["key"], records["value"], _millis(records), pa.array(headers, type=HEADERS_TYPE)
        )
        target = self._partitions[tp.partition % len(self._partitions)]
        produce_batches(self._cluster, TopicPartition(self._topic, target), batches, acks=-1)


class _Both:
    """The topic of bad records of a load, which counts them as well."""

    def __init__(self, counted: BadRecords, topic: BadRecordsTopic) -> None:
        self._counted, self._topic = counted, topic
        self.needs = tuple(dict.fromkeys((*topic.needs, *counted.needs)))
        self.is_quiet = topic.is_quiet

    def look(self, name: str, raw: pa.Array, column: pa.Array, decoder: ValueDecoder) -> None:
        """As the collector that counts."""
        self._counted.look(name, raw, column, decoder)

    def write(self, tp: TopicPartition, records: pa.RecordBatch, reasons: Sequence[str]) -> None:
        """Raises as BadRecordsTopic."""
        self._topic.write(tp, records, reasons)
        self._counted.write(tp, records, reasons)


def _millis(records: pa.RecordBatch) -> pa.Array:
    return records["timestamp"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())


def _headers(tp: TopicPartition, offset: int, timestamp: int, why: str) -> list[Mapping[str, object]]:
    notes = {
        f"{ORIGIN}topic": tp.topic,
        f"{ORIGIN}partition": str(tp.partition),
        f"{ORIGIN}offset": str(offset),
        f"{ORIGIN}timestamp": str(timestamp),
        ERROR: why[:LONGEST_ERROR],
    }
    return [{"key": name, "value": text.encode("utf-8", "replace")} for name, text in notes.items()]
