"""The data source `pykafka` as Spark sees it: options in, readers out.

Spark makes an instance at `load()` and pickles it to every process that plans or reads. Options are checked
here, at `load()` for all that does not depend on the kind of query (`schema` cannot tell batch from stream), and
when Spark asks for a reader for the rest; no broker is asked before a query runs.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from broker.errors import ConfigError
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.read.batch_reader import KafkaBatchReader
from spark_connector.read.stream_reader import KafkaStreamReader

__all__ = ["FORMAT", "PykafkaSource", "spark_schema"]

FORMAT = "pykafka"


def spark_schema(include_headers: bool) -> StructType:
    """The schema of Spark's own Kafka source: every field nullable, `headers` NULL for a record that has none."""
    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    return StructType([*fields, StructField("headers", ArrayType(header))] if include_headers else fields)


class PykafkaSource(DataSource):
    """`spark.read.format("pykafka")` and `spark.readStream.format("pykafka")`; options/table.py lists the options."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """Spark's Kafka schema. Raises ConfigError for options that no kind of query takes."""
        return spark_schema(parse_options(self.options, Mode.ANY).include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader. Raises ConfigError, ConnectorError."""
        options = parse_options(self.options, Mode.BATCH)
        _refuse_other_schema(schema, options.include_headers)
        return KafkaBatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream reader. Raises ConfigError."""
        options = parse_options(self.options, Mode.STREAM)
        _refuse_other_schema(schema, options.include_headers)
        return KafkaStreamReader(options)


def _refuse_other_schema(schema: StructType, include_headers: bool) -> None:
    ours = spark_schema(include_headers)
    if schema != ours:
        raise ConfigError(
            "Kafka source has a fixed schema and cannot be set with a custom one: leave out .schema(…); it is "
            f"{ours.simpleString()}, given was {schema.simpleString()}"
        )
