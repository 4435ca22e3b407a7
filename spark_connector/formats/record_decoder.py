"""Applies the formats of a read to its record batches: what stands between fetching and Spark.

Made by read/fetch.py for a task of a read with `keyFormat` or `valueFormat`; it is a `BatchDecoder` of read/arrow.py.
"""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import ConnectorError
from spark_connector.formats.bad_records import BadRecordsTopic
from spark_connector.formats.decoders import decoded_schema, decoders
from spark_connector.formats.decoding import Decoded
from spark_connector.formats.value_format import ParseMode, ReadFormats

__all__ = ["RecordDecoder"]

logger = logging.getLogger("pykafka.spark")

_OF_BAD_RECORDS = ("key", "value", "offset", "timestamp")


class RecordDecoder:
    """Of one partition, for one task."""

    def __init__(
        self, formats: ReadFormats, source: pa.Schema, tp: TopicPartition, bad_records: BadRecordsTopic | None = None
    ) -> None:
        """`source`: the columns that the read was asked for, as they come from Kafka. Raises ConfigError."""
        self._formats = formats
        self._tp = tp
        self._bad_records = bad_records
        self._decoders = decoders(formats)
        self._schema = decoded_schema(formats, source)
        needed = (*source.names, "offset", *(_OF_BAD_RECORDS if bad_records is not None else ()))
        self._needs = tuple(dict.fromkeys(needed))

    @property
    def needs(self) -> tuple[str, ...]:
        """The source columns it is given: those asked for, and those that tell of bad records."""
        return self._needs

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """`batch` with typed keys and values, by the mode of the read.

        Raises ConnectorError (MALFORMED_RECORD_IN_PARSING) in FAILFAST mode, and what writing bad records raises.
        """
        decoded = {name: decoder.decode(batch[name]) for name, decoder in self._decoders.items()}
        reasons = _reasons(decoded)
        if reasons:
            self._report(batch, reasons)
        columns = [
            decoded[name].column if name in decoded else batch[name]
            for name in self._schema.names[: len(self._schema) - len(self._formats.corrupt_columns)]
        ]
        columns += [_raw_where_bad(batch[name], decoded[name]) for name in self._formats.corrupt_columns]
        made = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        if reasons and self._formats.mode is ParseMode.DROPMALFORMED:
            kept = np.ones(len(made), bool)
            kept[list(reasons)] = False
            return made.filter(pa.array(kept))
        return made

    def _report(self, batch: pa.RecordBatch, reasons: dict[int, str]) -> None:
        """Fail, or put the bad records where they were to be put, and say how many."""
        first = next(iter(reasons))
        offset = batch["offset"][first].as_py()
        if self._formats.mode is ParseMode.FAILFAST:
            raise ConnectorError(
                "MALFORMED_RECORD_IN_PARSING",
                f"Malformed record at offset {offset} of topic '{self._tp.topic}', partition {self._tp.partition}: "
                f"{reasons[first]}. Parse mode is FAILFAST. To process malformed records as null, set the option "
                "'mode' to 'PERMISSIVE'.",
            )
        if self._bad_records is not None:
            rows = pa.array(list(reasons), pa.int64())
            self._bad_records.write(self._tp, batch.select(list(_OF_BAD_RECORDS)).take(rows), list(reasons.values()))
        dropped = self._formats.mode is ParseMode.DROPMALFORMED
        logger.warning(
            "%s of topic '%s', partition %d: %d malformed records %s, the first at offset %d: %s",
            "badRecordsTopic" if self._bad_records is not None else "Records",
            self._tp.topic,
            self._tp.partition,
            len(reasons),
            "dropped" if dropped else "set to null",
            offset,
            reasons[first],
        )


def _reasons(decoded: dict[str, Decoded]) -> dict[int, str]:
    """Why, by row, in order; of a record whose key and value are both bad, both."""
    reasons: dict[int, str] = {}
    for name, one in decoded.items():
        for row, why in one.bad.items():
            reasons[row] = f"{reasons[row]}; {name}: {why}" if row in reasons else f"{name}: {why}"
    return dict(sorted(reasons.items()))


def _raw_where_bad(raw: pa.Array, decoded: Decoded) -> pa.Array:
    if not decoded.bad:
        return pa.nulls(len(raw), pa.binary())
    bad = np.zeros(len(raw), bool)
    bad[list(decoded.bad)] = True
    return pc.if_else(pa.array(bad), raw, pa.scalar(None, pa.binary()))
