"""Rows to record batches on the wire, column by column: the hot path of a writing task.

attempt.py passes the Arrow batches of a task. Some megabytes of rows are collected, encoded into the batches of their
partitions as they were received (rows of a partition keep their order), and sent while the next rows are collected.
While rows are encoded, memory holds them twice: as received, and as record batches. Only rows of several topics are
sorted before.

A row's partition follows Spark's rules: the column `partition` if it is not null; else Kafka's murmur2 of the key. Rows
without a key stay with one partition for about a batch of bytes and then move on (KIP-480's sticky partitioner).

Raises ConnectorError and ConfigError for data that cannot be written, UnknownTopic, and the errors of `BatchProducer`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.client.batch_producer import BatchProducer
from broker.client.broker_connection import BrokerConnection
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import Node
from broker.client.transaction_requests import TransactionHandle, add_partitions
from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from broker.records.columns import RecordColumns, encode_partitions, partitions_of_keys
from broker.records.compression import Codec
from spark_connector.errors import ConnectorError
from spark_connector.options.write_options import WriteOptions
from spark_connector.write.input_columns import refuse_too_large, to_rows

if TYPE_CHECKING:
    from spark_connector.formats.record_encoder import RecordEncoder

_COLLECTED_BYTES: Final = 16 << 20
"""The most rows encoded at a time: enough for batches of a good size in topics with many partitions."""

_BATCHES_AT_ONCE: Final = 4
"""So many batches of each partition are enough. The less is collected, the more of it is in the processor's caches, and
the sooner the brokers have work."""

_MOST_AT_ONCE: Final = 256 << 20
"""Bytes of a batch that are encoded at a time. The rest is for what they become, because a column holds 2 GiB."""
_MOST_COLLECTED: Final = (1 << 31) - 1

Int32s = npt.NDArray[np.int32]


class Written(NamedTuple):
    """How many records a task wrote, and to which partitions, sorted."""

    rows: int
    partitions: tuple[TopicPartition, ...]


class RowsWriter:
    """Writes the Arrow batches of one task. Not thread-safe; unusable after an error."""

    def __init__(
        self,
        cluster: Cluster,
        options: WriteOptions,
        *,
        transaction: TransactionHandle | None = None,
        idle: MutableMapping[Node, BrokerConnection] | None = None,
        partition: int = 0,
    ) -> None:
        """`transaction`: the transaction to write in, if any. `idle`: see BatchProducer. `partition`: of the task, for
        messages."""
        self._cluster = cluster
        self._options = options
        self._transaction = transaction
        self._sender = BatchProducer(cluster, transaction=transaction, idle=idle)
        self._codec = Codec.from_name(options.client.compression_type)
        self._encoder: RecordEncoder | None = None
        if options.formats.columns:
            from spark_connector.formats.record_encoder import RecordEncoder

            self._encoder = RecordEncoder(options.formats, options.topic, partition)
        self._bad: list[pa.RecordBatch] = []
        """Rows for `badRowsTopic`, which are sent with the collected."""
        self._collected: list[pa.RecordBatch] = []
        self._collected_bytes = 0
        self._sticky: dict[tuple[str, int], StickyRuns] = {}
        self._partitions: set[TopicPartition] = set()
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Collect the rows of `batch`; send when there are enough."""
        if batch.nbytes > _MOST_AT_ONCE and batch.num_rows > 1:
            self._write_halves(batch)
        elif self._encoder is None:
            self._collect(self._collected, batch, self._options)
        elif batch.num_rows:
            self._encode(self._encoder, batch)
        if self._collected_bytes >= self._enough_bytes():
            self._send_collected()

    def _enough_bytes(self) -> int:
        """Bytes of rows to encode together; the number of partitions is known when all go to one topic."""
        topic = self._options.topic
        if topic is None:
            return _COLLECTED_BYTES
        partitions = len(self._cluster.topic(topic).partitions)
        return min(_COLLECTED_BYTES, _BATCHES_AT_ONCE * partitions * self._options.client.batch_size)

    def _encode(self, encoder: RecordEncoder, batch: pa.RecordBatch) -> None:
        try:
            rows, bad = encoder.encode(batch)
        except (OverflowError, pa.ArrowInvalid, pa.ArrowCapacityError) as error:  # a column holds 2 GiB
            if batch.num_rows > 1:
                self._write_halves(batch)
                return
            raise ConnectorError(
                "PYKAFKA_SINK_MALFORMED_ROW", f"a row of {batch.nbytes:,} bytes cannot be encoded: {error}"
            ) from error
        self._collect(self._collected, rows, self._options)
        if bad is not None:
            options = replace(self._options, topic=self._options.formats.bad_rows_topic, include_headers=None)
            self._collect(self._bad, bad, options)

    def _write_halves(self, batch: pa.RecordBatch) -> None:
        half = batch.num_rows // 2
        self.write(batch.slice(0, half))
        self.write(batch.slice(half))

    def _collect(self, collected: list[pa.RecordBatch], batch: pa.RecordBatch, options: WriteOptions) -> None:
        if batch.num_rows:
            rows = to_rows(batch, options)
            refuse_too_large(rows, options.client.max_request_size)
            if self._collected_bytes + rows.nbytes > _MOST_COLLECTED:
                self._send_collected()
            collected.append(rows)
            self._collected_bytes += rows.nbytes

    def finish(self) -> Written:
        """Send the rest and wait until every record is acknowledged."""
        self._send_collected()
        self._sender.flush()
        return Written(self._rows, tuple(sorted(self._partitions)))

    def close(self) -> None:
        """May be called again."""
        self._sender.close()

    def _send_collected(self) -> None:
        if not self._collected_bytes:
            return
        parts: list[tuple[str, list[pa.RecordBatch], Int32s, int]] = []
        for collected, topic in (
            (self._collected, self._options.topic),
            (self._bad, self._options.formats.bad_rows_topic),
        ):
            for name, rows in _by_topic(collected, topic):
                parts.append((name, rows, *self._partitions_of(name, pa.Table.from_batches(rows))))
                self._rows += len(parts[-1][2])
            collected.clear()
        self._collected_bytes = 0
        new = {TopicPartition(name, one) for name, _, of_rows, _ in parts for one in _present(of_rows)}
        new -= self._partitions
        if new and self._transaction is not None:
            add_partitions(self._cluster, self._transaction, new)
        self._partitions |= new
        batches: dict[TopicPartition, list[bytes]] = {}
        while parts:
            name, rows, of_rows, count = parts.pop()
            encoded = enumerate(self._encoded(name, rows, of_rows, count))
            batches |= {TopicPartition(name, partition): made for partition, made in encoded if made}
            del rows  # frees memory: the batches hold the data
        # Round-robin: a request takes one batch per partition, so this order fills it with one of each.
        for turn in itertools.zip_longest(*batches.values()):
            for tp, batch in zip(batches, turn, strict=True):
                if batch is not None:
                    self._sender.send(tp, batch)

    def _partitions_of(self, topic: str, rows: pa.Table) -> tuple[Int32s, int]:
        """The partition of each row, and how many the topic has."""
        settings = self._options.client
        count = self._partition_count(topic, rows)
        sticky = self._sticky.get((topic, count))
        if sticky is None:
            sticky = self._sticky[topic, count] = StickyRuns(count)
        rows_per_run = max(1, settings.batch_size * rows.num_rows // max(1, rows.nbytes))
        partitions = partitions_of_rows(
            rows,
            topic,
            count,
            sticky,
            rows_per_run=1 if settings.partitioner == "roundrobin" else rows_per_run,
            by_key=settings.partitioner == "murmur2_random",
        )
        return partitions, count

    def _partition_count(self, topic: str, rows: pa.Table) -> int:
        asked = rows["partition"].drop_null().to_numpy() if "partition" in rows.schema.names else np.zeros(0, np.int32)
        largest = int(asked.max(initial=0))
        # The topic may have grown since this process looked it up.
        return len(self._cluster.topic(topic, lambda found: len(found.partitions) > largest).partitions)

    def _encoded(self, topic: str, rows: list[pa.RecordBatch], of_rows: Int32s, count: int) -> list[list[bytes]]:
        """The batches of each partition of the topic."""
        has_key, has_headers = (name in rows[0].schema.names for name in ("key", "headers"))
        stamps = [self._sender.stamp(TopicPartition(topic, partition)) for partition in range(count)]
        return encode_partitions(
            [
                RecordColumns(
                    part["key"] if has_key else None,
                    part["value"],
                    part["timestamp"],
                    part["headers"] if has_headers else None,
                )
                for part in rows
            ],
            of_rows,
            codec=self._codec,
            max_bytes=min(self._options.client.batch_size, self._sender.largest_batch(topic)),
            producer_id=stamps[0].producer_id,
            producer_epoch=stamps[0].producer_epoch,
            base_sequences=[stamp.base_sequence for stamp in stamps],
            transactional=self._transaction is not None,
        )


def _by_topic(collected: list[pa.RecordBatch], topic: str | None) -> Iterator[tuple[str, list[pa.RecordBatch]]]:
    """The rows of each topic in order: all are of `topic`, or each has its own in a column."""
    if not collected:
        return
    if topic is not None:
        yield topic, [*collected]
        return
    rows = pa.Table.from_batches(collected).combine_chunks()
    topics = rows["topic"].combine_chunks().dictionary_encode()
    if isinstance(topics, pa.ChunkedArray):
        topics = topics.chunk(0)
    codes = topics.indices.to_numpy()
    ends = np.cumsum(np.bincount(codes))
    taken = rows.drop_columns(["topic"]).take(pa.array(np.argsort(codes, kind="stable"))).combine_chunks()
    for name, begin, end in zip(topics.dictionary.to_pylist(), [0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        yield name, taken.slice(begin, end - begin).to_batches()


def _present(partitions: Int32s) -> list[int]:
    return np.flatnonzero(np.bincount(partitions)).tolist()


class StickyRuns:
    """Assigns partitions of one topic to rows without a key, round-robin from a random partition."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._next = random.randrange(partitions)

    def take(self, rows: int, rows_per_run: int) -> Int32s:
        """The partitions of `rows` rows: runs of at most `rows_per_run`, or shorter so that every partition gets
        one."""
        length = max(1, min(rows_per_run, -(-rows // self._partitions)))
        runs = -(-rows // length)
        turns = (self._next + np.arange(runs, dtype=np.int64)) % self._partitions
        self._next = (self._next + runs) % self._partitions
        return np.repeat(turns.astype(np.int32), length)[:rows]


def partitions_of_rows(
    rows: pa.Table, topic: str, partitions: int, sticky: StickyRuns, *, rows_per_run: int, by_key: bool = True
) -> Int32s:
    """The partition of each row of `topic`. Raises ConfigError for a partition that the topic does not have."""
    result = np.full(rows.num_rows, -1, np.int32)
    names = rows.schema.names
    if "partition" in names:
        column = rows["partition"]
        asked = column.fill_null(-1).to_numpy()
        wrong = ((asked < 0) | (asked >= partitions)) & column.is_valid().to_numpy()
        if wrong.any():
            raise ConfigError(
                f"Invalid partition given with record: {asked[wrong][0]} is not in the range [0...{partitions}) of "
                f"topic '{topic}' (column 'partition')"
            )
        result = asked.astype(np.int32, copy=True)
    if by_key and "key" in names and (open_ := result < 0).any():
        of_keys = np.concatenate([partitions_of_keys(part, partitions) for part in rows["key"].chunks])
        result = of_keys if open_.all() else np.where(open_, of_keys, result)
    free = np.flatnonzero(result < 0)
    if len(free):
        result[free] = sticky.take(len(free), rows_per_run)
    return result
