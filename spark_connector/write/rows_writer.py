"""Rows to record batches on the wire, column by column: the hot path of a writing task.

attempt.py passes the Arrow batches of a task. Some megabytes of rows are collected, sorted by topic and partition (a
stable sort: rows of a partition keep their order), encoded partition by partition, and sent while the next rows are
collected. While rows are encoded, memory holds them three times: as received, sorted, and as record batches.

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
import pyarrow.compute as pc

from broker.client.batch_producer import BatchProducer
from broker.client.broker_connection import BrokerConnection
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import Node
from broker.client.transaction_requests import TransactionHandle, add_partitions
from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from broker.records.columns import encode_columns, partitions_of_keys
from broker.records.compression import Codec
from spark_connector.errors import ConnectorError
from spark_connector.options.write_options import WriteOptions
from spark_connector.write.input_columns import refuse_too_large, to_rows

if TYPE_CHECKING:
    from spark_connector.formats.record_encoder import RecordEncoder

_COLLECTED_BYTES: Final = 16 << 20
"""Rows sorted at a time: enough for batches of a good size in topics with many partitions."""

_MOST_AT_ONCE: Final = 256 << 20
"""Bytes of a batch that are encoded at a time. The rest is for what they become, because a column holds 2 GiB."""
_MOST_COLLECTED: Final = (1 << 31) - 1

_MOST_PARTITIONS_OF_INT16: Final = 1 << 15


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
        self._bad: list[pa.Table] = []
        """Rows for `badRowsTopic`, which are sent with the collected."""
        self._collected: list[pa.Table] = []
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
        if self._collected_bytes >= _COLLECTED_BYTES:
            self._send_collected()

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

    def _collect(self, collected: list[pa.Table], batch: pa.RecordBatch, options: WriteOptions) -> None:
        if batch.num_rows:
            rows = to_rows(batch, options)
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
        parts: list[tuple[TopicPartition, pa.Table]] = []
        for collected, topic in (
            (self._collected, self._options.topic),
            (self._bad, self._options.formats.bad_rows_topic),
        ):
            if collected:
                rows = pa.concat_tables(collected).combine_chunks()
                collected.clear()
                refuse_too_large(rows, self._options.client.max_request_size)
                self._rows += rows.num_rows
                parts += [
                    (TopicPartition(name, partition), part)
                    for name, of_topic in _by_topic(rows, topic)
                    for partition, part in self._by_partition(name, of_topic)
                ]
                del rows
        self._collected_bytes = 0
        new = {tp for tp, _ in parts} - self._partitions
        if new and self._transaction is not None:
            add_partitions(self._cluster, self._transaction, new)
        self._partitions |= new
        partitions, batches = [tp for tp, _ in parts], [self._encoded(tp, part) for tp, part in parts]
        del parts  # frees memory: the batches hold the data
        # Round-robin: a request takes one batch per partition, so this order fills it with one of each.
        for turn in itertools.zip_longest(*batches):
            for tp, batch in zip(partitions, turn, strict=True):
                if batch is not None:
                    self._sender.send(tp, batch)

    def _by_partition(self, topic: str, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
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
        return _grouped(rows, partitions, count)

    def _partition_count(self, topic: str, rows: pa.Table) -> int:
        largest = (pc.max(rows["partition"]).as_py() or 0) if "partition" in rows.schema.names else 0
        # The topic may have grown since this process looked it up.
        return len(self._cluster.topic(topic, lambda found: len(found.partitions) > largest).partitions)

    def _encoded(self, tp: TopicPartition, rows: pa.Table) -> list[bytes]:
        names = rows.schema.names
        key, headers = (rows[name].chunk(0) if name in names else None for name in ("key", "headers"))
        return encode_columns(
            key,
            rows["value"].chunk(0),
            rows["timestamp"].chunk(0),
            headers,
            codec=self._codec,
            max_bytes=min(self._options.client.batch_size, self._sender.largest_batch(tp.topic)),
            transactional=self._transaction is not None,
            **self._sender.stamp(tp)._asdict(),
        )


def _by_topic(rows: pa.Table, topic: str | None) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each topic: all are of `topic`, or each has its own in a column."""
    if topic is not None:
        yield topic, rows
        return
    topics = rows["topic"].combine_chunks().dictionary_encode()
    if isinstance(topics, pa.ChunkedArray):
        topics = topics.chunk(0)
    codes = topics.indices.to_numpy()
    for code, part in _grouped(rows.drop_columns(["topic"]), codes, len(topics.dictionary)):
        yield topics.dictionary[code].as_py(), part


def _grouped(
    rows: pa.Table, codes: np.ndarray[tuple[int], np.dtype[np.int32]], count: int
) -> Iterator[tuple[int, pa.Table]]:
    """(code, its rows in order) for each code below `count` that occurs."""
    present = np.flatnonzero(np.bincount(codes, minlength=1))
    if len(present) == 1:
        yield int(present[0]), rows
        return
    if count <= _MOST_PARTITIONS_OF_INT16:
        codes = codes.astype(np.int16)  # numpy sorts these by radix
    order = np.argsort(codes, kind="stable")
    edges = np.searchsorted(codes[order], present)
    taken = rows.take(pa.array(order)).combine_chunks()
    for code, begin, end in zip(present.tolist(), edges.tolist(), [*edges.tolist()[1:], len(order)], strict=True):
        yield code, taken.slice(begin, end - begin)


Int32s = npt.NDArray[np.int32]


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
        wrong = ((asked < 0) | (asked >= partitions)) & pc.is_valid(column).to_numpy()
        if wrong.any():
            raise ConfigError(
                f"Invalid partition given with record: {asked[wrong][0]} is not in the range [0...{partitions}) of "
                f"topic '{topic}' (column 'partition')"
            )
        result = asked.astype(np.int32, copy=True)
    if by_key and "key" in names and (open_ := result < 0).any():
        keys = _one(rows["key"])
        result = np.where(open_, partitions_of_keys(keys, partitions), result).astype(np.int32)
    free = np.flatnonzero(result < 0)
    if len(free):
        result[free] = sticky.take(len(free), rows_per_run)
    return result


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
